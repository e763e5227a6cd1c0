"""A replica in virtual time decides what the step-by-step one does, and gives tokens when their steps are over."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cost import PROFILES
from sim.errors import JobRefused
from sim.jobs import Job
from sim.timed import TimedReplica
from tests.sim.twins import BLOCK, Abort, StepReplica, Submit, chained, lived, lives

H100 = PROFILES["llama-3.1-8b-h100"]


@settings(max_examples=250, deadline=None)
@given(lives(), st.integers(16, 40), st.integers(1, 6), st.integers(6, 40), st.booleans(), st.booleans())
def test_it_equals_the_replica_that_looks_at_every_block(
    acts: list[Submit | Abort], blocks: int, seqs: int, budget: int, record: bool, ahead: bool
) -> None:
    sizes = {"blocks": blocks, "block_tokens": BLOCK, "max_num_seqs": seqs, "max_batched_tokens": budget}
    plain = StepReplica("r", H100, record_events=record, async_scheduling=ahead, **sizes)
    fast = TimedReplica("r", H100, record_events=record, async_scheduling=ahead, **sizes)
    want, got = lived(plain, acts), lived(fast, acts)
    assert got.cached == want.cached
    assert got.finished == want.finished
    assert got.loads == want.loads
    assert got.first_s == pytest.approx(want.first_s, rel=1e-9)
    assert got.finished_s == pytest.approx(want.finished_s, rel=1e-9)
    assert got.events == want.events
    busy_s = plain.counters.busy_s
    assert fast.counters.busy_s == pytest.approx(busy_s, rel=1e-9)
    fast.counters.busy_s = busy_s
    assert fast.counters == plain.counters
    assert fast.cache.free_blocks == plain.cache.free_blocks == blocks - 1
    assert fast.cache.cached_keys == plain.cache.cached_keys
    for act in acts:
        if isinstance(act, Submit):
            keys = act.job.keys
            assert fast.cache.matched_blocks(keys, len(keys)) == len(plain.cache.matched(keys, len(keys)))


def one_step_s(prefill: int = 0, before: int = 0, decodes: int = 0, kv_tokens: int = 0) -> float:
    return H100.step_s(
        prefill_tokens=prefill,
        prefill_pairs=prefill * before + prefill * (prefill + 1) // 2,
        decode_sequences=decodes,
        decode_kv_tokens=kv_tokens,
        sequences=decodes + (prefill > 0),
    )


def test_one_job_alone_takes_its_chunks_and_then_a_step_a_token() -> None:
    replica = TimedReplica("r", H100, blocks=400, block_tokens=16, max_batched_tokens=512)
    assert replica.next_s is None
    seen = lived(replica, [Submit(5.0, Job(7, 1000, 3, ()))])
    assert seen.first_s[7] == pytest.approx(5.0 + one_step_s(512) + one_step_s(488, 512))
    decodes = one_step_s(decodes=1, kv_tokens=1001) + one_step_s(decodes=1, kv_tokens=1002)
    assert seen.finished_s[7] == pytest.approx(seen.first_s[7] + decodes)


def test_a_job_the_busy_engine_has_not_looked_at_can_be_aborted_and_not_sent_twice() -> None:
    replica = TimedReplica("r", H100, blocks=400, block_tokens=16, async_scheduling=True)
    replica.submit(Job(1, 100, 50, ()), 0.0)
    replica.submit(Job(2, 100, 50, ()), 0.001)
    with pytest.raises(JobRefused, match="job 2 is on replica r already"):
        replica.submit(Job(2, 100, 50, ()), 0.002)
    assert (replica.running, replica.waiting) == (1, 1)
    assert replica.abort(2, 0.003)
    assert not replica.abort(2, 0.003)
    assert lived(replica, []).finished == [1]
    assert (replica.counters.finished, replica.counters.aborted) == (1, 1)


def test_it_describes_itself_in_one_line() -> None:
    replica = TimedReplica("r", H100, blocks=9, block_tokens=4)
    replica.submit(Job(1, 9, 3, chained("ab")), 0.0)
    assert repr(replica) == "<TimedReplica r: 1 running, 0 waiting, 3 of 8 blocks pinned, 2 cached>"
    assert replica.kv_used_fraction == 3 / 8
