"""Exact tokens, and what a template does to prefixes by itself."""

import pytest

from router.doctor.exact import ModelTokens
from router.prompts import LocalReader
from router.readers import TINY, local_reader
from router.templates import ChatTemplate

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
