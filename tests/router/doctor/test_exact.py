"""Exact tokens, and what a template does to prefixes by itself."""

import json

import pytest

from router.doctor.exact import ModelTokens
from router.prompts import LocalReader
from router.readers import TINY, local_reader
from router.templates import ChatTemplate
from router.tokenizers import Tokenizer

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TURNS = (
    "{% for m in messages %}[{{ m.role }}]{{ CONTENT }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]OPENER{% endif %}"
)


def tokens_of(source: str) -> ModelTokens:
    return ModelTokens(
        LocalReader(local_reader(TINY, block_tokens=16).tokenizer, ChatTemplate(source), block_tokens=16)
    )


def test_ids_are_the_readers():
    reader = local_reader(TINY, block_tokens=16)
    body = {"messages": [{"role": "user", "content": "hello"}]}
    assert ModelTokens(reader)(CHAT, body) == reader.token_ids(CHAT, body)


def test_what_cannot_be_rendered_is_counted():
    tokens = ModelTokens(local_reader(TINY, block_tokens=16))
    assert tokens(CHAT, {"messages": []}) is None
    assert any("of these the text was used" in note for note in tokens.notes())


def begins_each_text(token: str) -> Tokenizer:
    """The shipped tokenizer, as a model with a token before every text has it."""
    made = json.loads((TINY / "tokenizer.json").read_text("utf-8"))
    (number,) = [one["id"] for one in made["added_tokens"] if one["content"] == token]
    single = [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    names = {token: {"id": token, "ids": [number], "tokens": [token]}}
    made["post_processor"] = {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": names}
    return Tokenizer(json.dumps(made))


@pytest.mark.parametrize(
    ("body", "twice"),
    [
        ({"prompt": "<|im_start|>hello"}, True),
        ({"prompt": "<|im_start|>hello", "add_special_tokens": False}, False),
        ({"prompt": "hello"}, False),
        ({"messages": [{"role": "user", "content": "hello"}]}, False),
        ({"messages": [{"role": "user", "content": "hello"}], "add_special_tokens": True}, True),
    ],
)
def test_a_first_token_that_comes_twice_is_told(body, twice):
    """The caller writes it and the endpoint adds it: text completions do unless told not to, chats only when told."""
    template = ChatTemplate("<|im_start|>{{ messages[0].content }}")
    tokens = ModelTokens(LocalReader(begins_each_text("<|im_start|>"), template, block_tokens=16))
    ids = tokens(COMPLETIONS if "prompt" in body else CHAT, body)
    assert (ids[0] == ids[1]) is twice
    assert any("first special token twice" in note for note in tokens.notes()) is twice


@pytest.mark.parametrize(
    ("content", "opener", "said"),
    [
        ("m.content", "", []),
        ("m.content", "answer: ", ["comes once"]),
        ("m.content.split('</think>')[-1]", "", ["removes reasoning"]),
        ("strftime_now('%d') + m.content", "", ["writes the date"]),
    ],
)
def test_what_a_template_does(content, opener, said):
    notes = list(tokens_of(TURNS.replace("CONTENT", content).replace("OPENER", opener)).notes())
    assert len(notes) == len(said)
    assert all(word in note for word, note in zip(said, notes, strict=True))
