"""Counting what decodes changes no decision: vLLM's own steps, in sums and with every event."""

import pytest

from sim.batched import BatchedReplica
from sim.errors import JobRefused
from sim.jobs import Job, JobId
from tests.sim.goldens import H100, async_job, hits, plain, recording, requests_of, sized, sync_job, told_events
from tests.sim.twins import chained


def small(blocks: int = 9, *, seqs: int = 4, budget: int = 64) -> BatchedReplica:
    return BatchedReplica(
        "r", H100, blocks=blocks, block_tokens=4, max_num_seqs=seqs, max_batched_tokens=budget, record_events=False
    )


@pytest.mark.parametrize("spans", [False, True], ids=["step by step", "spans of one step"])
def test_every_step_of_vllms_scheduler_has_no_difference(spans: bool) -> None:
    golden = recording("golden_scheduler_sync.json.gz")
    requests = requests_of(golden)
    replica = BatchedReplica("r", H100, **sized(golden), record_events=True)
    cached: dict[JobId, int] = {}
    for want in golden["steps"]:
        for name in want["add"]:
            replica.submit(sync_job(requests[name]))
        for name in want["abort"]:
            assert replica.abort(name)
        before = (replica.counters.computed_tokens, replica.counters.preemptions)
        if spans and replica.decode_steps():
            replica.taken(1, 0.0)
        elif replica.running or replica.waiting:
            replica.step_s()
        cached |= replica.admitted
        _, finished = replica.ended() if want["scheduled"] else ([], [])
        assert replica.counters.computed_tokens - before[0] == sum(want["scheduled"].values()), want["step"]
        assert replica.counters.preemptions - before[1] == len(want["preempted"]), want["step"]
        assert finished == [name for name, _ in want["finished"]], want["step"]
        assert plain(replica.cache.drained_events()) == told_events(want), want["step"]
        assert replica.cache.free_blocks == want["free_blocks"], want["step"]
    assert {name: cached[name] for name in hits(golden)} == hits(golden)
    assert replica.counters.preemptions == golden["num_preemptions"] == 9
    assert not replica.running
    assert not replica.waiting


def test_only_steps_without_news_are_taken_together() -> None:
    replica = small(20)
    assert replica.submit(Job(1, 6, 9, chained("abc")))
    assert replica.decode_steps() == 0
    replica.step_s()
    replica.ended()
    assert replica.decode_steps() == 8
    assert replica.submit(Job(2, 6, 2, ()))
    assert replica.decode_steps() == 0
    replica.step_s()
    replica.ended()
    assert replica.decode_steps() == 1
    replica.taken(1, 0.0)
    assert replica.ended() == ([], [2])


def test_blocks_that_are_free_end_a_span() -> None:
    replica = small(9)
    replica.submit(Job(1, 14, 16, ()))
    replica.step_s()
    replica.ended()
    assert replica.decode_steps() == 15
    replica.submit(Job(2, 13, 3, ()))
    replica.step_s()
    replica.ended()
    assert replica.cache.free_blocks == 0
    assert replica.decode_steps() == 1
    replica.taken(1, 0.0)
    replica.ended()
    assert replica.decode_steps() == 0
    replica.step_s()
    assert replica.counters.preemptions == 1


@pytest.mark.parametrize(
    ("job", "told"),
    [
        (Job(2, 30, 5, ()), "needs 9 blocks, replica r has 8"),
        (Job(1, 3, 3, ()), "already"),
        (Job(3, 0, 3, ()), "needs a token"),
    ],
)
def test_what_can_never_run_is_refused(job: Job, told: str) -> None:
    replica = small()
    replica.submit(Job(1, 3, 3, ()))
    with pytest.raises(JobRefused, match=told):
        replica.submit(job)


def test_more_sequences_than_tokens_are_refused_as_the_engine_does() -> None:
    with pytest.raises(ValueError, match="too few for 8 sequences"):
        small(seqs=8, budget=7)


@pytest.mark.parametrize("spans", [False, True], ids=["step by step", "spans of one step"])
def test_every_step_of_vllms_async_scheduler_has_no_difference(spans: bool) -> None:
    """Tokens, preemptions, hits and free blocks. Its events differ: it hashes what was decoded a step later."""
    golden = recording("golden_scheduler_async.json.gz")
    requests = requests_of(golden)
    replica = BatchedReplica("r", H100, **sized(golden), record_events=False, async_scheduling=True)
    cached: dict[JobId, int] = {}
    for want in golden["steps"]:
        for name in want["add"]:
            replica.submit(async_job(requests[name]))
        for name in want["abort"]:
            assert replica.abort(name)
        before = (replica.counters.computed_tokens, replica.counters.preemptions)
        if spans and replica.decode_steps():
            replica.taken(1, 0.0)
        elif replica.running or replica.waiting:
            replica.step_s()
        cached |= replica.admitted
        if replica.running or replica.waiting:
            replica.ended()
        assert replica.counters.computed_tokens - before[0] == sum(want["scheduled"].values()), want["step"]
        assert replica.counters.preemptions - before[1] == len(want["preempted"]), want["step"]
        if want["step"] < len(golden["steps"]) - 2:  # nothing is decided beside the last one to end
            assert replica.cache.free_blocks == want["free_blocks"], want["step"]
    assert {name: cached[name] for name in hits(golden)} == hits(golden)
    assert replica.counters.preemptions == golden["num_preemptions"] == 8
    assert replica.counters.finished + replica.counters.aborted == len(requests)
    assert not replica.running
    assert not replica.waiting
