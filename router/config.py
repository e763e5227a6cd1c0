"""The whole configuration, and where each of its values came from.

Values come from a TOML file, then the environment (`ROUTER_LISTEN__PORT`), then `--set key=value`, then dedicated
flags; a later one wins and the origin of each is kept. The one rule: a secret is never a value here, only the name of
an environment variable or file that holds it. Not here: the settings of each section (`sections`), how replicas are
written (`addresses`), tables (`settings`).
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from router.addresses import parsed
from router.errors import ConfigError
from router.kv_sources import AUTO
from router.sections import (
    Admin,
    Admission,
    ClientKey,
    Count,
    CrossOrigin,
    DoctorRules,
    HealthRules,
    Identities,
    JsonWebTokens,
    KvEvents,
    Limits,
    Listen,
    Logging,
    PolicyChoice,
    RankSetting,
    Recording,
    ReplicaTls,
    RetryRules,
    RouteBy,
    Seconds,
    Section,
    TenantSettings,
    TimeLimits,
    Tokenizer,
    TracingSettings,
    VariableName,
)
from router.sections import ReplicaAddress as ReplicaAddress
from router.sources import did_you_mean, from_environment, from_file, from_sets


class Config(Section):
    """The whole of it. Made by `load`; a test may make one directly."""

    listen: Listen = Listen()
    admin: Admin = Admin()
    cors: CrossOrigin = CrossOrigin()
    replicas: Annotated[tuple[ReplicaAddress, ...], BeforeValidator(parsed)] = Field(
        default=(),
        description="the replicas: URL, name=URL, host:port or dns:NAME:PORT (all its addresses), or a table with"
        " name, url, weight, capacity_blocks, kv_events, tls, client_key, data_parallel_ranks",
    )
    replicas_file: str | None = Field(
        default=None, description="file that is watched and lists more replicas: one a line, or a JSON list"
    )
    data_parallel_ranks: RankSetting = Field(
        default="off",
        description="engines behind each replica's port, every one with a cache of its own: auto (its metrics tell),"
        " off, or their number",
    )
    dns_s: Seconds = Field(default=5.0, description="pause between two look-ups of a dns:NAME:PORT replica")
    replica_tls: ReplicaTls = ReplicaTls()
    replica_key_env: VariableName | None = Field(
        default=None, description="environment variable that holds the replicas' API key; it replaces the client's"
    )
    replica_key_file: str | None = Field(default=None, description="file that holds the replicas' API key")
    client_key: ClientKey = Field(
        default="auto",
        description="what becomes of a client's Authorization: forward, drop, or auto: the replicas' key replaces it,"
        " where there is one, and tenants' keys stop here",
    )
    policy: PolicyChoice = PolicyChoice()
    tokenizer: Tokenizer = Tokenizer()
    block_tokens: Count = Field(default=16, description="tokens in a block of the router's own index")
    kv_events: KvEvents = Field(
        default=AUTO,
        description="where replicas publish KV events: auto asks each, off, or tcp://*:PORT[,tcp://*:REPLAY_PORT]",
    )
    identity: Identities = Identities()
    timeouts: TimeLimits = TimeLimits()
    retries: RetryRules = RetryRules()
    admission: Admission = Admission()
    limits: Limits = Limits()
    health: HealthRules = HealthRules()
    log: Logging = Logging()
    record: Recording = Recording()
    doctor: DoctorRules = DoctorRules()
    route_by: RouteBy = Field(
        default="path",
        description="what a route is in /hits, /doctor and router_hit_*: path, model, header:NAME, or template, by the "
        "lines that prompts have in common",
    )
    tracing: TracingSettings = TracingSettings()
    tenants: TenantSettings = TenantSettings()
    jwt: JsonWebTokens = JsonWebTokens()
    drain_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=30.0, description="how long running requests may finish after SIGTERM, or when their replica drains"
    )
    unready_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.0, description="how long /health says 503 after SIGTERM before new connections are refused"
    )

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        if self.listen.port and (self.listen.host, self.listen.port) == (self.admin.host, self.admin.port):
            raise ValueError(f"listen.port and admin.port are both {self.listen.port}; give them different ports")
        if self.replica_key_env and self.replica_key_file:
            raise ValueError("replica_key_env and replica_key_file are both set; keep one")
        forwarding = "forward" in (self.client_key, *(replica.client_key for replica in self.replicas))
        if forwarding and (self.tenants.file or self.jwt.key_file):
            raise ValueError("client_key = forward would hand tenants' keys to replicas; leave it out, or tenants off")
        if self.listen.client_ca_file and not self.listen.cert_file:
            raise ValueError("listen.client_ca_file is set without listen.cert_file; without TLS it checks nobody")
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
