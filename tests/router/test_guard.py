"""Packages of the same name that stand before ours."""

import subprocess
import sys
from pathlib import Path

import policies
from router.guard import conflicts, other_owners

ROOT = Path(__file__).parent.parent.parent


def test_a_clean_checkout_has_no_conflict():
    assert conflicts() == []
    assert other_owners() == []


def test_a_folder_that_hides_ours_is_named(tmp_path):
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "__init__.py").touch()
    code = "import sys; sys.path.insert(0, sys.argv[1])\nfrom router.guard import conflicts\nprint(*conflicts())"
    told = subprocess.run(  # noqa: S603 -- our own program
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert f"policies: {tmp_path / 'policies'} stands before {Path(policies.__file__).parent}" in told


def test_packages_that_are_missing_are_named(tmp_path):
    told = conflicts(tmp_path / "router")
    assert [line.split(":")[0] for line in told] == ["policies", "sim"]
