"""What an emulated model will answer to one prompt: all of it is known before the engine has made a token.

The one rule: a part's ids are what the engine computes, its texts what the client sees; they differ at a stop.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from policies.blocks import packed
from sim.emulator_answers import Vocabulary
from sim.emulator_logprobs import Token
from sim.emulator_requests import Ask
from sim.emulator_sampling import End, cut


@dataclass(frozen=True, slots=True)
class Part:
    """One choice of one prompt. `escaped` is what each token shows, as the inside of a JSON string."""

    ids: list[int]
    escaped: list[bytes]
    text: str
    end: End


def part_of(ask: Ask, prompt: Sequence[int], opening: str, choice: int, vocabulary: Vocabulary, room: int) -> Part:
    """The answer to `prompt`, at most `room` tokens; `opening` is shown before it."""
    wanted = room if ask.ignore_eos else None
    if ask.max_tokens is not None:
        wanted = min(ask.max_tokens, room)
    ids = vocabulary.answer(packed(prompt), choice, wanted if wanted is None else max(1, wanted))[:room]
    end = End("stop" if wanted is None and len(ids) < room else "length")
    texts = [vocabulary.texts[token] for token in ids]
    shown = None
    if wanted == 0:  # the prompt alone is wanted
        shown = 0
    elif (stop := cut(ids, texts, ask.sampling)) is not None:
        made, shown, end = stop
        ids, texts = ids[:made], texts[:made]
    if shown is None and not opening:
        return Part(ids, [vocabulary.escaped[token] for token in ids], "".join(texts), end)
    clipped = texts if shown is None else _clipped(texts, shown)
    clipped[0] = opening + clipped[0]
    return Part(ids, [json.dumps(text)[1:-1].encode() for text in clipped], "".join(clipped), end)


def abandoned() -> Part:
    """What a server that shuts down answers to a prompt it takes no more."""
    return Part([], [], "", End("abort"))


def tokens_of(ids: Sequence[int], vocabulary: Vocabulary) -> list[Token]:
    return [(token, vocabulary.texts[token]) for token in ids]


def _clipped(texts: Sequence[str], shown: int) -> list[str]:
    """The texts without what is behind the first `shown` characters of all."""
    kept = []
    for text in texts:
        kept.append(text[: max(0, shown)])
        shown -= len(text)
    return kept
