"""WEKA's coding-agent sessions (callanjfox/kv-cache-tester): a file or line is a session with its requests.

    session     id, block_size (64), hash_id_scope, tool_tokens, system_tokens, requests
    request     t (s from the session's start), type, in, out, hash_ids or hash_runs, api_time, think_time, ttft
    sub-agent   type "subagent", t, requests of its own whose times count from its start

The one rule: ids are the session's own unless its scope says global. `hash_runs` are inclusive ranges of ids. Not
here: when sessions begin, which no file of this kind says.
"""

from collections.abc import Iterable, Iterator

from sim.traces.format import Format, having, stateless
from sim.traces.hash_ids import ids_of
from sim.traces.rows import (
    BadRow,
    Item,
    Row,
    listed,
    name_of,
    objects,
    seconds,
    seconds_or_none,
    tokens,
    tokens_or_none,
)
from sim.traces.runs import Runs, merged


def _read(item: Item) -> Iterable[Row]:
    session = name_of(item, "id")
    if session is None:
        raise BadRow("id is missing")
    scope = "" if item.get("hash_id_scope") == "global" else session
    yield from _agent(item, session, scope, tokens_or_none(item, "block_size") or 64, began_s=0.0)


def _agent(agent: Item, session: str, scope: str, block_tokens: int, began_s: float) -> Iterator[Row]:
    head = (tokens_or_none(agent, "tool_tokens") or 0) + (tokens_or_none(agent, "system_tokens") or 0)
    for request in objects(agent, "requests"):
        at_s = began_s + seconds(request, "t")
        if request.get("type") == "subagent":
            yield from _agent(request, f"{session}/{name_of(request, 'agent_id')}", scope, block_tokens, at_s)
            continue
        prompt = tokens(request, "in")
        if not prompt:
            continue
        yield Row(
            time_s=at_s,
            prompt_tokens=prompt,
            output_tokens=tokens(request, "out"),
            runs=_ids(request),
            scope=scope,
            block_tokens=block_tokens,
            head_tokens=head,
            session=session,
            model=name_of(request, "model") or "",
            think_s=seconds_or_none(request, "think_time"),
            took_s=seconds_or_none(request, "api_time"),
            ttft_s=seconds_or_none(request, "ttft"),
        )
        head = 0


def _ids(request: Item) -> Runs | None:
    if request.get("hash_runs") is None:
        return ids_of(request)
    try:
        return merged(listed(request, "hash_runs"))
    except (ValueError, TypeError):
        raise BadRow("hash_runs holds something that is no range of ids") from None


FORMATS = (Format("weka", having("id", "block_size", "requests"), stateless(_read), 64, sessions_begin_at_zero=True),)
