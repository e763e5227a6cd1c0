"""Where settings come from, which source wins, and what is said when one is wrong."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from router.config import Config, load
from router.errors import ConfigError, UsageError
from router.sources import variable


def written(folder: Path, text: str) -> Path:
    path = folder / "router.toml"
    path.write_text(text, "utf-8")
    return path


def test_defaults():
    config, origins = load()
    assert (config.listen.host, config.listen.port) == ("127.0.0.1", 8080)
    assert (config.admin.port, config.policy.name, config.block_tokens) == (9090, "prefix-aware", 16)
    assert config.timeouts.first_byte_s is None
    assert (config.replicas, origins) == ((), {})


def test_flag_beats_set_beats_environment_beats_file(tmp_path):
    file = written(tmp_path, "drain_s = 1\nblock_tokens = 1\n[listen]\nport = 1\nhost = 'file'\n")
    config, origins = load(
        file,
        ["listen.port=3", "block_tokens=3"],
        {"ROUTER_LISTEN__PORT": "2", "ROUTER_BLOCK_TOKENS": "2", "ROUTER_DRAIN_S": "2", "HOME": "/"},
        {"listen.port": ("--port", 4)},
    )
    assert (config.listen.port, config.block_tokens, config.drain_s, config.listen.host) == (4, 3, 2.0, "file")
    assert origins == {
        "listen.port": "--port",
        "block_tokens": "--set",
        "drain_s": "environment ROUTER_DRAIN_S",
        "listen.host": f"file {file}",
    }


def test_a_file_with_one_setting_keeps_all_other_defaults(tmp_path):
    config, _ = load(written(tmp_path, "[health]\nfall = 5\n"))
    assert config.health.fall == 5
    assert config.model_copy(update={"health": Config().health}) == Config()


def test_replicas_from_a_file_and_from_a_flag(tmp_path):
    text = "replicas = ['a:1', {name = 'big', url = 'http://b:2', weight = 2, capacity_blocks = 100}]"
    config, _ = load(written(tmp_path, text))
    assert [(r.name, r.url, r.weight, r.capacity_blocks) for r in config.replicas] == [
        ("r1", "http://a:1", 1.0, None),
        ("big", "http://b:2", 2.0, 100),
    ]
    config, origins = load(written(tmp_path, text), flags={"replicas": ("--replicas", "c:3")})
    assert [r.url for r in config.replicas] == ["http://c:3"]
    assert origins["replicas"] == "--replicas"


def test_a_byte_order_mark_is_no_error(tmp_path):
    assert load(written(tmp_path, "\ufeffblock_tokens = 32\n"))[0].block_tokens == 32


def test_settings_of_a_policy_keep_their_types_and_add_up(tmp_path):
    file = written(tmp_path, "[policy.settings]\nname = 'x'\nfactor = 1\n")
    config, _ = load(file, ["policy.settings.factor=1.5", "policy.settings.on=true", "policy.settings.word=plain"])
    assert config.policy.settings == {"name": "x", "factor": 1.5, "on": True, "word": "plain"}


def test_none_switches_an_optional_limit_off():
    assert load(sets=["timeouts.idle_s=none"])[0].timeouts.idle_s is None
    with pytest.raises(ConfigError, match=r"drain_s \(--set\)"):
        load(sets=["drain_s=none"])


def test_lists_may_be_written_with_commas():
    assert load(sets=["identity.user=header:x-a, body:user"])[0].identity.user == ("header:x-a", "body:user")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("replcas=1", r"unknown setting 'replcas' \(--set\); did you mean replicas"),
        ("port=3", "did you mean listen.port or admin.port"),
        ("health.intervals=2", "did you mean health.interval_s"),
        ("zzz=1", "`router config` lists them all"),
        ("listen=3", "is a group of settings: listen.host, listen.port"),
        ("listen.port=abc", r"listen.port \(--set\): input should be a valid integer"),
        ("listen.port=65536", "less than or equal to 65535"),
        ("health.interval_s=nan", "finite"),
        ("health.interval_s=0", "greater than 0"),
        ("block_tokens=0", "greater than or equal to 1"),
        ("tokenizer.where=cloud", "'auto', 'local', 'replica', 'text' or 'none'"),
        ("identity.user=cookie:x", "identity.user.0"),
        ("log.requests=maybe", "valid boolean"),
        ("admin.port=8080", "give them different ports"),
        ("replicas=a:1,a:1", "listed twice"),
        ("replicas=x=a:1,x=b:1", "two replicas are named 'x'"),
        ("nothing", "--set takes key=value"),
        ("=3", "--set takes key=value"),
        ("policy.settings=3", r"policy.settings \(--set\)"),
    ],
)
def test_what_can_not_be_used_is_named_with_its_source(text, told):
    with pytest.raises(ConfigError, match=told):
        load(sets=[text])


def test_unknown_key_in_a_file_names_the_file(tmp_path):
    with pytest.raises(ConfigError, match=r"'listen.prot' \(file .*router.toml\); did you mean listen.port"):
        load(written(tmp_path, "[listen]\nprot = 1\n"))


def test_unknown_key_of_a_replica(tmp_path):
    with pytest.raises(ConfigError, match=r"replicas.0.wieght .*extra inputs are not permitted"):
        load(written(tmp_path, "replicas = [{url = 'a:1', wieght = 2}]"))


@pytest.mark.parametrize(("text", "told"), [("port = ", "is not TOML"), (None, "can't be read: No such file")])
def test_files_that_can_not_be_read(tmp_path, text, told):
    file = tmp_path / "absent.toml" if text is None else written(tmp_path, text)
    with pytest.raises(ConfigError, match=told):
        load(file)


def test_a_misspelt_variable_is_an_error_but_kubernetes_may_set_its_own():
    with pytest.raises(ConfigError, match="write ROUTER_LISTEN__PORT"):
        load(environment={"ROUTER_LISTEN_PORT": "1"})
    with pytest.raises(ConfigError, match=r"unknown setting 'listen\.prt'"):
        load(environment={"ROUTER_LISTEN__PRT": "1"})
    service = {"ROUTER_PORT": "tcp://10.0.0.1:80", "ROUTER_SERVICE_HOST": "10.0.0.1", "ROUTER_PORT_80_TCP": "x"}
    assert load(environment=service) == (Config(), {})


def test_every_variable_name_leads_back_to_its_setting():
    config, origins = load(environment={variable("timeouts.connect_s"): "7"})
    assert config.timeouts.connect_s == 7.0
    assert origins == {"timeouts.connect_s": "environment ROUTER_TIMEOUTS__CONNECT_S"}


def test_errors_keep_values_that_may_be_secrets_to_themselves():
    for text in ["replica_key_env=sk-Secret123", "replicas=http://u:sk-Secret123@h:1", "sk-Secret123"]:
        with pytest.raises(ConfigError) as error:
            load(sets=[text])
        assert "Secret" not in str(error.value)


def test_the_replica_key_comes_from_a_variable_or_a_file(tmp_path):
    file = tmp_path / "key"
    file.write_text("k-2\n", "utf-8")
    assert Config().replica_key({}) is None
    assert Config(replica_key_env="KEY").replica_key({"KEY": "k-1"}) == "k-1"
    assert Config(replica_key_file=str(file)).replica_key({}) == "k-2"
    with pytest.raises(ConfigError, match="keep one"):
        load(sets=["replica_key_env=A", "replica_key_file=b"])


@pytest.mark.parametrize("key", [None, "", "  ", "bad\nkey", "schlüssel"])
def test_a_key_no_header_can_carry_is_refused_without_being_shown(key):
    with pytest.raises(ConfigError, match="variable KEY that replica_key_env names is empty or unset") as error:
        Config(replica_key_env="KEY").replica_key({} if key is None else {"KEY": key})
    assert not key or not key.strip() or key not in str(error.value)


def test_a_key_file_that_is_missing(tmp_path):
    with pytest.raises(ConfigError, match="can't be read"):
        Config(replica_key_file=str(tmp_path / "none")).replica_key({})


def test_a_config_is_frozen_and_closed():
    with pytest.raises(ValidationError, match="frozen"):
        Config().drain_s = 3
    with pytest.raises(ValidationError, match="extra"):
        Config(unknown=1)


def test_a_config_error_ends_the_process_with_2():
    assert issubclass(ConfigError, UsageError)
    assert ConfigError.exit_code == 2
