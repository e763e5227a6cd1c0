"""Every setting of the router, written once: its name, type, default and description.

Values come from a TOML file, then the environment (`ROUTER_LISTEN__PORT`), then `--set key=value`, then dedicated
flags; a later one wins and the origin of each is kept. The one rule: a secret is never a value here, only the name of
an environment variable or file that holds it. Not here: how replicas are written (`addresses`), tables (`settings`).
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from router.addresses import parsed
from router.errors import ConfigError
from router.kv_sources import AUTO, OFF, configured
from router.sources import did_you_mean, from_environment, from_file, from_sets

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


def _listed(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _endpoint(value: str) -> str:
    if value not in (AUTO, OFF):
        configured(value, "http://127.0.0.1")
    return value


KvEvents = Annotated[str, AfterValidator(_endpoint)]
Source = Annotated[str, Field(pattern=r"^(header|body):\S+$")]
Sources = Annotated[tuple[Source, ...], BeforeValidator(_listed)]


class Section(BaseModel):
    """A table of settings: frozen, and closed to names it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Listen(Section):
    host: str = Field(default="127.0.0.1", description="address clients connect to; 0.0.0.0 for every interface")
    port: Port = Field(default=8080, description="port clients connect to; 0 takes any free one")


class Admin(Section):
    host: str = Field(
        default="127.0.0.1", description="address of /metrics, /state and /explain; keep it away from clients"
    )
    port: Port = Field(default=9090, description="port of /metrics, /state and /explain; 0 takes any free one")


class ReplicaAddress(Section):
    name: str = Field(description="short name in logs, metrics and choices; r1, r2, … when not given")
    url: str = Field(description="scheme, host and port of the replica: http://10.0.0.1:8000")
    weight: float = Field(
        default=1.0, gt=0, allow_inf_nan=False, description="relative speed; 2.0 prefills twice as fast"
    )
    capacity_blocks: Count | None = Field(
        default=None, description="blocks of its KV cache, where its /metrics does not say (or says wrong)"
    )
    kv_events: KvEvents | None = Field(
        default=None, description="where it publishes KV events, if not as kv_events says: auto, off or ENDPOINT"
    )


class PolicyChoice(Section):
    name: str = Field(default="prefix-aware", description="a name that `router policies` lists, or module:attribute")
    settings: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of the policy")
    seed: int = Field(default=0, description="seed of whatever a policy leaves to chance")


class Tokenizer(Section):
    path: str | None = Field(default=None, description="folder, tokenizer.json or hub name of the model's tokenizer")
    where: Literal["auto", "local", "replica", "text", "none"] = Field(
        default="auto",
        description="who turns prompts into tokens: this process, a replica's /tokenize, nobody (text: chunks of it; "
        "none: prompts are not read, as under auto with a policy that does not look at them)",
    )


class Identities(Section):
    user: Sources = Field(
        default=("header:x-user-id", "body:user", "body:safety_identifier", "body:metadata.user_id"),
        description="where a request's user is read, in order: header:NAME or body:MEMBER",
    )
    session: Sources = Field(
        default=("header:x-session-id", "body:prompt_cache_key"),
        description="where a conversation's id is read, in order; without any it is inferred from the prompt",
    )


class TimeLimits(Section):
    connect_s: Seconds = Field(default=5.0, description="longest wait for a connection to a replica")
    first_byte_s: Seconds | None = Field(
        default=None, description="longest wait for a replica's first byte; none is no limit"
    )
    idle_s: Seconds | None = Field(
        default=300.0, description="longest silence in the middle of a reply; none is no limit"
    )


class Limits(Section):
    body_bytes: Count = Field(
        default=64 * 1024 * 1024, description="largest request body; a larger one is answered 413"
    )
    header_bytes: Count = Field(default=64 * 1024, description="largest request head; a larger one is answered 431")
    prompt_cache_bytes: Count = Field(
        default=256 * 1024 * 1024, description="memory for prompts already turned into blocks"
    )


class HealthRules(Section):
    interval_s: Seconds = Field(default=2.0, description="pause between two probes of a replica")
    timeout_s: Seconds = Field(default=5.0, description="longest wait for the answer to a probe")
    fall: Count = Field(default=2, description="failures in a row that take a replica out")
    rise: Count = Field(default=1, description="good probes in a row that bring it back")
    passive: bool = Field(default=True, description="whether failed requests count, not only failed probes")


class Logging(Section):
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least severe line that is written"
    )
    format: Literal["text", "json"] = Field(default="text", description="key=value text or one JSON object a line")
    requests: bool = Field(default=False, description="one line per request at level info; otherwise at debug")


class TenantSettings(Section):
    file: str | None = Field(
        default=None,
        description="TOML file of tenants and the hashes of their keys; with it tenants are on",
    )
    salt_secret_file: str | None = Field(
        default=None, description="file with the secret that salts are derived from; else ROUTER_SALT_SECRET holds it"
    )
    salt_overlap_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=3600.0,
        description="over how long tenants move to a new secret, so that not all caches get cold",
    )
    shared_paths: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
        default=(), description="paths served to tenants although they take no cache salt"
    )


class JsonWebTokens(Section):
    key_file: str | None = Field(
        default=None,
        description="file with the public key (PEM, JWKS) or HS secret of tokens; with it tenants are on",
    )
    algorithms: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
        default=("RS256",), description="accepted signatures, of one family: HS256, RS256, ES256, … (never none)"
    )
    issuer: str | None = Field(default=None, description="who must have issued a token")
    audience: str | None = Field(default=None, description="whom a token must be for")
    claim: str = Field(default="sub", description="the claim that names the tenant")


class Recording(Section):
    path: str | None = Field(
        default=None, description="file to which a trace without text is appended, for the simulator to read"
    )
    max_bytes: Count = Field(default=1024**3, description="size at which recording ends; nothing is rotated")


class Config(Section):
    """The whole of it. Made by `load`; a test may make one directly."""

    listen: Listen = Listen()
    admin: Admin = Admin()
    replicas: Annotated[tuple[ReplicaAddress, ...], BeforeValidator(parsed)] = Field(
        default=(),
        description="the replicas: URL, name=URL or host:port, or a table with name, url, weight, capacity_blocks,"
        " kv_events",
    )
    replica_key_env: VariableName | None = Field(
        default=None, description="environment variable that holds the replicas' API key; it replaces the client's"
    )
    replica_key_file: str | None = Field(default=None, description="file that holds the replicas' API key")
    policy: PolicyChoice = PolicyChoice()
    tokenizer: Tokenizer = Tokenizer()
    block_tokens: Count = Field(default=16, description="tokens in a block of the router's own index")
    kv_events: KvEvents = Field(
        default=AUTO,
        description="where replicas publish KV events: auto asks each, off, or tcp://*:PORT[,tcp://*:REPLAY_PORT]",
    )
    identity: Identities = Identities()
    timeouts: TimeLimits = TimeLimits()
    limits: Limits = Limits()
    health: HealthRules = HealthRules()
    log: Logging = Logging()
    record: Recording = Recording()
    tenants: TenantSettings = TenantSettings()
    jwt: JsonWebTokens = JsonWebTokens()
    drain_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=30.0, description="how long running requests may finish after SIGTERM"
    )

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        if self.listen.port and (self.listen.host, self.listen.port) == (self.admin.host, self.admin.port):
            raise ValueError(f"listen.port and admin.port are both {self.listen.port}; give them different ports")
        if self.replica_key_env and self.replica_key_file:
            raise ValueError("replica_key_env and replica_key_file are both set; keep one")
        return self

    def replica_key(self, environment: Mapping[str, str]) -> str | None:
        """The replicas' API key, read now; the only place where a secret enters."""
        if self.replica_key_file:
            try:
                key = Path(self.replica_key_file).read_text("utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                said = getattr(error, "strerror", None) or "it is not UTF-8 text"
                raise ConfigError(f"replica_key_file {self.replica_key_file!r} can't be read: {said}") from None
            told = f"the file {self.replica_key_file!r} that replica_key_file names"
        elif self.replica_key_env:
            key = environment.get(self.replica_key_env, "").strip()
            told = f"the environment variable {self.replica_key_env} that replica_key_env names"
        else:
            return None
        if not key or not key.isascii() or not key.isprintable():
            raise ConfigError(f"{told} is empty or unset, or holds characters no header may have")
        return key


def load(
    file: Path | None = None,
    sets: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, tuple[str, object]] | None = None,
) -> tuple[Config, dict[str, str]]:
    """The configuration, and where each value that is not a default came from.

    `flags` maps a setting to the flag that gave it and its value. Raises `ConfigError`, whose text names the setting.
    """
    origins: dict[str, str] = {}
    tree: dict[str, Any] = {}
    for origin, name, value in from_file(file, _SECTIONS):
        _put(tree, origins, origin, name, value)
    for origin, name, value in (*from_environment(environment or {}, _NAMES), *from_sets(sets)):
        _put(tree, origins, origin, name, _scalar(name, value))
    for name, (flag, value) in (flags or {}).items():
        _put(tree, origins, flag, name, value)
    try:
        return Config.model_validate(tree), origins
    except ValidationError as error:
        raise ConfigError("; ".join(_problems(error, origins))) from None


def fields(section: type[Section], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """The settings of a section by dotted name, sections within it included."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from fields(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name, field


_NAMES: tuple[str, ...] = tuple(name for name, _ in fields(Config))
_SECTIONS = frozenset(name.partition(".")[0] for name in _NAMES if "." in name)
_OPTIONAL = frozenset(name for name, field in fields(Config) if type(None) in get_args(field.annotation))


def _scalar(name: str, text: object) -> object:
    """What a text from the environment or `--set` stands for; its type is settled by the setting."""
    if not isinstance(text, str):
        return text
    if name in _OPTIONAL and text.lower() in ("none", ""):
        return None
    if name.startswith("policy.settings"):
        try:
            return tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            return text
    return text


def _put(tree: dict[str, Any], origins: dict[str, str], origin: str, name: str, value: object) -> None:
    if name.startswith("policy.settings."):
        _put_policy_setting(tree, origins, origin, name, value)
        return
    if name in _SECTIONS:
        raise ConfigError(f"{name} ({origin}) is a group of settings: {', '.join(_within(name))}")
    if name not in _NAMES:
        raise ConfigError(f"unknown setting {name[:100]!r} ({origin}){did_you_mean(name, _NAMES)}")
    section, _, member = name.rpartition(".")
    (tree.setdefault(section, {}) if section else tree)[member] = value
    origins[name] = origin


def _put_policy_setting(tree: dict[str, Any], origins: dict[str, str], origin: str, name: str, value: object) -> None:
    held = tree.setdefault("policy", {}).get("settings")
    tree["policy"]["settings"] = {**(held if isinstance(held, dict) else {}), name.split(".", 2)[2]: value}
    origins["policy.settings"] = origin


def _within(section: str) -> list[str]:
    return [name for name in _NAMES if name.startswith(section + ".")]


def _problems(error: ValidationError, origins: Mapping[str, str]) -> Iterator[str]:
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        name = ".".join(str(part) for part in problem["loc"])
        said = problem["msg"].removeprefix("Value error, ")
        if not name:
            yield said
            continue
        known = next((known for known in _NAMES if name == known or name.startswith(known + ".")), name)
        came = f" ({origins[known]})" if known in origins else ""
        yield f"{name}{came}: {said[:1].lower()}{said[1:]}"
