"""What breakers cost and what mending them would save: the same prompts through a cache, as sent and as edited.

The one rule: the replay is the simulator's, given by the caller; nothing about caches is known here. Without a
tokenizer a prompt is its parts' bytes, four a token, which keeps common what is common.
"""

from collections.abc import Callable, Iterable, Sequence

from policies.blocks import TOKEN_BYTES, Chain, block_keys, packed
from router.doctor.edits import Edit
from router.doctor.parts import Asked, Body, asked
from router.prompt_bodies import BYTES_PER_TOKEN

TokenIds = Callable[[str, Body], Sequence[int] | None]
"""Route and body in, the engine's token ids out; None where they can't be had."""
Prompt = tuple[int, Sequence[bytes]]
Replay = Callable[[Iterable[Prompt], int], int]
"""Prompts and the size of a block in; tokens that a cache which forgets nothing would have hit."""


def prompt_of(ask: Asked, tokens: TokenIds | None, block_tokens: int) -> Prompt:
    """Tokens of a prompt and the keys of its full blocks."""
    roots = dict(ask.roots)
    salt = roots.pop("cache_salt", "")
    root = Chain.root(roots.pop("model", ""), repr(sorted(roots.items())) if tokens is None else "", salt)
    ids = tokens(ask.route, ask.body) if tokens is not None else None
    data = packed(ids) if ids is not None else written(ask)
    return -(-len(data) // TOKEN_BYTES), block_keys(root, data, block_tokens)


def written(ask: Asked) -> bytes:
    """The prompt in plain form; every part is a whole number of tokens."""
    pieces = []
    for part in ask.parts:
        data = f"\x1e{part.role}\x1f{part.text}".encode("utf-8", "surrogatepass")
        pieces.append(data + bytes(-len(data) % BYTES_PER_TOKEN))
    return b"".join(pieces)


def replayed(
    sample: Sequence[Asked], edits: Sequence[Edit], replay: Replay, *, tokens: TokenIds | None, block_tokens: int
) -> tuple[int, int]:
    """Prompt tokens of the sample, and how many of them a cache would have hit, with `edits` applied."""
    prompts = []
    for ask in sample:
        body = ask.body
        for edit in edits:
            body = edit.done(body)
        changed = ask if body is ask.body else asked(ask.route, body, ask.time_s)
        prompts.append(prompt_of(changed, tokens, block_tokens))
    return sum([size for size, _ in prompts]), replay(prompts, block_tokens)


def parting(pair: tuple[Asked, Asked], edits: Sequence[Edit], tokens: TokenIds) -> tuple[int, int] | None:
    """After how many tokens two prompts part, and how much further they would go together with the best of `edits`.

    None where their tokens can't be had.
    """
    same = _together([ask.body for ask in pair], pair[0].route, tokens)
    if same is None:
        return None
    mended = [_together([edit.done(ask.body) for ask in pair], pair[0].route, tokens) for edit in edits]
    return same, max([0, *(further - same for further in mended if further is not None)])


def _together(bodies: Sequence[Body], route: str, tokens: TokenIds) -> int | None:
    one, other = (tokens(route, body) for body in bodies)
    if one is None or other is None:
        return None
    unequal = (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(unequal, min(len(one), len(other)))
