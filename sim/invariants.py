"""What must hold of a cache in runs between any two calls: for tests and for hunting faults, too slow for a simulation.

The one rule: every sum that the cache keeps is counted again from its parts.
"""

from collections.abc import Iterable

from sim.run_cache import RunCache
from sim.runs import Hold, Run


def broken(cache: RunCache, holds: Iterable[tuple[Hold, int]]) -> list[str]:
    """What does not hold, a sentence each; give every request that holds blocks, with how many they are."""
    held = list(holds)
    cached_keys = cache.cached_keys  # first: it brings every run up to now
    runs = {run for run, _ in (entry for hold, _ in held for entry in hold.path)}
    runs |= {stretch.run for stretch in cache._queue} | set(cache._runs.values())
    told = [fault for run in runs for fault in _broken_run(cache, run)]
    resident = sum(run.top - run.start for run in runs)
    idle = sum(stretch.high - stretch.low for stretch in cache._queue)
    private = sum(blocks - hold.filled for hold, blocks in held)
    sums = {
        "free blocks are not the nameless and the idle ones": cache.free_blocks - cache._nameless - idle,
        "free, pinned and private blocks are not all blocks": (
            cache.usable_blocks - cache.free_blocks - resident - private
        ),
        "cached keys are not those of the oldest copies": (
            cached_keys - sum(run.end - run.start for run in cache._runs.values())
        ),
    }
    told += [f"{sentence}: off by {rest}" for sentence, rest in sums.items() if rest]
    told += [f"{run.keys[run.start]!r} is in no run" for key, run in cache._runs.items() if run.keys[run.start] != key]
    return told


def _broken_run(cache: RunCache, run: Run) -> list[str]:
    name = f"the run of {run.start}:{run.end}"
    pinned = run.end if run.owner is not None else max(run.pins, default=run.start)
    places = [run.end, *(place for stretch in run.stretches for place in (stretch.high, stretch.low)), run.top]
    told = []
    if pinned != run.top:
        told.append(f"{name} is pinned up to {pinned}, not {run.top}")
    if run.start > run.top or any(a != b for a, b in zip(places[::2], places[1::2], strict=True)):
        told.append(f"{name} has free stretches {places[1:-1]} above {run.top}")
    if any(stretch not in cache._queue for stretch in run.stretches):
        told.append(f"{name} has a stretch that is not in the queue")
    if run.oldest != (cache._runs.get(run.keys[run.start]) is run):
        told.append(f"{name} is not found as the oldest copy, or is though it is not")
    return told
