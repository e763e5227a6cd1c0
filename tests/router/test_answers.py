"""An answer's blocks are the very ones of the next turn's prompt, or they are not told."""

import json
import os
from functools import cache
from pathlib import Path

import pytest

from policies.blocks import Chain
from policies.keys import continued
from router.answers import Answer, answer_blocks
from router.heard import Heard
from router.openai import CHAT
from router.prompts import LocalReader
from router.readers import TINY, local_reader
from tests.fakes import Exchange, fake_replica, ok, posted, router_over

CHAIN = Chain.root("m")
TEXT = "A prefix cache keeps blocks.\n\n- keys, **values**\n- 1 234 of them; Gr\u00fc\u00dfe \u4f60\u597d \U0001f642 "
REAL = sorted(Path(os.environ.get("ROUTER_TEST_TOKENIZERS", "/nowhere")).glob("tokenizer-*/models"))
FOLDERS = [TINY, *REAL]
STOP = {folder: "<|eot_id|>" if "llama" in str(folder) else "<|im_end|>" for folder in FOLDERS}


def whole(answer: str, prompt: int, output: int, **choice: object) -> bytes:
    message = {"role": "assistant", "content": answer, "tool_calls": []}
    found = {"index": 0, "message": message, "finish_reason": "stop"} | choice
    usage = {"prompt_tokens": prompt, "completion_tokens": output}
    return json.dumps({"id": "chatcmpl-1", "choices": [found], "usage": usage}, ensure_ascii=False).encode()


def told(reply: bytes) -> Answer:
    found = Heard().answer(reply)
    assert found is not None
    return found


@cache
def read_by(folder: Path) -> LocalReader:
    return local_reader(folder, block_tokens=4)


async def turns(folder: Path, before: int, answer: str):
    """A prompt of some turns, the next turn's, and how many tokens the answer and its stop token are."""
    reader = read_by(folder)
    messages = [{"role": "system", "content": "Be brief. " * before}]
    for number in range(before):
        messages += [
            {"role": "user", "content": f"{number} {TEXT}"},
            {"role": "assistant", "content": f"Yes, {number}."},
        ]
    messages.append({"role": "user", "content": "And now?"})
    first = await reader.read(CHAT, {"messages": messages}, CHAIN)
    said = [*messages, {"role": "assistant", "content": answer}]
    following = await reader.read(CHAT, {"messages": [*said, {"role": "user", "content": "Why?"}]}, CHAIN)
    opened = first.opened
    assert opened is not None
    (alone,), (ended,) = (opened.tokenizer.encode([opened.piece + more]) for more in ("", f"{answer}{STOP[folder]}"))
    return first, following, (len(ended) - len(alone)) // 4


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
@pytest.mark.parametrize("before", [0, 1, 8])
@pytest.mark.parametrize("answer", ["Yes.", TEXT.strip(), "1", "```py\nx = {'a': 1}\n```", TEXT * 2 + "end"])
async def test_the_next_turn_finds_the_answer(folder: Path, before: int, answer: str) -> None:
    first, following, output = await turns(folder, before, answer)
    assert first.opened is not None
    stored = first.stored_by(told(whole(answer, first.tokens, output)))
    computed = continued(first.blocks, stored)
    assert len(computed) == (first.tokens + output - 1) // 4
    assert following.blocks[: len(computed)] == computed


async def test_what_is_in_doubt_is_not_entered() -> None:
    first, _, output = await turns(TINY, 2, "Yes, it is.")
    opened, tokens, known = first.opened, first.tokens, len(first.blocks)
    assert opened is not None
    doubtful = {
        "other count": whole("Yes, it is.", tokens, output + 3),
        "other prompt": whole("Yes, it is.", tokens + 1, output),
        "cut off": whole("Yes, it is.", tokens, output, finish_reason="length"),
        "tools": whole("Yes, it is.", tokens, output, message={"content": "Yes, it is.", "tool_calls": [{"id": "1"}]}),
        "no text": whole("Yes, it is.", tokens, output, message={"content": None}),
        "space that templates trim": whole("Yes, it is. ", tokens, output),
        "the end alone": whole("Yes, it is.", tokens, output)[20:],
        "half": whole("Yes, it is.", tokens, output)[:40],
        "no usage": whole("Yes, it is.", tokens, output).partition(b', "usage"')[0] + b"}",
        "compressed": b"\x1f\x8b\x08",
        "an array": b"[]",
        "two choices": b'{"choices":[{},{}]}',
        "no choices": b"{}",
        "nothing": b"",
        "a stream": b"data: " + whole("Yes, it is.", tokens, output),
        "told to stop": whole("Yes, it is.", tokens, output, stop_reason="."),
    }
    for name, reply in doubtful.items():
        answer = Heard().answer(reply)
        assert answer is None or answer_blocks(opened, answer, tokens, known) == (), name


@pytest.mark.parametrize(
    "more", [{"tools": []}, {"chat_template_kwargs": {}}, {"add_generation_prompt": False}, {"chat_template": "x"}]
)
async def test_only_plain_chats_are_continued(more: dict[str, object]) -> None:
    reader = local_reader(TINY, block_tokens=4)
    prompt = await reader.read(CHAT, {"messages": [{"role": "user", "content": "hi"}], **more}, CHAIN)
    assert prompt.opened is None
    assert prompt.stored_by(Answer("yes", None, 2)) == prompt.stored


async def test_other_routes_are_not_continued() -> None:
    reader = local_reader(TINY, block_tokens=4)
    assert (await reader.read("/v1/completions", {"prompt": "once upon"}, CHAIN)).opened is None


async def test_a_router_predicts_the_answer_for_the_next_turn() -> None:
    messages = [{"role": "user", "content": TEXT}]
    reader = local_reader(TINY, block_tokens=16)
    first = await reader.read(CHAT, {"messages": messages}, CHAIN)
    answer = (TEXT * 2).strip()
    ids = reader.tokenizer.encode([answer + "<|im_end|>"])[0]

    async def reply(exchange: Exchange) -> None:
        await exchange.send(ok(whole(answer, first.tokens, len(ids) // 4)))

    read = {"tokenizer__path": str(TINY), "tokenizer__where": "local"}
    async with fake_replica(reply) as replica, router_over(replica, **read) as up:
        asked = json.dumps({"model": "m", "messages": messages}).encode()
        assert (await posted(up.url, asked, path=CHAT.encode())).status == 200
        assert up.fleet.held_blocks("r1") == (first.tokens + len(ids) // 4 - 1) // 16 > len(first.blocks)
