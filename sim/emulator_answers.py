"""What an emulated model says: words drawn from the tokenizer's own vocabulary, the same for the same prompt.

The one rule: an answer is canonical, its text tokenizes back to the very ids the engine made, so that a client that
sends it back as history finds the answer's blocks cached. Where a vocabulary has enough of them, answers are whole
words with a space before; else any piece that prints.
"""

import hashlib
import json
import random
import re
from collections.abc import Callable, Sequence

_WORD = re.compile(r" [a-z]{2,}")
_OPENING = re.compile(r"[A-Z][a-z]+")
_PRINTS = re.compile(r"[!-;=?-~]+")  # printable ASCII without < and >, which may open markup or special tokens
_ENOUGH = 64
_SHORTEST, _LONGEST = 50, 400


class Vocabulary:
    """The ids an emulated model may say, with their texts, plain and as the inside of a JSON string."""

    def __init__(self, detokenize: Callable[[list[int]], str], size: int) -> None:
        texts: dict[int, str] = {}
        for token in range(size):
            try:
                texts[token] = detokenize([token])
            except (ValueError, IndexError, KeyError, OverflowError):
                continue
        words = [token for token, text in texts.items() if _WORD.fullmatch(text)]
        openings = [token for token, text in texts.items() if _OPENING.fullmatch(text)]
        if len(words) < _ENOUGH or not openings:
            words = openings = [token for token, text in texts.items() if _PRINTS.fullmatch(text)]
        if not words:
            raise ValueError(f"none of the first {size} token ids is printable text: give another detokenize")
        self._words = words
        self._openings = openings
        self.texts = {token: texts[token] for token in {*words, *openings}}
        self.escaped = {token: json.dumps(text)[1:-1].encode() for token, text in self.texts.items()}

    def answer(self, prompt: bytes, choice: int, tokens: int | None) -> list[int]:
        """The answer to packed prompt ids; token i depends on prompt, choice and i only. None draws the length."""
        seed = hashlib.sha256(choice.to_bytes(4, "little") + prompt).digest()
        draw = random.Random(seed)
        length = draw.randint(_SHORTEST, _LONGEST)
        if tokens is not None:
            length = tokens
        return [draw.choice(self._openings), *draw.choices(self._words, k=length - 1)]

    def text(self, ids: Sequence[int]) -> str:
        return "".join([self.texts[token] for token in ids])
