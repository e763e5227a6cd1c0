"""What `make dist` makes: the right files, and a wheel that runs where no checkout is in sight.

The wheel is installed into an environment of its own that borrows this one's dependencies, not this one's `router`.
"""

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from router import __version__

ROOT = Path(__file__).parent.parent
PACKAGES = ("policies", "router", "sim")
DEPENDENCIES = Path(pytest.__file__).parent.parent  # site-packages of the environment the tests run in


def ran(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run to the end; no variable of ours or Python's leads it back to the checkout. Nothing is compiled here."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ROUTER_"))}
    environment["PREFIX_ROUTER_COMPILE"] = "0"
    done = subprocess.run(  # noqa: S603 -- our own programs
        list(map(str, words)), cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, f"{words} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """A folder with the source distribution, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    ran(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(dist):
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The folder of programs of an environment that has the wheel, and nothing of the checkout."""
    place = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(place, with_pip=False)
    programs = place / ("Scripts" if os.name == "nt" else "bin")
    ran(
        *(sys.executable, "-m", "pip", "--python", programs / "python", "install"),
        *("--no-index", "--no-deps", "--disable-pip-version-check", "--quiet", wheel),
        cwd=place,
    )
    where = ran(programs / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place)
    # A path in a .pth file is not searched for .pth files itself, so the editable install stays out.
    (Path(where.stdout.strip()) / "borrowed.pth").write_text(f"{DEPENDENCIES}\n", "utf-8")
    return programs


def test_the_wheel_holds_the_packages_whole_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {*PACKAGES, f"prefix_router-{__version__}.dist-info"}
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sources == {name for name in names if ".dist-info/" not in name}
    assert {f"{package}/py.typed" for package in PACKAGES} <= sources
    assert {"router/data/tiny/tokenizer.json", "router/data/tiny/tokenizer_config.json"} <= sources
    assert not [name for name in names if "test" in name.lower()]


def test_the_wheel_says_what_it_is(wheel):
    with zipfile.ZipFile(wheel) as opened:
        about = {
            name.rpartition("/")[2]: opened.read(name).decode()
            for name in opened.namelist()
            if name.startswith(f"prefix_router-{__version__}.dist-info/")
        }
    assert f"\nVersion: {__version__}\n" in about["METADATA"]
    assert "\nRequires-Python: >=3.11\n" in about["METADATA"]
    assert "# prefix-router" in about["METADATA"]
    assert "Apache License" in about["LICENSE"]
    assert "router = router.cli:main" in about["entry_points.txt"]


def test_the_source_distribution_can_be_tested(dist):
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"Makefile", "hatch_build.py", "README.md", "docs/replicas.md", "CHANGELOG.md", "LICENSE"} <= names
    assert "tests/test_packaging.py" in names
    assert not [name for name in names if name.startswith((".venv", ".git/"))]


def test_the_installed_router_is_not_the_checkout(installed, tmp_path):
    code = "import router, policies, sim; print(router.__file__, policies.__file__, sim.__file__, sep='\\n')"
    places = [Path(line) for line in ran(installed / "python", "-c", code, cwd=tmp_path).stdout.splitlines()]
    assert len(places) == 3
    for place in places:
        assert place.is_relative_to(installed.parent)
        assert not place.is_relative_to(ROOT)


@pytest.mark.parametrize("words", [("router",), ("python", "-m", "router")], ids=["router", "python -m router"])
def test_it_runs(installed, tmp_path, words):
    program, *rest = words
    told = ran(installed / program, *rest, "--version", cwd=tmp_path).stdout
    assert told == f"prefix-router {__version__}, interpreted core\n"


def test_it_finds_its_policies(installed, tmp_path):
    told = json.loads(ran(installed / "router", "policies", "--json", cwd=tmp_path).stdout)
    found = {policy["name"]: policy for policy in told["policies"] if policy["distribution"] == "prefix-router"}
    assert {"round-robin", "least-loaded", "user-hash", "prefix-aware", "lmetric", "preble-e2"} <= set(found)
    assert not [policy["problem"] for policy in found.values() if policy["problem"]]


def test_it_brings_its_tokenizer(installed, tmp_path):
    code = "from router.readers import TINY; print(TINY)"
    folder = ran(installed / "python", "-c", code, cwd=tmp_path).stdout.strip()
    assert Path(folder).is_relative_to(installed.parent)
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Hello " * 40}]}), "utf-8")
    told = json.loads(ran(installed / "router", "explain", body, "--tokenizer", folder, "--json", cwd=tmp_path).stdout)
    assert told["tokens"]["basis"] == "exact"
    assert told["blocks"]["count"] == len(told["blocks"]["keys"]) > 1
