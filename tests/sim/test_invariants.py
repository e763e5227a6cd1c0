"""The sums of a cache in runs hold between any two calls."""

from hypothesis import given, settings

from sim.cost import PROFILES
from sim.invariants import broken
from sim.run_cache import RunCache
from sim.runs import Hold
from sim.timed import TimedReplica
from tests.sim.twins import Abort, Submit, Timed, chained, lived, lives


def told(replica: Timed) -> list[str]:
    assert isinstance(replica, TimedReplica)
    engine = replica._engine
    return broken(replica.cache, [(each, -(-each.tokens // replica.cache.block_tokens)) for each in engine.running])


@settings(max_examples=100, deadline=None)
@given(lives())
def test_nothing_is_broken_in_any_life(acts: list[Submit | Abort]) -> None:
    found: list[str] = []
    replica = TimedReplica(
        "r", PROFILES["llama-3.1-8b-h100"], blocks=20, block_tokens=4, max_num_seqs=4, max_batched_tokens=24
    )
    lived(replica, acts, lambda each: found.extend(told(each)))
    assert found == []


def test_what_is_broken_is_told() -> None:
    cache = RunCache(9, 4)
    hold = Hold(chained("abc"))
    cache.allocated(3)
    cache.filled(hold, 3)
    assert broken(cache, [(hold, 3)]) == []
    assert broken(cache, [(hold, 4)]) == ["free, pinned and private blocks are not all blocks: off by -1"]
    cache.free_blocks -= 1
    assert broken(cache, [(hold, 3)]) == [
        "free blocks are not the nameless and the idle ones: off by -1",
        "free, pinned and private blocks are not all blocks: off by 1",
    ]
    cache.free_blocks += 1
    hold.path[0][0].top = 2
    assert any("is pinned up to 3, not 2" in fault for fault in broken(cache, [(hold, 3)]))
