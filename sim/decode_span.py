"""Steps in a row in which every sequence decodes one token: how long they take together.

The one rule: nothing joins and nothing leaves, so the KV tokens that are read grow by the number of sequences each
step, and step i of the span takes `first_s + growth_s * i` (i from 0). Not here: how many steps may follow each other.
"""

import math

from sim.cost import Profile


class DecodeSpan:
    """`steps` steps from `begin_s` on."""

    __slots__ = ("begin_s", "first_s", "growth_s", "steps")

    def __init__(self, begin_s: float, steps: int, first_s: float, growth_s: float) -> None:
        self.begin_s = begin_s
        self.steps = steps
        self.first_s = first_s
        self.growth_s = growth_s

    def after_s(self, steps: int) -> float:
        """Seconds that the first `steps` steps take: an arithmetic series."""
        return steps * self.first_s + self.growth_s * (steps * (steps - 1) / 2)

    @property
    def end_s(self) -> float:
        return self.begin_s + self.after_s(self.steps)

    def begun(self, now_s: float) -> int:
        """Steps that have begun before `now_s`, at least one and at most `steps`."""
        passed_s = now_s - self.begin_s
        linear = self.first_s - self.growth_s / 2
        if self.growth_s > 0.0:
            guess = (math.sqrt(linear * linear + 2 * self.growth_s * max(0.0, passed_s)) - linear) / self.growth_s
        else:
            guess = passed_s / linear if linear > 0.0 else 0.0
        count = min(max(1, math.ceil(guess)), self.steps)
        while count > 1 and self.after_s(count - 1) >= passed_s:
            count -= 1
        while count < self.steps and self.after_s(count) < passed_s:
            count += 1
        return count


class DecodeCost:
    """Seconds of decode-only steps of one profile, by the number of sequences."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._without_kv_s: list[float] = []

    def span(self, begin_s: float, steps: int, sequences: int, kv_tokens: int) -> DecodeSpan:
        """`kv_tokens` is what the first step reads."""
        known = self._without_kv_s
        while len(known) <= sequences:
            known.append(
                self._profile.step_s(
                    prefill_tokens=0,
                    prefill_pairs=0,
                    decode_sequences=len(known),
                    decode_kv_tokens=0,
                    sequences=len(known),
                )
            )
        ck_s = self._profile.ck_s
        return DecodeSpan(begin_s, steps, known[sequences] + ck_s * kv_tokens, ck_s * sequences)
