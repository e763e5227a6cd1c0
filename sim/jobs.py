"""What goes into a replica and what comes out: jobs, the steps it decides, the tokens they give, and its sums.

The one rule: these are values, without a clock and without the engine's state. The scheduler is in `replica`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from policies.blocks import Chain, block_keys, packed
from sim.errors import JobRefused

JobId = str | int
"""The emulator names jobs as the engine does, the simulator counts them."""


class Job:
    """One request as the engine sees it: lengths, and the keys of all full blocks of prompt and answer together.

    Blocks without a key, all or the last ones, can't be hit by anybody.
    """

    __slots__ = ("id", "keys", "output_tokens", "prompt_tokens", "reads_cache")

    def __init__(
        self, job_id: JobId, prompt_tokens: int, output_tokens: int, keys: tuple[bytes, ...], reads_cache: bool = True
    ) -> None:
        self.id = job_id
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.keys = keys
        self.reads_cache = reads_cache

    def check_fits(self, replica: str, usable_blocks: int, block_tokens: int) -> None:
        """Raise `JobRefused` when a replica of this size could never run it."""
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise JobRefused(f"job {self.id} needs a token of prompt and one of answer at least")
        need = -(-(self.prompt_tokens + self.output_tokens - 1) // block_tokens)
        if need > usable_blocks:
            raise JobRefused(
                f"job {self.id} needs {need} blocks, replica {replica} has {usable_blocks}: "
                "shorten it or enlarge the cache"
            )

    @classmethod
    def of(
        cls,
        job_id: JobId,
        root: Chain,
        prompt: Sequence[int],
        output: Sequence[int],
        block_tokens: int,
        *,
        reads_cache: bool = True,
    ) -> "Job":
        """A job whose answer is known in advance; `root` carries model, adapter and salt."""
        keys = block_keys(root, packed(prompt) + packed(output), block_tokens)
        return cls(job_id, len(prompt), len(output), keys, reads_cache)


@dataclass(frozen=True, slots=True)
class Step:
    """What one step computes. `admitted` gives the prompt tokens found in the cache, first admissions only."""

    duration_s: float
    scheduled: dict[JobId, int]
    admitted: dict[JobId, int]
    preempted: tuple[JobId, ...]


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a finished step gave: every id in `made` got one token; it was the first or the last of some."""

    made: tuple[JobId, ...]
    first: tuple[JobId, ...]
    finished: tuple[JobId, ...]


@dataclass(slots=True)
class Counters:
    """Sums since the start, as the engine's metrics count them."""

    queried_tokens: int = 0
    hit_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    finished: int = 0
    aborted: int = 0
    steps: int = 0
    busy_s: float = 0.0
