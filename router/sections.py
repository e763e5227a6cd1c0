"""The settings by section, each written once: its name, type, default and description.

The one rule: a secret is never a value here, only the name of an environment variable or file that holds it. Not here:
the whole of it, and where values come from (`config`).
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from router.kv_sources import AUTO, OFF, configured

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
RankSetting = Annotated[str, BeforeValidator(str), Field(pattern=r"^(auto|off|[1-9]|[1-5][0-9]|6[0-4])$")]
Origin = Annotated[str, Field(pattern=r"^(\*|[a-z][a-z0-9+.-]*://[^\s/*A-Z]+)$")]
Origins = Annotated[tuple[Origin, ...], BeforeValidator(_listed)]
"""As browsers write them: scheme, host and port, in lower case, nothing behind."""
Source = Annotated[str, Field(pattern=r"^(header|body):\S+$")]
Sources = Annotated[tuple[Source, ...], BeforeValidator(_listed)]


class Section(BaseModel):
    """A table of settings: frozen, and closed to names it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Listen(Section):
    host: str = Field(default="127.0.0.1", description="address clients connect to; 0.0.0.0 for every interface")
    port: Port = Field(default=8080, description="port clients connect to; 0 takes any free one")
    cert_file: str | None = Field(
        default=None, description="PEM file with the certificate (and its chain) shown to clients; with it, TLS is on"
    )
    key_file: str | None = Field(default=None, description="PEM file with its key, where cert_file has none")
    client_ca_file: str | None = Field(
        default=None, description="PEM file of authorities; only clients with a certificate of theirs are let in"
    )


class Admin(Section):
    host: str = Field(
        default="127.0.0.1", description="address of the page, /metrics, /state and /explain; keep it away from clients"
    )
    port: Port = Field(
        default=9090, description="port of the page, /metrics, /state and /explain; 0 takes any free one"
    )
    key_file: str | None = Field(
        default=None,
        description="file with a key that changes must bring; without it they are made over loopback only",
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(),
        description="names with a dot the admin port may be called by, beside addresses and admin.host: *.NAME for all "
        "below, * for any",
    )


class CrossOrigin(Section):
    allow_origins: Origins = Field(
        default=(),
        description="web pages that may read answers: https://chat.example.com, … or *; none: what replicas say passes",
    )


class ReplicaTls(Section):
    ca_file: str | None = Field(
        default=None, description="PEM file of authorities that vouch for replicas; the system's when not given"
    )
    cert_file: str | None = Field(default=None, description="PEM file with the certificate shown to replicas (mTLS)")
    key_file: str | None = Field(default=None, description="PEM file with its key, where cert_file has none")
    name: str | None = Field(
        default=None, description="the name that a replica's certificate must show, if not that of its address"
    )


ClientKey = Literal["auto", "forward", "drop"]


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
    tls: ReplicaTls | None = Field(default=None, description="TLS towards it, if not as replica_tls says")
    client_key: ClientKey | None = Field(
        default=None, description="what becomes of a client's key on its way there, if not as client_key says"
    )
    data_parallel_ranks: RankSetting | None = Field(
        default=None, description="engines behind it, if not as data_parallel_ranks says: auto, off or their number"
    )


class PolicyChoice(Section):
    name: str = Field(default="prefix-aware", description="a name that `router policies` lists, or module:attribute")
    settings: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of the policy")
    seed: int = Field(default=0, description="seed of whatever a policy leaves to chance")
    shadow: str | None = Field(
        default=None, description="a second policy that decides beside the live one, only to be compared with it"
    )


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
        default=600.0, description="longest silence in the middle of a reply; none is no limit"
    )
    client_head_s: Seconds | None = Field(
        default=30.0, description="how long a client may take over the head of a request; none is no limit"
    )
    client_body_idle_s: Seconds | None = Field(
        default=30.0, description="longest silence of a client in the middle of a request's body; none is no limit"
    )
    client_keep_s: Seconds | None = Field(
        default=3600.0, description="how long a connection without a request is kept; none is no limit"
    )
    hung_s: Seconds | None = Field(
        default=2.0,
        description="silence to everybody, also to two questions for its health, after which a replica with requests "
        "counts as hung and others get them; one that was slow to answer lately has up to 5 times as long; none is "
        "never",
    )


class RetryRules(Section):
    most: Annotated[int, Field(ge=0)] = Field(
        default=2, description="how often a request is sent to another replica while its client has got nothing"
    )
    budget_fraction: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.2, description="retries as a share of recent requests, beyond a few that are always allowed"
    )


class Admission(Section):
    max_pending_tokens: Count | None = Field(
        default=None,
        description="uncached prompt tokens that may wait for a first token on one replica; further requests queue",
    )
    max_in_flight: Count | None = Field(
        default=None, description="requests one replica may have; further ones queue; none is no limit"
    )
    max_queue_requests: Count = Field(default=1024, description="requests that may queue; beyond it is 429")
    max_queue_tokens: Count = Field(default=4_000_000, description="prompt tokens that may queue; beyond it is 429")
    max_wait_s: Seconds = Field(default=30.0, description="longest time in the queue; then it is 503")
    fair_quantum_tokens: Count | None = Field(
        default=None,
        description="uncached prompt tokens each tenant may send in a round of the queue; none: by arrival",
    )
    timeout_header: str = Field(
        default="x-request-timeout",
        description="header in which a client says for how many seconds it waits for the first byte",
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
    slow_start_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=10.0, description="how long a replica that joins takes to get its full weight; 0 is at once"
    )


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


class TracingSettings(Section):
    endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://\S+$",
        description="URL of a collector that takes OpenTelemetry spans over OTLP/HTTP: http://host:4318",
    )


RouteBy = Annotated[str, Field(pattern=r"^(path|model|template|header:\S+)$")]


class DoctorRules(Section):
    on: bool = Field(
        default=True, description="whether a sample of prompts is looked at for what breaks their prefix: GET /doctor"
    )
    keep_text: bool = Field(
        default=False, description="whether the doctor keeps the last 256 bodies in memory, to look closer at them"
    )


class Recording(Section):
    path: str | None = Field(
        default=None, description="file to which a trace without text is appended, for the simulator to read"
    )
    max_bytes: Count = Field(default=1024**3, description="size at which recording ends; nothing is rotated")
