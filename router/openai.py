"""What the router reads in a request body, and which paths it knows. It reads; it never changes a byte.

Paths are those of vLLM 0.32's API server. Not here: prompts (`router.prompts`), who asks (`router.identity`).
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from policies.values import Value
from router.errors import BadRequest, NotServed
from router.http.messages import Call
from router.prompt_bodies import BYTES_PER_TOKEN, NOT_RUN, POOLING, are_ids

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"

JSON_ROUTES: Final = frozenset(
    [
        CHAT,
        COMPLETIONS,
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/score",
        "/v2/rerank",
        "/v2/embed",
        "/rerank",
        "/score",
        "/pooling",
        "/classify",
        "/tokenize",
        "/detokenize",
    ]
)
"""Paths whose body must be a JSON object; a body that is not one is answered 400 here."""

FORM_ROUTES: Final = frozenset(["/v1/audio/transcriptions", "/v1/audio/translations"])
"""Paths whose body is a multipart form with a `model` field."""

ROUTES: Final = tuple(sorted(JSON_ROUTES | FORM_ROUTES | {"/v1/audio/speech", "/v1/models"}))
"""Every path the router knows by name, for metric labels."""

CONTROL: Final = frozenset(
    [
        "/metrics",
        "/reset_prefix_cache",
        "/reset_mm_cache",
        "/reset_encoder_cache",
        "/sleep",
        "/wake_up",
        "/is_sleeping",
        "/pause",
        "/resume",
        "/is_paused",
        "/collective_rpc",
        "/server_info",
        "/start_profile",
        "/stop_profile",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/scale_elastic_ep",
        "/is_scaling_elastic_ep",
        "/init_weight_transfer_engine",
        "/update_weights",
        "/kv_event_sources",
    ]
)
"""Paths that steer or expose one engine: sent to a replica of the router's choosing they do harm, so they never are."""

_FORM_MODEL: Final = re.compile(rb'name="model"(?:\r\n[^\r\n]+)*\r\n\r\n([^\r\n]{1,512})\r\n')


class Ask(Value, frozen=True):
    """What one body asks for, as far as routing it needs to know."""

    route: str
    body: Mapping[str, Any] | None
    """The parsed JSON object; None when the body is none, and then there is no prefix information."""
    model: str | None
    max_output_tokens: int | None
    stream: bool
    salt: str = ""
    """The client's own `cache_salt`; empty without one."""


def asked(call: Call) -> Ask:
    """Read a call. Raises `BadRequest` for a known path whose body is no JSON object, `NotServed` for control paths."""
    route = call.path
    if "/." in route or "//" in route:
        _plain(route)
    if route in CONTROL or (route.endswith("/") and route.rstrip("/") in CONTROL):
        raise NotServed(
            f"{route} steers one engine and is not passed on; call the replica itself"
            + (" (the router's own metrics are on its admin port)" if route == "/metrics" else "")
        )
    body: dict[str, Any] | None
    if route in JSON_ROUTES and call.method == b"POST":  # an OPTIONS or HEAD brings none
        body = _object(call.body)
    elif route in FORM_ROUTES:
        found = _FORM_MODEL.search(call.body)
        return Ask(route, None, found[1].decode("utf-8", "replace").strip() if found else None, None, False)
    else:
        body = _object_or_none(call.body)
    if body is None:
        return Ask(route, None, None, None, False)
    model, salt = body.get("model"), body.get("cache_salt")
    return Ask(
        route,
        body,
        model if isinstance(model, str) and model else None,
        _max_output_tokens(body),
        body.get("stream") is True,
        salt if isinstance(salt, str) else "",
    )


def reads_cache(route: str, body: Mapping[str, Any] | None) -> bool:
    """Whether the engine looks this prompt up in its prefix cache (vLLM 0.32); what it computes it stores anyway.

    Log probabilities of a prompt need all of it computed; with `echo` a completion's own are of the prompt too.
    """
    if body is None or route in POOLING or route in NOT_RUN:
        return False
    sampling = body.get("sampling_params")  # of /inference/v1/generate
    asked_of = [body, sampling] if isinstance(sampling, Mapping) else [body]
    if any(part.get("prompt_logprobs") is not None for part in asked_of):
        return False
    return not (route == COMPLETIONS and body.get("echo") is True and body.get("logprobs") is not None)


def samples(body: Mapping[str, Any]) -> int:
    """How many replies a body asks for. Each of several is a request of the engine's, with a look-up of its own."""
    sampling = body.get("sampling_params")
    wanted = sampling.get("n") if isinstance(sampling, Mapping) else body.get("n")
    return wanted if isinstance(wanted, int) and wanted > 1 else 1


class Batch(Value, frozen=True):
    """Several prompts in one body. The engine answers them with one summed usage, and each is looked up by itself."""

    body: Mapping[str, Any]
    """The body with its longest prompt alone, the first of equals: this one's blocks stand for the batch."""
    other_tokens: int
    """Token ids of the other prompts."""
    other_chars: int
    """Characters of the others that are text."""

    def tokens(self, longest_tokens: int) -> int:
        """Prompt tokens of the whole batch; the others' text is taken to be as dense as the longest prompt's."""
        prompt = self.body["prompt"]
        per_char = longest_tokens / len(prompt) if isinstance(prompt, str) else 1 / BYTES_PER_TOKEN
        return longest_tokens + self.other_tokens + round(self.other_chars * per_char)


def batched(route: str, body: Mapping[str, Any]) -> Batch | None:
    """The batch of a completion with more than one prompt; None for one prompt, and for what is no list of prompts."""
    given = body.get("prompt") if route == COMPLETIONS else None
    if not isinstance(given, list) or len(given) < 2:
        return None
    if not all((isinstance(prompt, str) and prompt) or are_ids(prompt) for prompt in given):
        return None
    sizes = [len(prompt) if isinstance(prompt, str) else len(prompt) * BYTES_PER_TOKEN for prompt in given]
    longest = sizes.index(max(sizes))
    others = [prompt for place, prompt in enumerate(given) if place != longest]
    return Batch(
        {**body, "prompt": given[longest]},
        sum(len(prompt) for prompt in others if not isinstance(prompt, str)),
        sum(len(prompt) for prompt in others if isinstance(prompt, str)),
    )


def _plain(route: str) -> None:
    """A path that a server behind this one may read as another one is refused: which is served is decided here."""
    if "//" in route or any(segment in (".", "..") for segment in route.split("/")):
        raise BadRequest("the path has empty or dot segments; send it without them")


def _object(raw: bytes) -> dict[str, Any]:
    if not raw:
        raise BadRequest("the body is empty; send a JSON object")
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        # `error.doc` holds the client's text; only what is wrong and where may be said.
        raise BadRequest(f"the body is not valid JSON: {error.msg} (byte {error.pos} of {len(raw)})") from None
    if not isinstance(body, dict):
        raise BadRequest(f"the body is a JSON {_json_type(body)}; send an object")
    return body


def _object_or_none(raw: bytes) -> dict[str, Any] | None:
    if raw.lstrip()[:1] != b"{":
        return None
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return body if isinstance(body, dict) else None


def _json_type(value: object) -> str:
    names = {list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")


def _max_output_tokens(body: Mapping[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        value = body.get(name)
        if type(value) is int and value >= 0:
            return value
    return None
