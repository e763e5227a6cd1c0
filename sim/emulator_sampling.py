"""How a request wants its answer made and shown: where it stops, whether the prompt is echoed, which logprobs it wants.

The one rule: what vLLM refuses is refused here in its words. A request that wants logprobs of its prompt must compute
all of it and so cannot read the prefix cache.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sim.emulator_refusals import Refusal, invalid

_MOST_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class Sampling:
    """`logprobs` and `prompt_logprobs` are alternatives wanted for each token; None wants none at all."""

    stops: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    shows_stop: bool = False
    echo: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    @property
    def reads_cache(self) -> bool:
        return self.prompt_logprobs is None

    @property
    def shows_prompt(self) -> bool:
        return self.echo or self.prompt_logprobs is not None


@dataclass(frozen=True, slots=True)
class End:
    """Why an answer ended, "length" or "stop", and at which of the request's own stops, if it was one."""

    why: str
    at: str | int | None = None


def read_sampling(body: Mapping[str, Any], *, chat: bool, stop_field: str = "stop") -> Sampling:
    """The sampling a body asks for; a chat counts its logprobs apart from wanting them."""
    temperature = body.get("temperature")
    if isinstance(temperature, int | float) and temperature < 0:
        value = float(temperature)
        message = f"temperature must be non-negative, got {value}. (parameter=temperature, value={value})"
        raise Refusal(400, message, param="temperature")
    echo = not chat and bool(body.get("echo"))
    logprobs = _chat_logprobs(body) if chat else _alternatives(body, "logprobs")
    of_prompt = _alternatives(body, "prompt_logprobs")
    if of_prompt and body.get("stream"):
        raise Refusal(400, "`prompt_logprobs` are not available when `stream=True`.", param="prompt_logprobs")
    if of_prompt is None and echo:
        of_prompt = logprobs
    return Sampling(
        stops=_stops(body, stop_field),
        stop_ids=_stop_ids(body),
        shows_stop=bool(body.get("include_stop_str_in_output")),
        echo=echo,
        logprobs=logprobs,
        prompt_logprobs=of_prompt,
    )


def cut(ids: list[int], texts: list[str], sampling: Sampling) -> tuple[int, int, End] | None:
    """Where the first stop ends an answer: tokens made, characters shown, and the end. None when there is no stop."""
    if not sampling.stops and not sampling.stop_ids:
        return None
    said = ""
    longest = max(map(len, sampling.stops), default=0)
    for made, (token, text) in enumerate(zip(ids, texts, strict=True), 1):
        before = len(said)
        said += text
        if token in sampling.stop_ids:
            return made, len(said) if sampling.shows_stop else before, End("stop", token)
        start = max(0, before - longest + 1)
        found = [(at, stop) for stop in sampling.stops if (at := said.find(stop, start)) >= 0]
        if found:
            at, stop = min(found)
            return made, at + len(stop) if sampling.shows_stop else at, End("stop", stop)
    return None


def _stops(body: Mapping[str, Any], field: str) -> tuple[str, ...]:
    given = body.get(field)
    stops = [given] if isinstance(given, str) else given or []
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise invalid("string_type", f"body.{field}", "Input should be a valid string or a list of strings", given)
    if "" in stops:
        raise Refusal(400, "stop cannot contain an empty string.")
    return tuple(stops)


def _stop_ids(body: Mapping[str, Any]) -> frozenset[int]:
    given = body.get("stop_token_ids") or []
    if not isinstance(given, list) or not all(isinstance(token, int) for token in given):
        raise invalid("list_type", "body.stop_token_ids", "Input should be a valid list of token ids", given)
    return frozenset(given)


def _chat_logprobs(body: Mapping[str, Any]) -> int | None:
    top = _alternatives(body, "top_logprobs")
    if body.get("logprobs"):
        return top or 0
    if top:
        raise Refusal(400, "when using `top_logprobs`, `logprobs` must be set to true.", param="top_logprobs")
    return None


def _alternatives(body: Mapping[str, Any], field: str) -> int | None:
    given = body.get(field)
    if given is None:
        return None
    if not isinstance(given, int):
        raise invalid("int_type", f"body.{field}", "Input should be a valid integer", given)
    if not 0 <= given <= _MOST_LOGPROBS:
        message = f"Requested {field} of {given}, which is not between 0 and max allowed: {_MOST_LOGPROBS}"
        raise Refusal(400, message, param=field)
    return int(given)
