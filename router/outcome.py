"""One finished request, as everybody who counts is told of it.

The one rule: it is made once for a request and never changed. Not here: who is told (`accounts`).
"""

from typing import Final


class Outcome:
    """One finished request; None is what nobody told."""

    __slots__ = (
        "available_tokens",
        "basis",
        "delivered_tokens",
        "duration_s",
        "model",
        "outcome",
        "output_tokens",
        "predicted_tokens",
        "prompt_tokens",
        "reason",
        "replica",
        "retries",
        "route",
        "status",
        "ttft_s",
    )

    def __init__(
        self,
        *,
        route: str,
        model: str,
        replica: str,
        reason: str,
        status: int,
        outcome: str,
        duration_s: float,
        ttft_s: float | None,
        prompt_tokens: int,
        available_tokens: int,
        predicted_tokens: int,
        delivered_tokens: int | None,
        output_tokens: int | None,
        basis: str,
        retries: int,
    ) -> None:
        self.route: Final = route
        self.model: Final = model
        self.replica: Final = replica
        self.reason: Final = reason
        self.status: Final = status
        self.outcome: Final = outcome
        self.duration_s: Final = duration_s
        self.ttft_s: Final = ttft_s
        self.prompt_tokens: Final = prompt_tokens
        self.available_tokens: Final = available_tokens
        self.predicted_tokens: Final = predicted_tokens
        self.delivered_tokens: Final = delivered_tokens
        self.output_tokens: Final = output_tokens
        self.basis: Final = basis
        self.retries: Final = retries

    def __repr__(self) -> str:
        return f"<Outcome {self.outcome} of {self.route} on {self.replica}>"
