"""Views of a fleet in a line of text, prompts of a length, and any of both for hypothesis."""

from hypothesis import strategies as st
from msgspec.structs import replace

from policies.conformance import sample_request
from policies.types import Replica, Request

FRACTIONS = "wk"
LETTERS = {
    "f": "in_flight",
    "p": "pending_prefill_tokens",
    "m": "matched_blocks",
    "s": "shared_blocks",
    "c": "scarce_blocks",
    "h": "held_blocks",
    "n": "capacity_blocks",
    "w": "weight",
    "q": "engine_waiting",
    "k": "engine_kv_used_fraction",
}


def replicas(text: str) -> tuple[Replica, ...]:
    """`"r1 m=4 p=900 | r2 f=3 q=2 k=0.5"`, see LETTERS."""
    made = []
    for part in text.split("|"):
        name, *pairs = part.split()
        values = {
            LETTERS[letter]: float(value) if letter in FRACTIONS else int(value)
            for letter, _, value in (pair.partition("=") for pair in pairs)
        }
        made.append(replace(Replica(name, 0, 0, 0, 0, 0, None, 1.0), **values))  # type: ignore[arg-type]
    return tuple(made)


def prompt(tokens: int, number: int = 0) -> Request:
    """A prompt of so many tokens in blocks of 16; those of one number begin alike."""
    return replace(sample_request(number, blocks=max(0, tokens - 1) // 16), prompt_tokens=tokens)


@st.composite
def any_view(draw: st.DrawFn) -> tuple[Request, tuple[Replica, ...]]:
    """A request and up to six replicas; small numbers, so that equals and zeros are common."""
    tokens = draw(st.integers(0, 200))
    request = prompt(tokens, draw(st.integers(0, 3)))
    names = draw(st.permutations([f"r{number}" for number in range(6)]))
    few = st.integers(0, 3)
    view = tuple(
        Replica(
            name,
            in_flight=draw(few),
            pending_prefill_tokens=16 * draw(few),
            matched_blocks=draw(st.integers(0, len(request.blocks))),
            shared_blocks=0,
            held_blocks=draw(few),
            capacity_blocks=draw(st.none() | few),
            weight=1.0,
            engine_waiting=draw(st.none() | few),
            engine_kv_used_fraction=draw(st.none() | st.sampled_from([0.0, 0.5, 1.0])),
        )
        for name in names[: draw(st.integers(1, 6))]
    )
    return request, view
