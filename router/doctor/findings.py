"""What the doctor says: findings of families of prompts.

The one rule: these are values; tokens are the model's own where `exact`, else four characters each. Not here: how they
are found (`checkup`), and how they are told (`report`).
"""

from collections import Counter

from msgspec import Struct

from router.doctor.causes import Cause


class Finding(Struct, frozen=True):
    """One place that breaks the prefix of a family, or dents it."""

    family: int
    path: str
    role: str
    message: int | None
    offset: int
    cause: Cause
    block: int
    """The first block that is lost, in the first pair that was found; from 0."""
    exact: bool
    """Whether `block` and tokens are of the model's own tokens."""
    requests: int
    """How many requests it cost something (an estimate beyond the first ones)."""
    lost_tokens: int
    """Tokens computed again because of it, over all requests read."""
    lost_fraction: float
    """Of the family's prompt tokens."""
    breaks: bool
    advice: str
    saved_tokens: int | None
    """What mending this and the family's findings above it would save, replayed; None where it can't be replayed."""
    values: tuple[str, str]
    """What stands there in the two prompts of the first pair: the client's text, to be masked."""


class FamilyHealth(Struct, frozen=True):
    number: int
    route: str
    model: str
    requests: int
    prompt_tokens: int
    findings: tuple[Finding, ...]


class Diagnosis(Struct, frozen=True):
    requests: int
    prompt_tokens: int
    exact: bool
    block_tokens: int
    duration_s: float | None
    families: tuple[FamilyHealth, ...]
    notes: tuple[str, ...] = ()
    """What a reader must know, a sentence each."""

    @property
    def breaks(self) -> bool:
        return any(one.breaks for family in self.families for one in family.findings)


def kinds(diagnosis: Diagnosis) -> Counter[str]:
    """How many findings that break there are of each kind."""
    return Counter(one.cause.kind for family in diagnosis.families for one in family.findings if one.breaks)
