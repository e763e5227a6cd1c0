"""The emulator answers requests once sent to a real server (vLLM 0.32) as that server did, field by field."""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sim.cost import PROFILES
from sim.emulator import start

RECORDING = Path(__file__).parent.parent / "recordings" / "http_exchanges.json.gz"
EXCHANGES: list[dict[str, Any]] = json.loads(gzip.decompress(RECORDING.read_bytes()))

INVENTED = {"id", "item_id", "created", "created_at", "system_fingerprint", "root", "tokens", "token_strs"}
"""Fields whose values are the server's own; names and types must agree all the same."""
WORDS = {"text", "content", "delta", "prompt", "token", "decoded_token", "bytes"}
"""What a model says."""
CHANCE = {"logprob", "token_logprobs", "rank", "text_offset"}
"""How likely it was to say so."""
BY_TOKEN = {"prompt_logprobs", "top_logprobs"}
"""Lists of the alternatives to each token, by token: the emulator has one of each."""


def asked_tokens(exchange: dict[str, Any]) -> int:
    """Tokens of the prompt as the recorded server counted them; of a refused text, its words."""
    for event in reversed(events(exchange["answer"])):
        for usage in (event.get("usage"), event.get("response", {}).get("usage"), event):
            match usage:
                case {"prompt_tokens": int(count)} | {"count": int(count)}:
                    return count
                case {"cache_read_input_tokens": int(read), "cache_creation_input_tokens": int(made)}:
                    return int(usage["input_tokens"]) + read + made
                case {"input_tokens": int(count)}:
                    return count
    return len(json.dumps(exchange["body"]).split())


def events(answer: str) -> list[dict[str, Any]]:
    """The JSON values of an answer, one, or those of a stream."""
    if not answer.startswith(("data: ", "event: ")):
        return [json.loads(answer)] if answer else []
    lines = [line.partition("data: ")[2] for line in answer.splitlines() if "data: " in line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def was_warm(exchange: dict[str, Any]) -> bool:
    """Whether the recorded server had the prompt in its cache."""
    return re.search(r'"(cached_tokens|cache_read_input_tokens)":[1-9]', exchange["answer"]) is not None


def differences(want: object, got: object, where: str = "") -> Iterator[str]:
    match want, got:
        case dict(), dict():
            if list(want) != list(got):
                yield f"{where}: fields {list(want)}, not {list(got)}"
            for name in want.keys() & got.keys():
                yield from differences(want[name], got[name], f"{where}.{name}")
        case list(), list():
            if len(want) != len(got):
                yield f"{where}: {len(want)} items, not {len(got)}"
            for number, (one, other) in enumerate(zip(want, got, strict=False)):
                yield from differences(one, other, f"{where}[{number}]")
        case _:
            name = where.rpartition(".")[2].partition("[")[0]
            ours = INVENTED | WORDS | CHANCE | {"token_ids", "prompt_token_ids", "first"}
            free = type(want) is type(got) and name in ours
            if want != got and not free and name != "temperature":
                yield f"{where}: {want!r}, not {got!r}"


def first_alternatives(value: object) -> object:
    """The value with one alternative to every token, under no token's name."""
    match value:
        case dict():
            named = {name: first_alternatives(each) for name, each in value.items()}
            for name in BY_TOKEN & named.keys():
                items = named[name]
                if isinstance(items, list) and None in items:
                    named[name] = [item and {"first": next(iter(item.values()))} for item in items]
            return named
        case list():
            return [first_alternatives(each) for each in value]
    return value


def merged_deltas(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A real engine may put two tokens into one event: keep one delta of each run, and no count of events."""
    kept: list[dict[str, Any]] = []
    for event in found:
        numbered = "sequence_number" in event
        if numbered and kept and kept[-1]["type"] == event["type"] == "response.output_text.delta":
            continue
        kept.append({**event, "sequence_number": 0} if numbered else event)
    return kept


@pytest.mark.parametrize("exchange", [pytest.param(exchange, id=exchange["name"]) for exchange in EXCHANGES])
async def test_an_answer_equals_the_recorded_one(exchange: dict[str, Any]) -> None:
    count = asked_tokens(exchange)

    def tokenize(route: str, body: dict[str, Any]) -> list[int]:
        """As many ids as the recorded server found; of one text among several, one for each space and one more."""
        one_of_several = isinstance((exchange["body"] or {}).get("prompt"), list)
        return list(range(len(body["prompt"].split(" ")) if one_of_several else count))

    limits = [event["max_model_len"] for event in events(exchange["answer"]) if "max_model_len" in event]
    emulator = await start(
        "127.0.0.1",
        0,
        name="r1",
        model="tiny",
        blocks=512,
        block_tokens=32,
        profile=PROFILES["llama-3.1-8b-h100"],
        speed=1000.0,
        tokenize=tokenize,
        detokenize=lambda ids: bytes(id_ % 256 for id_ in ids).decode("latin-1"),
        max_model_len=limits[0] if limits else 2048,
        vocabulary_tokens=256,
        vocabulary_size=151_936,
        api_key="secret" if "auth" in exchange["name"] else "",
    )
    raw = exchange["body_raw"] if exchange["body"] is None else json.dumps(exchange["body"])
    headers = {"Content-Type": "application/json"} | exchange["headers"]
    try:
        async with aiohttp.ClientSession(emulator.url) as client:
            for _ in range(1 + was_warm(exchange)):
                async with client.request(exchange["method"], exchange["path"], data=raw, headers=headers) as response:
                    got = await response.text()
    finally:
        await emulator.close()
    assert response.status == exchange["status"]
    assert response.headers.get("Allow") == exchange["allow"]
    if got:
        assert response.headers["Content-Type"] == exchange["content_type"]
    want, answered = (first_alternatives(merged_deltas(events(text))) for text in (exchange["answer"], got))
    assert list(differences(want, answered)) == []
    assert got.endswith("data: [DONE]\n\n") == exchange["answer"].endswith("data: [DONE]\n\n")
