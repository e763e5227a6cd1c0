"""Files of request bodies: OpenAI batches, ShareGPT, vLLM's custom sets, recorded payloads and conversations.

    OpenAI batch    custom_id, method, url, body; usage and answers are in the batch's output file
    ShareGPT        id, conversations of {from, value}; every answer is a request of its own
    vLLM custom     prompt, optionally output_tokens (vLLM 0.32, `vllm bench serve --dataset-name custom`)
    conversations   id, messages: OpenAI chats, every answer a request (vLLM `benchmarks/multi_turn`)
    payloads        one request body a line, or {session_id, payloads} (aiperf's raw payloads and inputs.json)

The one rule: none of them knows a time. Not here: how text becomes tokens (`texts`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sim.traces.files import items
from sim.traces.format import Format, Reader, Reading, having, stateless
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
    tokens,
    tokens_or_none,
)
from sim.traces.texts import CHAT, COMPLETIONS, text_of


def cached_tokens_of(usage: Item) -> int | None:
    """Cached prompt tokens in a usage object of OpenAI's kind."""
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    return tokens_or_none(details, "cached_tokens") if isinstance(details, Mapping) else None


def answer_of(body: Item) -> str | None:
    """The text of the first choice of a reply; None when it has none."""
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(first, Mapping):
        return None
    message = first.get("message")
    told = message.get("content") if isinstance(message, Mapping) else first.get("text")
    return text_of(told) if told else None


class Batch:
    """The input file of a batch, with the output file's usage and answers by `custom_id` where that file is given."""

    def __init__(self, reading: Reading) -> None:
        self._replies: dict[str, Item] = {}
        if reading.answers is not None:
            for _, item in items(reading.answers):
                if isinstance(item, Mapping) and (body := _reply(item)) is not None:
                    self._replies[str(item.get("custom_id"))] = body

    def __call__(self, item: Item) -> Iterable[Row]:
        body = members(item, "body")
        reply = self._replies.get(str(item.get("custom_id")), {})
        usage = members_or_none(reply, "usage")
        yield Row(
            time_s=None,
            prompt_tokens=tokens_or_none(usage, "prompt_tokens", "input_tokens"),
            output_tokens=tokens_or_none(usage, "completion_tokens", "output_tokens"),
            ask=Ask(name_of(item, "url") or CHAT, body, answer_of(reply)),
            route=name_of(item, "url") or "",
            user=name_of(body, "user"),
            model=name_of(body, "model") or "",
            cached_tokens=cached_tokens_of(usage),
        )


def _reply(item: Item) -> Item | None:
    response = item.get("response")
    body = response.get("body") if isinstance(response, Mapping) else None
    return body if isinstance(body, Mapping) and isinstance(body.get("usage"), Mapping) else None


def _batch_output(item: Item) -> Iterable[Row]:
    body = _reply(item)
    if body is None:
        raise LeftOut("a request that failed")
    usage = body["usage"]
    yield Row(
        time_s=None,
        prompt_tokens=tokens(usage, "prompt_tokens", "input_tokens"),
        output_tokens=tokens(usage, "completion_tokens", "output_tokens"),
        model=name_of(body, "model") or "",
        cached_tokens=cached_tokens_of(usage),
    )


_SPEAKERS = {"gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant", "human": "user"}


def _sharegpt(item: Item) -> Iterable[Row]:
    told = [turn for turn in listed(item, "conversations") if isinstance(turn, Mapping)]
    messages = [
        {"role": _SPEAKERS.get(str(turn.get("from")), str(turn.get("from"))), "content": turn.get("value")}
        for turn in told
    ]
    yield from _turns(messages, name_of(item, "id"), {})


def _conversation(item: Item) -> Iterable[Row]:
    shared = {"tools": item["tools"]} if item.get("tools") else {}
    yield from _turns(listed(item, "messages"), name_of(item, "id", "conversation_id"), shared)


def _turns(messages: Sequence[Any], session: str | None, shared: Item) -> Iterator[Row]:
    """A request for every answer of a conversation; what an assistant said unasked at its start is left out."""
    if not all(isinstance(message, Mapping) for message in messages):
        raise BadRow("a message is no object")
    asked = False
    for place, message in enumerate(messages):
        if message.get("role") != "assistant":
            asked = True
        elif asked:
            body = {"messages": list(messages[:place]), **shared}
            yield Row(None, None, None, ask=Ask(CHAT, body, text_of(message.get("content"))), session=session)


def _custom(item: Item) -> Iterable[Row]:
    ask = Ask(COMPLETIONS, {"prompt": item.get("prompt")})
    yield Row(None, None, tokens_or_none(item, "output_tokens"), ask=ask)


def _payload(item: Item) -> Iterable[Row]:
    yield _asked(item, name_of(item, "session_id"))


def _payloads(item: Item) -> Iterable[Row]:
    for body in objects(item, "payloads"):
        yield _asked(body, name_of(item, "session_id"))


def _asked(body: Item, session: str | None) -> Row:
    route = CHAT if "messages" in body else COMPLETIONS
    ask = Ask(route, body)
    return Row(
        None,
        None,
        None,
        ask=ask,
        route=route,
        session=session,
        user=name_of(body, "user"),
        model=name_of(body, "model") or "",
    )


def _reading_batch(reading: Reading) -> Reader:
    return Batch(reading)


FORMATS = (
    Format("openai-batch", having("custom_id", "body"), _reading_batch),
    Format("openai-batch-output", having("custom_id", "response"), stateless(_batch_output)),
    Format("sharegpt", having("conversations"), stateless(_sharegpt)),
    Format("payloads", having("payloads"), stateless(_payloads)),
    Format("payload", lambda item: "model" in item and ("messages" in item or "prompt" in item), stateless(_payload)),
    Format("conversations", having("messages"), stateless(_conversation)),
    Format("vllm-custom", having("prompt"), stateless(_custom)),
)
