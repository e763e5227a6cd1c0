"""The table of settings that the README and `router config` print."""

from router.config import Config, load
from router.settings import settings, shown, values


def test_every_setting_has_a_description_and_a_type():
    for setting in settings():
        assert setting.description, setting.name
        assert setting.type, setting.name
        assert not setting.description.endswith("."), setting.name
        assert "\n" not in setting.description


def test_rows():
    rows = {setting.name: setting for setting in settings()}
    assert (rows["listen.port"].type, rows["listen.port"].default) == ("integer", "8080")
    assert rows["listen.port"].variable == "ROUTER_LISTEN__PORT"
    assert (rows["timeouts.first_byte_s"].type, rows["timeouts.first_byte_s"].default) == ("number or none", "none")
    assert rows["log.format"].type == "text · json"
    assert rows["health.passive"].type == "yes/no"
    assert rows["replicas"].type == "list"
    assert rows["policy.settings"].type == "table"


def test_the_defaults_shown_are_the_defaults():
    effective = values(Config())
    assert [setting.name for setting in settings()] == list(effective)
    for setting in settings():
        assert setting.default == shown(effective[setting.name])


def test_values_are_the_effective_ones():
    config, _ = load(sets=["replicas=a:1,x=b:2", "policy.settings.alpha=2"])
    effective = values(config)
    assert shown(effective["replicas"]) == "r1=http://a:1, x=http://b:2"
    assert shown(effective["policy.settings"]) == "alpha=2"
    assert shown(effective["health.passive"]) == "true"
