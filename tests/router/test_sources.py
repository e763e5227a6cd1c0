"""Where settings are written; what they mean is tested with `config`."""

import pytest

from router.errors import ConfigError
from router.sources import did_you_mean, from_environment, from_file, from_sets, variable

NAMES = ("listen.port", "admin.port", "drain_s")


def test_a_table_that_is_no_section_is_a_value(tmp_path):
    file = tmp_path / "router.toml"
    file.write_text("drain_s = 1\n[listen]\nport = 2\n[other]\nx = 3\n", "utf-8")
    assert [given[1:] for given in from_file(file, {"listen"})] == [
        ("drain_s", 1),
        ("listen.port", 2),
        ("other", {"x": 3}),
    ]
    assert list(from_file(None, ())) == []


def test_only_our_variables_are_read():
    given = {"ROUTER_LISTEN__PORT": "1", "ROUTER_DRAIN_S": "2", "ROUTER_PORT": "tcp://x", "PATH": "/"}
    assert list(from_environment(given, NAMES)) == [
        ("environment ROUTER_DRAIN_S", "drain_s", "2"),
        ("environment ROUTER_LISTEN__PORT", "listen.port", "1"),
    ]


def test_sets_keep_their_order_and_everything_after_the_first_equals_sign():
    assert list(from_sets(["b=1", " a = x=y "])) == [("--set", "b", "1"), ("--set", "a", "x=y")]
    with pytest.raises(ConfigError, match="takes key=value"):
        list(from_sets(["b"]))


def test_names_and_variables():
    assert variable("listen.port") == "ROUTER_LISTEN__PORT"
    assert did_you_mean("port", NAMES) == "; did you mean listen.port or admin.port?"
    assert did_you_mean("xyz", NAMES) == "; `router config` lists them all"
