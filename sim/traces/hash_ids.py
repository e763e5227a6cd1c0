"""Traces that name a prompt's blocks by ids: Mooncake and its relatives, Bailian, ServeGen, Dynamo.

    Mooncake        timestamp (ms), input_length, output_length, hash_ids of 512 tokens (kvcache-ai/Mooncake, FAST25)
    aiperf          + session_id, delay (ms); a text, messages or payload may stand for the ids (aiperf 0.13)
    Bailian         chat_id, parent_chat_id, timestamp (s), hash_ids of 16 tokens (alibaba-edu/qwen-bailian-usagetraces)
    ServeGen        request_id, input_length, hash_ids of 16 tokens, neither times nor answers
    Dynamo          a header with `schema`, then request_id, session_id, not_before_ms, dependencies, hash_ids

The one rule: an id stands for a whole prefix. Not here: what a partial last block is worth (`table`).
"""

from collections.abc import Iterable

from sim.traces.format import Format, Reader, Reading, having
from sim.traces.rows import (
    Ask,
    BadRow,
    Item,
    LeftOut,
    Row,
    listed,
    members,
    members_or_none,
    name_of,
    objects,
    required_name,
    seconds,
    seconds_or_none,
    tokens,
    tokens_or_none,
)
from sim.traces.runs import Runs, count_of, cut, merged, runs_of
from sim.traces.texts import CHAT, COMPLETIONS


def ids_of(item: Item, name: str = "hash_ids") -> Runs | None:
    """A row's block ids; None when it has no such member. Raises `BadRow`."""
    if item.get(name) is None:
        return None
    try:
        return runs_of(listed(item, name))
    except ValueError:
        raise BadRow(f"{name} holds something that is no whole number") from None


class Mooncake:
    """Mooncake rows with aiperf's additions; a session's later rows may hold only the ids that are new."""

    def __init__(self, reading: Reading) -> None:
        self._unit_s = reading.unit_s("ms")
        self._block_tokens = reading.block_tokens or 512
        self._before: dict[str, Runs] = {}

    def __call__(self, item: Item) -> Iterable[Row]:
        session = name_of(item, "session_id")
        time_s = seconds_or_none(item, "timestamp", self._unit_s)
        delay_s = seconds_or_none(item, "delay", 1e-3)
        ask = _ask(item)
        if ask is None and "input_length" not in item:
            raise BadRow("neither input_length nor text_input, messages or payload")
        prompt = None if ask else tokens(item, "input_length")
        if prompt == 0:
            raise LeftOut("the prompt is empty")
        runs = None
        if prompt is not None and (runs := ids_of(item)) is not None and session is not None:
            runs = self._whole(session, runs, prompt)
        yield Row(
            time_s=time_s,
            prompt_tokens=prompt,
            output_tokens=tokens_or_none(item, "output_length", "max_tokens"),
            runs=runs,
            ask=ask,
            session=session,
            model=name_of(item, "model") or "",
            think_s=delay_s,
        )

    def _whole(self, session: str, runs: Runs, prompt: int) -> Runs:
        missing = prompt // self._block_tokens - count_of(runs)
        if missing > 0:
            before = self._before.get(session, ())
            runs = merged([*cut(before, missing + (prompt % self._block_tokens > 0)), *runs])
        self._before[session] = runs
        return runs


def _ask(item: Item) -> Ask | None:
    if "payload" in item:
        body = members(item, "payload")
        return Ask(CHAT if "messages" in body else COMPLETIONS, body)
    if "messages" in item:
        return Ask(CHAT, {name: item[name] for name in ("messages", "tools") if item.get(name) is not None})
    if "text_input" in item:
        return Ask(COMPLETIONS, {"prompt": item["text_input"]})
    return None


class Bailian:
    """Bailian rows; a conversation is the chain of `parent_chat_id` up to a row that has none."""

    def __init__(self, reading: Reading) -> None:
        self._unit_s = reading.unit_s("s")
        self._roots: dict[str | None, str] = {}

    def __call__(self, item: Item) -> Iterable[Row]:
        chat = required_name(item, "chat_id")
        session = self._roots.get(name_of(item, "parent_chat_id"), chat)
        self._roots[chat] = session
        yield Row(
            time_s=seconds(item, "timestamp", self._unit_s),
            prompt_tokens=tokens(item, "input_length"),
            output_tokens=tokens(item, "output_length"),
            runs=ids_of(item),
            session=session,
            route=name_of(item, "type") or "",
        )


def _servegen(_: Reading) -> Reader:
    def read(item: Item) -> Iterable[Row]:
        yield Row(None, tokens(item, "input_length"), tokens_or_none(item, "output_length"), runs=ids_of(item))

    return read


class Dynamo:
    """`dynamo.agentic_mooncake` rows: a request may wait for others of its session."""

    def __init__(self, reading: Reading) -> None:
        self._block_tokens = reading.block_tokens
        self._local = False

    def __call__(self, item: Item) -> Iterable[Row]:
        if "schema" in item:
            self._block_tokens = self._block_tokens or tokens_or_none(item, "block_size")
            self._local = item.get("hash_id_scope") == "local"
            return
        session = name_of(item, "session_id", "play_id")
        others = objects(item, "dependencies") if item.get("dependencies") else ()
        waits = [seconds_or_none(told, "delay_ms", 1e-3) or 0.0 for told in others]
        yield Row(
            time_s=seconds_or_none(item, "not_before_ms", 1e-3),
            prompt_tokens=tokens(item, "input_length"),
            output_tokens=tokens(item, "output_length"),
            runs=ids_of(item),
            scope=session or "" if self._local else "",
            block_tokens=self._block_tokens,
            session=session,
            think_s=max(waits) if waits else None,
        )


def _recorder(_: Reading) -> Reader:
    def read(item: Item) -> Iterable[Row]:
        event = members(item, "event") if "event" in item else item
        if event.get("event_type") != "request_end":
            raise LeftOut("an event that ends no request")
        request = members(event, "request")
        replay = members(request, "replay")
        context = members_or_none(event, "agent_context") or members_or_none(request, "agent_context")
        yield Row(
            time_s=seconds(request, "request_received_ms", 1e-3),
            prompt_tokens=tokens(replay, "input_length"),
            output_tokens=tokens(request, "output_tokens"),
            runs=ids_of(replay, "input_sequence_hashes"),
            block_tokens=tokens_or_none(replay, "trace_block_size"),
            session=name_of(context, "session_id"),
            model=name_of(request, "model") or "",
            took_s=seconds_or_none(request, "total_time_ms", 1e-3),
            ttft_s=seconds_or_none(request, "ttft_ms", 1e-3),
            cached_tokens=tokens_or_none(request, "cached_tokens"),
        )

    return read


def _aiperf(item: Item) -> bool:
    texts = [name in item for name in ("input_length", "text_input", "messages", "payload")]
    return sum(texts) == 1 and ("timestamp" in item or "delay" in item or "session_id" in item) and "id" not in item


FORMATS = (
    Format("dynamo-agentic", lambda item: item.get("schema") == "dynamo.agentic_mooncake", Dynamo, 512),
    Format("dynamo-recorder", lambda item: "dynamo.request.trace" in str(item.get("schema")), _recorder, 16),
    Format("bailian", having("chat_id", "hash_ids", "input_length"), Bailian, 16),
    Format("servegen", having("request_id", "hash_ids", "img_ids"), _servegen, 16),
    Format("mooncake", having("timestamp", "input_length", "hash_ids"), Mooncake, 512),
    Format("aiperf", _aiperf, Mooncake, 512),
)
