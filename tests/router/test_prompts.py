"""A prompt read piece by piece from the cache is the prompt read whole; no body makes reading fail."""

import asyncio
import gzip
import json
import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.blocks import Chain, block_keys, hittable_blocks, packed
from router.prompt_bodies import LONGEST_TEXT, NOT_RUN, PLAIN, POOLING, Prompt
from router.prompts import LocalReader
from router.readers import TINY, local_reader
from router.templates import ChatTemplate
from router.tokenizers import load

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
BLOCK_TOKENS = 4
ROOT = Chain.root("m")
RECORDINGS = Path(__file__).parent.parent / "recordings"
TOKENIZERS = os.environ.get("ROUTER_TEST_TOKENIZERS")

_SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_st", "<|im_start|>user\n", " ", "\n"]
WORDS = st.lists(st.one_of(st.text(max_size=12), st.sampled_from(_SPECIALS)), max_size=6).map("".join)
MESSAGES = st.lists(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["user", "assistant", "system", "tool"]),
        WORDS,
    ),
    min_size=1,
    max_size=7,
)


@pytest.fixture(scope="module")
def reader() -> LocalReader:
    return local_reader(TINY, block_tokens=BLOCK_TOKENS)


def whole(reader: LocalReader, route: str, body: Mapping[str, Any], chain: Chain = ROOT) -> Prompt:
    """The prompt, tokenized and hashed from scratch."""
    ids = reader.token_ids(route, body)
    keys = block_keys(chain, packed(ids), BLOCK_TOKENS)
    hittable = hittable_blocks(len(ids), BLOCK_TOKENS)
    return Prompt(len(ids), keys[:hittable], "exact", "", keys[hittable:])


async def read(reader: LocalReader, route: str, body: Mapping[str, Any], chain: Chain = ROOT) -> Prompt:
    """The prompt as the reader reads it; how an answer continues it is `test_answers`' matter."""
    prompt = replace(await reader.read(route, body, chain), opened=None)
    if route == CHAT and PLAIN.issuperset(body):
        at_once = reader.at_once(body, chain)
        assert at_once is None or replace(at_once, opened=None) == prompt
    return prompt


def common(one: Prompt, other: Prompt) -> int:
    """Leading blocks that two prompts share."""
    pairs = zip(one.blocks, other.blocks, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one.blocks), len(other.blocks)))


def user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


# -- exactness -----------------------------------------------------------------------------------------------------


@given(st.lists(MESSAGES, min_size=1, max_size=3), st.integers(0, 3))
def test_what_the_cache_gives_is_what_whole_tokenization_gives(
    reader: LocalReader, chats: list[list[dict[str, str]]], grown: int
) -> None:
    async def check() -> None:
        for chat in chats:
            for end in range(max(1, len(chat) - grown), len(chat) + 1):
                body = {"messages": chat[:end]}
                wanted = whole(reader, CHAT, body)
                assert await read(reader, CHAT, body) == wanted
                assert await read(reader, CHAT, body) == wanted

    asyncio.run(check())


@given(MESSAGES, st.sampled_from([0, 700, 2_000, 100_000]))
@settings(max_examples=40)
def test_a_cache_of_any_size_changes_no_key(chat: list[dict[str, str]], cache_bytes: int) -> None:
    reader = small(cache_bytes)

    async def check() -> None:
        for end in (1, len(chat), 1, len(chat)):
            body = {"messages": chat[:end]}
            assert await read(reader, CHAT, body) == whole(reader, CHAT, body)

    asyncio.run(check())
    assert reader._cache.size_bytes <= cache_bytes


@cache
def small(cache_bytes: int) -> LocalReader:
    return local_reader(TINY, block_tokens=BLOCK_TOKENS, cache_bytes=cache_bytes)


@given(MESSAGES)
@settings(max_examples=30)
def test_two_chains_never_share(reader: LocalReader, chat: list[dict[str, str]]) -> None:
    body = {"messages": chat}
    chains = [Chain.root("m"), Chain.root("n"), Chain.root("m", adapter="a"), Chain.root("m", salt="s")]

    async def check() -> None:
        prompts = [await read(reader, CHAT, body, chain) for chain in chains for _ in range(2)]
        assert [prompt.blocks for prompt in prompts[::2]] == [prompt.blocks for prompt in prompts[1::2]]
        keys = [set(prompt.blocks) for prompt in prompts[::2]]
        assert len(set().union(*keys)) == sum(map(len, keys))
        assert prompts[2] == whole(reader, CHAT, body, chains[1])

    asyncio.run(check())


async def test_a_next_turn_tokenizes_only_what_is_new(reader: LocalReader, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []
    encode = reader.tokenizer.encode
    monkeypatch.setattr(reader.tokenizer, "encode", lambda texts: encoded.extend(texts) or encode(texts))
    turns = [
        {"role": role, "content": f"only here, {place}" + "." * 300}
        for place, role in enumerate(["user", "assistant"] * 4)
    ]
    await reader.read(CHAT, {"messages": turns[:5]}, ROOT)
    encoded.clear()
    await reader.read(CHAT, {"messages": turns[:7]}, ROOT)
    assert [piece for piece in encoded if "only here, 4" in piece] == []
    assert sum("only here" in piece for piece in encoded) == 2


async def test_a_turn_shares_the_blocks_of_the_turn_before(reader: LocalReader) -> None:
    turns = [{"role": role, "content": f"{role} says something long enough"} for role in ["user", "assistant", "user"]]
    first = await reader.read(CHAT, {"messages": turns[:1]}, ROOT)
    third = await reader.read(CHAT, {"messages": turns}, ROOT)
    assert common(first, third) == len(first.blocks) > 0


async def test_text_after_the_prompt_of_raw_content_is_not_what_is_hashed(reader: LocalReader) -> None:
    """A chat's keys are those of its rendered text, never of its raw contents."""
    chat = await read(reader, CHAT, user("What is a prefix cache, and what is a block?"))
    raw = await reader.read(TEXT, {"prompt": "What is a prefix cache, and what is a block?"}, ROOT)
    rendered = "<|im_start|>user\nWhat is a prefix cache, and what is a block?<|im_end|>\n<|im_start|>assistant\n"
    text = await reader.read(TEXT, {"prompt": rendered}, ROOT)
    assert common(chat, raw) == 0
    assert chat == text


# -- token ids -----------------------------------------------------------------------------------------------------

P1 = list(range(1, 13))


async def test_prompts_of_token_ids_match_by_whole_ids(reader: LocalReader) -> None:
    async def prompt(ids: Any) -> Prompt:
        return await reader.read(TEXT, {"prompt": ids}, ROOT)

    first = await prompt(P1)
    assert (first.tokens, len(first.blocks), first.basis) == (12, 2, "exact")
    assert common(first, await prompt(list(range(90, 102)))) == 0
    assert common(first, await prompt([*P1[:-1], 13])) == 2
    assert common(await prompt([1234, 5, 6, 7, 8]), await prompt([12345, 6, 7, 8, 9])) == 0
    assert await prompt([P1[:8], [90, 91, 92, 93]]) == await prompt(P1[:8])


async def test_ids_of_a_transfer_replace_the_chat(reader: LocalReader) -> None:
    body = {**user("ignored"), "kv_transfer_params": {"prompt_token_ids": P1}}
    assert await read(reader, CHAT, body) == await reader.read(TEXT, {"prompt": P1}, ROOT)
    assert reader.token_ids(CHAT, body) == P1


async def test_of_a_batch_the_first_text_counts(reader: LocalReader) -> None:
    batch = {"prompt": ["Once upon a time there was", "another"]}
    assert await reader.read(TEXT, batch, ROOT) == whole(reader, TEXT, {"prompt": batch["prompt"][0]})


@pytest.mark.parametrize("ids", [[-1, 2], [2**32, 1], [True, 2], [1.5, 2], [[]], [[], [1]], [], [1, "a"]])
async def test_ids_that_are_none_give_no_blocks(reader: LocalReader, ids: list[Any]) -> None:
    prompt = await reader.read(TEXT, {"prompt": ids}, ROOT)
    assert (prompt.basis, prompt.blocks) == ("none", ())
    assert prompt.reason


@pytest.mark.parametrize(("side", "kept"), [(None, slice(-6, None)), ("left", slice(-6, None)), ("right", slice(0, 6))])
async def test_a_truncated_prompt_keeps_the_end_the_engine_keeps(
    reader: LocalReader, side: str | None, kept: slice
) -> None:
    text = {"prompt": "Once upon a time there was a cache of blocks"}
    cut = {"truncate_prompt_tokens": 6, **({"truncation_side": side} if side else {})}
    wanted = await reader.read(TEXT, {"prompt": reader.token_ids(TEXT, text)[kept]}, ROOT)
    assert await reader.read(TEXT, {**text, **cut}, ROOT) == wanted
    assert wanted.tokens == 6
    assert (await reader.read(TEXT, {"prompt": P1, **cut}, ROOT)).tokens == 6


async def test_a_truncation_longer_than_the_prompt_is_none(reader: LocalReader) -> None:
    body = {"prompt": "Once upon a time there was"}
    assert await reader.read(TEXT, {**body, "truncate_prompt_tokens": 500}, ROOT) == whole(reader, TEXT, body)


# -- what can't be exact -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", sorted(POOLING | NOT_RUN))
async def test_requests_that_read_no_cache_have_no_blocks(reader: LocalReader, route: str) -> None:
    for body in ({"input": "some words to embed", "prompt": "the same words"}, {**user("words"), "input": P1}):
        prompt = await reader.read(route, body, ROOT)
        assert (prompt.basis, prompt.blocks) == ("none", ())


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video_url"])
async def test_text_before_an_image_counts_and_nothing_behind(reader: LocalReader, kind: str) -> None:
    head = [{"role": "system", "content": "Look at pictures with care and tell what you see."}]
    image = {"type": kind, kind: {"url": "data:,x"}}
    parts = [{"type": "text", "text": "What is this?"}, image]

    async def read(*last: Any) -> Prompt:
        return await reader.read(CHAT, {"messages": [*head, {"role": "user", "content": list(last)}]}, ROOT)

    one, other = await read(*parts), await read(*parts, {"type": "text", "text": "And that?"})
    assert one.basis == other.basis == "approximate"
    assert kind in one.reason
    assert one.blocks == other.blocks
    before = await reader.read(CHAT, {"messages": head, "add_generation_prompt": False}, ROOT)
    assert common(one, before) == len(before.blocks) > 0


async def test_a_doubt_makes_every_prompt_approximate() -> None:
    reader = local_reader(TINY, block_tokens=BLOCK_TOKENS)
    exact = await reader.read(CHAT, user("a few words"), ROOT)
    reader.doubt = "different ids for: tools"
    doubted = await reader.read(CHAT, user("a few words"), ROOT)
    assert (doubted.basis, doubted.reason) == ("approximate", reader.doubt)
    assert (doubted.tokens, doubted.blocks) == (exact.tokens, exact.blocks)


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": None},
        {"messages": []},
        {"messages": "text"},
        {"messages": [None]},
        {"messages": [{"content": "no role"}]},
        {"messages": [{"role": 7, "content": "x"}]},
        user(7),
        user({"text": "x"}),
        user("a \ud800"),
        {"messages": [{"role": "assistant", "tool_calls": [{"function": 3}]}]},
        {"messages": [{"role": "assistant", "tool_calls": ["x"]}]},
        {**user("x"), "tools": [{"function": {"name": {1, 2}}}]},
        {**user("x"), "chat_template": "{{ 1 }}"},
        {"prompt": ""},
        {"prompt": "a \udfff"},
        {"prompt": {"a": 1}},
        {"prompt": nested(500)},
        {"prompt": 3.5},
    ],
)
async def test_a_body_that_cannot_be_read_has_no_blocks_and_says_why(reader: LocalReader, body: dict[str, Any]) -> None:
    prompt = await reader.read(CHAT, body, ROOT)
    assert (prompt.basis, prompt.blocks) == ("none", ())
    assert prompt.reason


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "function", "arguments"]), inner, max_size=3
        ),
    ),
    max_leaves=8,
)
MEMBERS = ["messages", "prompt", "input", "tools", "system", "truncate_prompt_tokens", "chat_template_kwargs"]


@given(
    st.sampled_from([CHAT, TEXT, "/v1/messages", "/v1/responses", "/v1/embeddings", "/inference/v1/generate"]),
    st.dictionaries(st.sampled_from([*MEMBERS, "documents", "kv_transfer_params", "continue_final_message"]), JSON),
)
def test_no_body_makes_reading_fail(reader: LocalReader, route: str, body: dict[str, Any]) -> None:
    prompt = asyncio.run(reader.read(route, body, ROOT))
    assert len(prompt.blocks) <= hittable_blocks(prompt.tokens, BLOCK_TOKENS) or prompt.basis == "approximate"
    assert bool(prompt.reason) == (prompt.basis != "exact")
    assert prompt.basis != "none" or not prompt.blocks


async def test_reasons_quote_no_prompt(reader: LocalReader) -> None:
    for body in (
        user("secret \ud800"),
        user({"secret": 1}),
        {"messages": [{"role": "secret", "content": ["secret", 1]}]},
    ):
        assert "secret" not in (await reader.read(CHAT, body, ROOT)).reason


async def test_without_a_template_only_texts_are_read() -> None:
    reader = LocalReader(load(TINY)[0], None, block_tokens=BLOCK_TOKENS)
    assert (await reader.read(CHAT, user("x"), ROOT)).reason == "the tokenizer has no chat template"
    assert (await reader.read(TEXT, {"prompt": "Once upon a time there was"}, ROOT)).basis == "exact"
    assert "no safe cut" in reader.describe()


async def test_a_template_without_special_tokens_is_read_whole() -> None:
    template = ChatTemplate("{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}")
    reader = LocalReader(load(TINY)[0], template, block_tokens=BLOCK_TOKENS)
    assert "no safe cut" in reader.describe()
    body = user("some words, read in one go")
    assert await read(reader, CHAT, body) == whole(reader, CHAT, body)


# -- the event loop ------------------------------------------------------------------------------------------------


async def test_long_texts_leave_the_loop_free() -> None:
    """5.4 MB of text: the loop turns while a thread reads it."""
    with ThreadPoolExecutor(1) as threads:
        reader = local_reader(TINY, block_tokens=BLOCK_TOKENS, executor=threads)
        reading = asyncio.create_task(reader.read(TEXT, {"prompt": "lorem ipsum " * 450_000}, ROOT))
        turns = 0
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        prompt = await reading
    assert turns > 10
    assert prompt.basis == "exact"
    assert prompt.tokens > 900_000


async def test_short_texts_never_leave_the_loop() -> None:
    threads = ThreadPoolExecutor(1)
    threads.shutdown()  # whoever submits to it fails
    reader = local_reader(TINY, block_tokens=BLOCK_TOKENS, executor=threads)
    body = user("short")
    assert await read(reader, CHAT, body) == whole(reader, CHAT, body)
    assert (await reader.read(TEXT, {"prompt": "lorem " * 100_000}, ROOT)).basis == "none"


async def test_a_short_chat_is_read_at_once(reader: LocalReader) -> None:
    at_once = reader.at_once(user("short"), ROOT)
    assert at_once is not None
    assert at_once == await reader.read(CHAT, user("short"), ROOT)
    assert at_once.basis == "exact"


@pytest.mark.parametrize("content", ["long " * 300, ["no text"], "\ud800"])
def test_what_is_long_or_no_text_is_not_read_at_once(reader: LocalReader, content: Any) -> None:
    assert reader.at_once(user(content), ROOT) is None


def test_a_doubt_is_told_at_once() -> None:
    reader = local_reader(TINY, block_tokens=BLOCK_TOKENS)
    reader.doubt = "different ids for: unicode"
    prompt = reader.at_once(user("short"), ROOT)
    assert prompt is not None
    assert (prompt.basis, prompt.reason) == ("approximate", "different ids for: unicode")


async def test_prompts_beyond_any_context_are_placed_by_load(reader: LocalReader) -> None:
    prompt = await reader.read(TEXT, {"prompt": "x" * (LONGEST_TEXT + 1)}, ROOT)
    assert (prompt.tokens, prompt.blocks, prompt.basis) == ((LONGEST_TEXT + 1) // 4, (), "none")


# -- recordings of an engine ---------------------------------------------------------------------------------------


@cache
def recording(model: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(
        gzip.decompress((RECORDINGS / f"chat_tokenization_{model}.json.gz").read_bytes())
    )
    return loaded


@cache
def model_reader(model: str) -> LocalReader:
    if not TOKENIZERS:
        pytest.skip("ROUTER_TEST_TOKENIZERS names no folder of tokenizers")
    return local_reader(Path(TOKENIZERS) / f"tokenizer-{model}" / "models", block_tokens=BLOCK_TOKENS)


def recorded() -> list[Any]:
    """Each prompt the engine took, as (model, route, body, its ids)."""
    found = []
    for model in ("qwen3", "llama3_1"):
        for case in recording(model)["chat"]:
            if case["status"] == 200:
                values = (model, CHAT, case["request"], case["prompt_token_ids"])
                found.append(pytest.param(*values, id=f"{model}-{case['name']}"))
        for number, case in enumerate(recording(model)["completions"]):
            if case["status"] == 200:
                body = {name: case[name] for name in ("prompt", "add_special_tokens") if case[name] is not None}
                found.append(pytest.param(model, TEXT, body, case["prompt_token_ids"], id=f"{model}-text-{number}"))
    return found


@pytest.mark.parametrize(("model", "route", "body", "ids"), recorded())
async def test_ids_are_those_an_engine_gave(model: str, route: str, body: dict[str, Any], ids: list[int]) -> None:
    reader = model_reader(model)
    assert reader.token_ids(route, body) == ids
    keys = block_keys(ROOT, packed(ids), BLOCK_TOKENS)[: hittable_blocks(len(ids), BLOCK_TOKENS)]
    for _ in range(2):
        prompt = await read(reader, route, body)
        assert (prompt.tokens, prompt.blocks, prompt.basis) == (len(ids), keys, "exact")


async def test_many_short_messages_are_rendered_off_the_event_loop(
    reader: LocalReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = [{"role": role, "content": "word " * 3} for role in ["user", "assistant"] * 250]
    threads: list[int] = []
    render = ChatTemplate.render

    def rendered(*given: Any, **more: Any) -> str:
        threads.append(threading.get_ident())
        return render(*given, **more)

    monkeypatch.setattr(ChatTemplate, "render", rendered)
    await reader.read(CHAT, {"messages": turns}, ROOT)
    assert threads
    assert threading.get_ident() not in threads
    threads.clear()
    await reader.read(CHAT, {"messages": turns[:99]}, ROOT)
    assert set(threads) == {threading.get_ident()}
