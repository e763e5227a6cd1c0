"""The doctor: takes requests one by one, finds what breaks their prefixes, and says it as findings.

A pair of prompts that share text behind the place where they part is looked at closely; of many such pairs of one
family only every sixteenth, which stands for the others. The one rule: a finding breaks the prefix only when it costs
a real share of its family's tokens again and again. Not here: words and tables (`report`).
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, field

from router.doctor.causes import Cause, cause_of
from router.doctor.divergence import Gap, gaps
from router.doctor.edits import END, Edit, advice, edits_of
from router.doctor.families import Families, Placed, hashed
from router.doctor.findings import Diagnosis, FamilyHealth, Finding
from router.doctor.parts import Asked
from router.doctor.savings import Replay, TokenIds, parting, replayed
from router.prompt_bodies import BYTES_PER_TOKEN

LEAST_SHARED = 0.03
"""Share of a prompt that must stand behind a gap for the pair to be worth a look."""
LEAST_LOST = {"certain": 0.05, "likely": 0.05, "guess": 0.15}
"""Share of a family's tokens from which a finding breaks the prefix, by how sure its cause is."""
_LEAST_CHARS = 64
_ALL = 64
_EVERY = 16
_SAMPLE = 128
_SAMPLE_CHARS = 2 * 1024 * 1024
_SAMPLES_CHARS = 24 * 1024 * 1024
_VALUES = 4096
_COUNTED = 8  # pairs of one place whose tokens are counted; rendering takes a while


class _Tally(Struct):
    gap: Gap
    cause: Cause
    edits: tuple[Edit, ...]
    block: int
    first: int
    requests: int = 0
    lost_chars: float = 0.0
    counted: int = 0
    counted_chars: float = 0.0
    counted_tokens: int = 0
    """Of the first pairs, whose tokens were counted: how much text and how many tokens were lost."""


class _Mended(Struct, frozen=True):
    """The better way to mend a place, and the tokens of the sample it saves."""

    to: str
    saved: int | None


class _Family(Struct):
    route: str
    model: str
    requests: int = 0
    chars: int = 0
    suspects: int = 0
    unseen: int = 0
    tallies: dict[tuple[str, str], _Tally] = field(default_factory=dict)
    sample: list[Asked] = field(default_factory=list)
    sample_chars: int = 0
    salts: set[int] = field(default_factory=set)


class Doctor:
    """Takes requests in order; `diagnosis` may be asked for at any time."""

    def __init__(self, *, tokens: TokenIds | None = None, block_tokens: int = 16, pair: bool = False) -> None:
        """`pair`: two bodies that ought to share a prefix are given, so one loss is enough."""
        self._tokens = tokens
        self._block_tokens = block_tokens
        self._pair = pair
        self._families = Families()
        self._health: dict[int, _Family] = {}
        self._requests = 0
        self._short = 0
        self._sampled_chars = 0
        self._chars_per_token = [0, 0]
        self._from_s: float | None = None
        self._to_s: float | None = None

    def __repr__(self) -> str:
        return f"<Doctor {self._requests} requests, {len(self._health)} families>"

    def seen(self, ask: Asked) -> None:
        """Take one request."""
        if not ask.parts:
            return
        self._requests += 1
        self._short += ask.chars <= self._block_tokens * BYTES_PER_TOKEN
        if ask.time_s is not None:
            self._from_s = min(ask.time_s, ask.time_s if self._from_s is None else self._from_s)
            self._to_s = max(ask.time_s, ask.time_s if self._to_s is None else self._to_s)
        placed = self._families.placed(ask, 0.0 if self._pair else LEAST_SHARED)
        family = self._health.get(placed.family)
        if family is None:
            family = self._health[placed.family] = _Family(ask.route, dict(ask.roots).get("model", ""))
        family.requests += 1
        family.chars += ask.chars
        salt = dict(ask.roots).get("cache_salt")
        if salt is not None and len(family.salts) < _VALUES:
            family.salts.add(hashed(salt))
        self._sampled(family, ask)
        if placed.partner is not None:
            self._suspected(family, ask, placed, placed.partner.asked)

    def _sampled(self, family: _Family, ask: Asked) -> None:
        room = min(_SAMPLE_CHARS - family.sample_chars, _SAMPLES_CHARS - self._sampled_chars)
        if len(family.sample) < _SAMPLE and ask.chars <= room:
            family.sample.append(ask)
            family.sample_chars += ask.chars
            self._sampled_chars += ask.chars

    def _suspected(self, family: _Family, ask: Asked, placed: Placed, partner: Asked) -> None:
        family.suspects += 1
        family.unseen += 1
        if family.suspects > _ALL and family.suspects % _EVERY:
            return
        weight, family.unseen = family.unseen, 0
        found = gaps(partner, ask)
        least = max(_LEAST_CHARS, (0.0 if self._pair else LEAST_SHARED) * ask.chars)
        for gap in found:
            lost = min(gap.later_chars, ask.chars - placed.prefix_chars)
            if lost < least or gap.end_chars < placed.prefix_chars:
                continue  # an earlier prompt goes past it all the same
            cause = cause_of(gap)
            if cause is None:
                return  # from here on they are different prompts
            self._counted(family, gap, cause, (partner, ask), lost * weight, weight)

    def _counted(
        self, family: _Family, gap: Gap, cause: Cause, pair: tuple[Asked, Asked], lost: float, weight: int
    ) -> None:
        key = (_place(gap), cause.kind)
        tally = family.tallies.get(key)
        if tally is None:
            if len(family.tallies) >= _ALL:
                return
            block = gap.chars_before // BYTES_PER_TOKEN // self._block_tokens
            tally = family.tallies[key] = _Tally(gap, cause, edits_of(gap, cause), block, gap.chars_before)
        if self._tokens is not None and tally.counted < _COUNTED:
            found = parting(pair, tally.edits, self._tokens)
            if found is not None:
                if not tally.counted:
                    tally.block = 0 if gap.member else found[0] // self._block_tokens
                tally.counted += 1
                if found[1]:
                    tally.counted_tokens += found[1]
                    tally.counted_chars += lost / weight
        tally.requests += weight
        tally.lost_chars += lost
        tally.first = min(tally.first, gap.chars_before)

    # -- what was found --------------------------------------------------------------------------------------------

    def diagnosis(self, replay: Replay | None, notes: Iterable[str] = ()) -> Diagnosis:
        """All that was found so far; without a replay nothing is said of what mending would save."""
        families = sorted(self._health.items(), key=lambda item: -item[1].chars)
        told = tuple(self._told(number, family, replay) for number, family in families)
        spent = None if self._from_s is None or self._to_s is None else self._to_s - self._from_s
        return Diagnosis(
            requests=self._requests,
            prompt_tokens=sum([family.prompt_tokens for family in told]),
            exact=self._tokens is not None,
            block_tokens=self._block_tokens,
            duration_s=spent or None,
            families=told,
            notes=(*self._notes(), *notes),
        )

    def _notes(self) -> Iterator[str]:
        if self._short:
            yield (
                f"{self._short:,} of {self._requests:,} prompts are shorter than a block of"
                f" {self._block_tokens} tokens: nothing of them can be found in a cache"
            )

    def _told(self, number: int, family: _Family, replay: Replay | None) -> FamilyHealth:
        tallies = sorted(family.tallies.values(), key=lambda tally: tally.first)
        tallies = [tally for tally in tallies if self._counts(tally, family)]
        tokens, mended = self._measured(family, tallies, replay)
        per_char = tokens / family.sample_chars if tokens else 1 / BYTES_PER_TOKEN
        scale = family.chars / family.sample_chars if family.sample_chars else 0.0
        findings = tuple(
            self._finding(number, family, tally, per_char, mending, scale)
            for tally, mending in zip(tallies, mended, strict=True)
        )
        return FamilyHealth(
            number, family.route, family.model, family.requests, round(family.chars * per_char), findings
        )

    def _counts(self, tally: _Tally, family: _Family) -> bool:
        """Whether it is worth saying; a salt that comes back is a tenant's, and wanted."""
        if self._pair:
            return True
        if tally.cause.kind == "salt" and len(family.salts) < 0.5 * family.requests:
            return False
        return tally.requests >= 2 and tally.lost_chars >= 0.01 * family.chars

    def _measured(
        self, family: _Family, tallies: Sequence[_Tally], replay: Replay | None
    ) -> "tuple[int, list[_Mended]]":
        """Tokens of the sample, and what mending each place saves there together with those before it."""

        def hits(edits: Sequence[Edit]) -> tuple[int, int]:
            tokens, block_tokens = self._tokens, self._block_tokens
            return replayed(family.sample, edits, replay or _none, tokens=tokens, block_tokens=block_tokens)

        if not tallies and self._tokens is None:
            return 0, []
        total, before = hits(())
        found: list[_Mended] = []
        taken: list[Edit] = []
        for tally in tallies:
            tried = [(hits([*taken, edit])[1], edit) for edit in tally.edits]
            if not tried or not family.sample or replay is None:
                found.append(_Mended(END, None))
                continue
            after, best = max(tried, key=lambda one: one[0])
            taken.append(best)
            found.append(_Mended(best.to, max(0, after - before)))
        return total, found

    def _finding(
        self, number: int, family: _Family, tally: _Tally, per_char: float, mended: "_Mended", scale: float
    ) -> Finding:
        of_text = tally.counted_tokens / tally.counted_chars if tally.counted_chars else per_char
        lost = min(1.0, tally.lost_chars * of_text / (family.chars * per_char))
        often = tally.requests >= max(2, 0.1 * family.requests)
        breaks = self._pair or (often and lost >= LEAST_LOST[tally.cause.sure])
        return Finding(
            family=number,
            path=tally.gap.path,
            role=tally.gap.role,
            message=tally.gap.message,
            offset=tally.gap.offset,
            cause=tally.cause,
            block=tally.block,
            exact=self._tokens is not None,
            requests=tally.requests,
            lost_tokens=round(lost * family.chars * per_char),
            lost_fraction=lost,
            breaks=breaks,
            advice=advice(tally.cause.kind, tally.gap.path, mended.to),
            saved_tokens=None if mended.saved is None else round(mended.saved * scale),
            values=(tally.gap.a_span, tally.gap.b_span),
        )


def _none(prompts: object, block_tokens: int) -> int:
    """Stands for a replay where there is none."""
    del prompts, block_tokens
    return 0


def _place(gap: Gap) -> str:
    """Where, so that the same place of another prompt has the same name: messages of a history are all one."""
    if gap.role in ("tools", "documents"):
        return gap.role
    if gap.message is None or gap.message < 2:
        return gap.path
    name, _, rest = gap.path.partition("]")
    return f"{name.partition('[')[0]}[*]{rest}"
