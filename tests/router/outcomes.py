"""How requests ended: of an outcome a test says only what matters to it."""

from typing import TypeVar

from router.outcome import Outcome
from router.placing import Placed

T = TypeVar("T", Outcome, Placed)

CHAT = "/v1/chat/completions"

_USUAL = {
    "route": CHAT,
    "model": "m",
    "replica": "r1",
    "reason": "prefix",
    "status": 200,
    "outcome": "ok",
    "duration_s": 0.3,
    "ttft_s": 0.02,
    "prompt_tokens": 0,
    "available_tokens": 0,
    "predicted_tokens": 0,
    "delivered_tokens": None,
    "output_tokens": 1,
    "basis": "exact",
    "retries": 0,
}


def outcome(
    prompt: int, *, available: int = 0, predicted: int = 0, delivered: int | None = None, **more: object
) -> Outcome:
    """A chat of so many prompt tokens that r1 answered well; `more` are fields of `Outcome`."""
    tokens = {"prompt_tokens": prompt, "available_tokens": available, "predicted_tokens": predicted}
    return Outcome(**{**_USUAL, **tokens, "delivered_tokens": delivered, **more})


def altered(value: T, **changes: object) -> T:
    """The same outcome, or the same placed request, but for `changes`."""
    names = ("request", "prompt", "view", "choice", "chosen") if isinstance(value, Placed) else tuple(_USUAL)
    return type(value)(**{**{name: getattr(value, name) for name in names}, **changes})
