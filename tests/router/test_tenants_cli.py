"""`router tenants`: what is printed where, and what becomes of the file."""

import json
import tomllib

import pytest

from router.cli import main
from router.tenant_keys import hashed, read


@pytest.fixture
def file(tmp_path):
    return tmp_path / "tenants.toml"


def tenants(file, *words: str) -> int:
    return main(["tenants", *words, "--tenants", str(file)])


def test_a_key_is_printed_once_and_never_written(file, capsys):
    assert tenants(file, "add", "acme", "--salt-group", "all", "--requests-per-minute", "60") == 0
    told = capsys.readouterr()
    key = told.out.strip()
    assert key.startswith("sk-")
    assert len(key) > 40
    assert key not in told.err + file.read_text()
    assert hashed(key) in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    tenant = read(file).of_key(key.encode(), 0.0)
    assert (tenant.name, tenant.salt_group, tenant.quota.requests_per_minute) == ("acme", "all", 60)


def test_what_a_person_wrote_stays(file, capsys):
    file.write_text("# ours\n[tenants.old]  # since May\nkeys = []\nin_flight = 2\n")
    file.chmod(0o640)
    assert tenants(file, "add", "new") == 0
    text = file.read_text()
    assert text.startswith("# ours\n[tenants.old]  # since May\nkeys = []\nin_flight = 2\n")
    assert file.stat().st_mode & 0o777 == 0o640
    assert list(tomllib.loads(text)["tenants"]) == ["old", "new"]


def test_rotation_keeps_the_old_key_for_a_while(file, capsys):
    tenants(file, "add", "acme")
    old = capsys.readouterr().out.strip()
    assert tenants(file, "rotate", "acme", "--overlap", "3600") == 0
    new = capsys.readouterr().out.strip()
    register = read(file)
    (_, keys) = register.told()[0]
    ends = [key.expires_s for key in keys]
    assert new != old
    assert ends[1] is None
    assert register.of_key(old.encode(), ends[0] - 1).name == "acme"
    assert register.of_key(old.encode(), ends[0]) is None
    assert register.of_key(new.encode(), ends[0]).name == "acme"
    tenants(file, "rotate", "acme", "--overlap", "0")
    third = capsys.readouterr().out.strip()
    assert [key.digest.hex() for key in read(file).told()[0][1]] == [hashed(third).removeprefix("sha256:")]


def test_a_list_shows_hashes_and_no_keys(file, capsys):
    tenants(file, "add", "acme", "--in-flight", "3")
    key = capsys.readouterr().out.strip()
    assert tenants(file, "list", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["in_flight"], row["tokens_per_minute"]) == ("acme", 3, None)
    assert row["keys"] == [{"hash": hashed(key), "expires": None, "works": True}]
    tenants(file, "rotate", "acme")
    capsys.readouterr()
    assert tenants(file, "list") == 0
    shown = capsys.readouterr().out
    assert "acme" in shown
    assert key not in shown


def test_the_last_tenant_may_leave(file, capsys):
    tenants(file, "add", "acme")
    assert tenants(file, "remove", "acme") == 0
    assert len(read(file)) == 0
    assert tenants(file, "add", "acme") == 0
    assert read(file).names == ("acme",)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("add", "a b"), "can't name a tenant"),
        (("add", "a/b"), "can't name a tenant"),
        (("add", "x" * 129), "can't name a tenant"),
        (("add", ""), "can't name a tenant"),
        (("add", "acme"), "is there already"),
        (("add", "new", "--salt-group", "a b"), "can't name a tenant or group"),
        (("rotate", "nobody"), "there is no tenant"),
        (("remove", "nobody"), "there is no tenant"),
        (("rotate", "acme", "--overlap", "-1"), "overlap"),
        (("add", "new", "--in-flight", "0"), "in-flight"),
        (("give", "acme"), "give"),
    ],
)
def test_what_can_not_be_done_changes_nothing(file, capsys, words, told):
    tenants(file, "add", "acme")
    before = file.read_text()
    capsys.readouterr()
    assert tenants(file, *words) == 2
    assert told in capsys.readouterr().err
    assert file.read_text() == before


def test_a_file_that_can_not_be_read_is_left_alone(file, capsys, tmp_path):
    file.write_text("[tenants.acme\n")
    assert tenants(file, "add", "new") == 2
    assert "is not TOML" in capsys.readouterr().err
    assert file.read_text() == "[tenants.acme\n"
    assert [path.name for path in tmp_path.iterdir()] == ["tenants.toml"]
    assert tenants(tmp_path / "no" / "tenants.toml", "add", "new") == 2
    assert tenants(tmp_path / "none.toml", "list") == 2


def test_help_names_the_actions(capsys):
    assert main(["tenants", "--help"]) == 0
    assert "rotate" in capsys.readouterr().out
