"""Texts as blocks: what is common stays common, with a tokenizer and without."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.traces.rows import Ask
from sim.traces.texts import CHAT, COMPLETIONS, Texts, text_of

LONG = "Seventeen ships lay in the harbour and none of them was ours. " * 3


def chat(*said, **other):
    roles = ("user", "assistant")
    return Ask(CHAT, {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)], **other})


def test_a_conversation_goes_on_where_its_answer_ended():
    texts = Texts(None, 16)
    _, answer, first = texts.read(Ask(CHAT, chat(LONG).body, LONG), "m")
    prompt, _, later = texts.read(chat(LONG, LONG, "And then?"), "m")
    assert answer == len(LONG) // 4 + (len(LONG) % 4 > 0)
    assert later[: len(first)] == first
    assert len(later) == prompt // 16


@pytest.mark.parametrize(
    "other",
    [
        chat("B" + LONG),
        chat(LONG, tools=[{"name": "x"}]),
        chat(LONG, system="be brief"),
        Ask(COMPLETIONS, {"prompt": LONG}),
    ],
    ids=["text", "tools", "system", "route"],
)
def test_another_beginning_is_another_block(other):
    texts = Texts(None, 4)
    _, _, mine = texts.read(chat(LONG), "m")
    _, _, theirs = texts.read(other, "m")
    assert set(mine).isdisjoint(theirs)


def test_models_share_nothing():
    texts = Texts(None, 4)
    assert set(texts.read(chat(LONG), "a")[2]).isdisjoint(texts.read(chat(LONG), "b")[2])


@given(st.lists(st.text(max_size=30), min_size=1, max_size=4), st.integers(1, 20))
def test_blocks_are_whole_ones(said, block_tokens):
    prompt, answer, blocks = Texts(None, block_tokens).read(Ask(CHAT, chat(*said).body, "yes, quite so"), "m")
    assert answer == 4
    assert (prompt + answer - 1) // block_tokens <= len(blocks) <= (prompt + answer) // block_tokens


@given(st.lists(st.integers(0, 5), max_size=30), st.lists(st.integers(0, 5), max_size=30))
def test_with_tokens_common_blocks_are_common_full_blocks(mine, theirs):
    texts = Texts(lambda route, body: body["prompt"], 4)
    prompt, _, first = texts.read(Ask(COMPLETIONS, {"prompt": mine}), "m")
    _, _, second = texts.read(Ask(COMPLETIONS, {"prompt": theirs}), "m")
    common = 0
    while common < min(len(mine), len(theirs)) and mine[common] == theirs[common]:
        common += 1
    assert prompt == len(mine)
    assert [a == b for a, b in zip(first, second, strict=False)].count(True) == min(
        common // 4, len(first), len(second)
    )


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (None, ""),
        ("a", "a"),
        ([{"type": "text", "text": "a"}, "b"], "ab"),
        ({"content": "c"}, "c"),
        ({"type": "image_url"}, '{"type":"image_url"}'),
        (5, "5"),
    ],
)
def test_text_in_any_shape(content, wanted):
    assert text_of(content) == wanted
