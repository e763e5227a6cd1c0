"""Without a tokenizer: what is asked of a replica, what is remembered, and what a failing replica costs."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.blocks import Chain, block_keys, packed
from router.chat import NotText
from router.prompt_fallbacks import ReplicaReader, TextReader, tokenize_body

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ROOT = Chain.root("m")
USER = {"role": "user", "content": "What is a prefix cache? " * 8}
IMAGE = {"type": "image_url", "image_url": {"url": "data:…"}}


class Replica:
    """Gives one token for each character, or fails as it is told."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self.answer: Any = None

    async def __call__(self, path: str, body: dict[str, Any]) -> Any:
        self.asked.append(body)
        if self.error is not None:
            raise self.error
        if self.answer is not None:
            return self.answer
        text = body.get("prompt") or "".join(message["content"] for message in body["messages"])
        return {"tokens": [ord(character) for character in text]}


@pytest.fixture
def replica() -> Replica:
    return Replica()


@pytest.fixture
def reader(replica: Replica) -> ReplicaReader:
    return ReplicaReader(replica, block_tokens=16)


async def test_a_replicas_ids_are_exact(reader: ReplicaReader, replica: Replica) -> None:
    ids = [ord(character) for character in USER["content"]]
    prompt = await reader.read(CHAT, {"messages": [USER]}, ROOT)
    assert (prompt.tokens, prompt.basis) == (len(ids), "exact")
    assert prompt.blocks == block_keys(ROOT, packed(ids), 16)[: (len(ids) - 1) // 16]


async def test_a_prompt_is_asked_for_once(reader: ReplicaReader, replica: Replica) -> None:
    body = {"messages": [USER], "temperature": 0.1, "stream": True}
    first = await reader.read(CHAT, body, ROOT)
    assert await reader.read(CHAT, {**body, "temperature": 0.9, "user": "u"}, ROOT) == first
    assert len(replica.asked) == 1
    other = await reader.read(CHAT, body, Chain.root("m", salt="s"))
    assert not set(other.blocks) & set(first.blocks)


async def test_given_ids_need_no_question(reader: ReplicaReader, replica: Replica) -> None:
    prompt = await reader.read(COMPLETIONS, {"prompt": list(range(40))}, ROOT)
    assert (prompt.tokens, len(prompt.blocks), prompt.basis) == (40, 2, "exact")
    assert (await reader.read("/v1/embeddings", {"input": "x"}, ROOT)).basis == "none"
    assert (await reader.read(COMPLETIONS, {"prompt": [-1]}, ROOT)).basis == "none"
    assert replica.asked == []


async def test_what_is_remembered_is_bounded(replica: Replica) -> None:
    reader = ReplicaReader(replica, block_tokens=16, cache_bytes=3_000)
    bodies = [{"prompt": f"{n} " * 40} for n in range(10)]
    for body in [*bodies, bodies[-1], bodies[0]]:
        await reader.read(COMPLETIONS, body, ROOT)
    assert len(replica.asked) == len(bodies) + 1


@pytest.mark.parametrize("error", [OSError("down"), TimeoutError(), ValueError("no JSON"), RuntimeError("bug")])
async def test_a_replica_that_fails_leaves_the_text(reader: ReplicaReader, replica: Replica, error: Exception) -> None:
    replica.error = error
    prompt = await reader.read(CHAT, {"messages": [USER]}, ROOT)
    plain = await TextReader(block_tokens=16).read(CHAT, {"messages": [USER]}, ROOT)
    assert (prompt.tokens, prompt.blocks, prompt.basis) == (plain.tokens, plain.blocks, "approximate")
    assert prompt.reason == f"/tokenize did not answer ({type(error).__name__}); text, not tokens"


@pytest.mark.parametrize("answer", [[], {}, {"tokens": []}, {"tokens": "x"}, {"tokens": [1.5]}, "text"])
async def test_a_strange_answer_is_a_failure(reader: ReplicaReader, replica: Replica, answer: Any) -> None:
    replica.answer = answer
    assert (await reader.read(CHAT, {"messages": [USER]}, ROOT)).basis == "approximate"


async def test_a_silent_replica_costs_its_time_limit_at_most_three_times() -> None:
    asked = 0

    async def silent(path: str, body: Any) -> Any:
        nonlocal asked
        asked += 1
        await asyncio.Event().wait()

    reader = ReplicaReader(silent, block_tokens=16, timeout_s=0.01)
    for _ in range(20):
        assert (await reader.read(CHAT, {"messages": [USER]}, ROOT)).basis == "approximate"
    assert asked == 3


async def test_few_questions_at_a_time(replica: Replica) -> None:
    running = most = 0
    go_on = asyncio.Event()

    async def ask(path: str, body: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 2:
            go_on.set()
        await go_on.wait()
        running -= 1
        return {"tokens": [1]}

    reader = ReplicaReader(ask, block_tokens=16, at_once=2)
    prompts = await asyncio.gather(*(reader.read(COMPLETIONS, {"prompt": str(n)}, ROOT) for n in range(9)))
    assert {prompt.basis for prompt in prompts} == {"exact"}
    assert most == 2


async def test_truncation_is_applied_to_the_replicas_ids(reader: ReplicaReader) -> None:
    text = "abcdefgh" * 8
    prompt = await reader.read(COMPLETIONS, {"prompt": text, "truncate_prompt_tokens": 40}, ROOT)
    kept = [ord(character) for character in text][-40:]
    assert (prompt.tokens, prompt.blocks) == (40, block_keys(ROOT, packed(kept), 16))


async def test_images_are_never_matched(reader: ReplicaReader, replica: Replica) -> None:
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Look."}, IMAGE]}]}
    prompt = await reader.read(CHAT, body, ROOT)
    assert (prompt.blocks, prompt.basis, replica.asked) == ((), "none", [])


@pytest.mark.parametrize(
    ("route", "body", "wanted"),
    [
        (
            CHAT,
            {"model": "m", "messages": [USER], "tools": [], "add_generation_prompt": False, "max_tokens": 3},
            {"model": "m", "messages": [USER], "tools": [], "add_generation_prompt": False},
        ),
        (
            CHAT,
            {"messages": [USER], "chat_template_kwargs": {"a": 1}, "continue_final_message": True},
            {"messages": [USER], "chat_template_kwargs": {"a": 1}, "continue_final_message": True},
        ),
        (COMPLETIONS, {"prompt": ["a", "b"], "echo": True}, {"prompt": "a"}),
        (COMPLETIONS, {"prompt": "a", "add_special_tokens": False}, {"prompt": "a", "add_special_tokens": False}),
        (
            "/v1/responses",
            {"model": "m", "input": "Hi"},
            {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
        ),
        (
            "/v1/messages",
            {"system": "S", "messages": [{"role": "user", "content": "Hi"}]},
            {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}]},
        ),
    ],
)
def test_the_question_holds_all_that_changes_the_tokens(route: str, body: Any, wanted: Any) -> None:
    assert tokenize_body(route, body) == (wanted, "")


@pytest.mark.parametrize("body", [{}, {"prompt": ""}, {"messages": []}, {"messages": [{"content": "x"}]}])
def test_no_question_without_a_prompt(body: Any) -> None:
    with pytest.raises(NotText):
        tokenize_body(CHAT, body)


TURNS = st.lists(
    st.fixed_dictionaries({"role": st.just("user"), "content": st.text(max_size=60)}), min_size=1, max_size=6
)


@given(TURNS, st.integers(1, 6))
def test_a_longer_conversation_begins_with_the_shorter_ones_blocks(turns: list[Any], length: int) -> None:
    reader = TextReader(block_tokens=16)
    short, long = (asyncio.run(reader.read(CHAT, {"messages": m}, ROOT)) for m in (turns[:length], turns))
    assert long.blocks[: len(short.blocks)] == short.blocks
    assert (short.basis, short.reason) == ("approximate", "text, not tokens")


@given(st.text(min_size=1, max_size=200), st.text(max_size=200))
def test_a_longer_text_begins_with_the_shorter_ones_blocks(text: str, more: str) -> None:
    reader = TextReader(block_tokens=16)
    short, long = (asyncio.run(reader.read(COMPLETIONS, {"prompt": p}, ROOT)) for p in (text, text + more))
    assert long.blocks[: len(short.blocks)] == short.blocks


async def test_different_images_differ_by_text_too() -> None:
    def body(data: str) -> Any:
        parts = [{"type": "image_url", "image_url": {"url": data * 40}}, {"type": "text", "text": "Look. " * 40}]
        return {"messages": [{"role": "user", "content": parts}]}

    red, blue = [await TextReader(block_tokens=16).read(CHAT, body(data), ROOT) for data in ("red", "blue")]
    assert sum(a == b for a, b in zip(red.blocks, blue.blocks, strict=False)) <= 1


@pytest.mark.parametrize("body", [{}, {"prompt": "\ud800"}, {"messages": []}, {"prompt": [-1]}, {"prompt": [2**33]}])
async def test_text_that_cannot_be_read_says_so(body: Any) -> None:
    prompt = await TextReader(block_tokens=16).read(COMPLETIONS, body, ROOT)
    assert (prompt.blocks, prompt.basis) == ((), "none")
    assert prompt.reason


def test_readers_say_how_they_read(reader: ReplicaReader) -> None:
    assert reader.describe() == "through a replica's /tokenize"
    assert TextReader(block_tokens=16).describe() == "by text, four bytes to a token (approximate)"


@pytest.mark.parametrize(("size_bytes", "at_once"), [(1_000, True), (1_000_000, False)])
async def test_a_long_text_is_not_read_on_the_loop(size_bytes: int, at_once: bool) -> None:
    body = {"prompt": "word " * (size_bytes // 5)}
    reading = asyncio.ensure_future(TextReader(block_tokens=16).read(COMPLETIONS, body, ROOT))
    await asyncio.sleep(0)
    assert reading.done() is at_once
    prompt = await reading
    assert len(prompt.blocks) == prompt.tokens // 16 - (prompt.tokens % 16 == 0)
