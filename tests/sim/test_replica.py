"""The replica decides what vLLM's own scheduler decided, step by step."""

from collections import defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.blocks import Chain
from sim.cache_events import Removed, Stored
from sim.errors import JobRefused
from sim.jobs import Job, Step
from sim.replica import SimReplica
from tests.sim.goldens import H100, engine_keys, hits, plain, recording, requests_of, sized, sync_job, told_events


def run(replica: SimReplica, job: Job) -> int:
    """One job alone; its cached tokens."""
    replica.submit(job)
    cached = 0
    while (step := replica.step()) is not None:
        cached += step.admitted.get(job.id, 0)
        replica.finish_step()
    return cached


def job(name: str, prompt: Sequence[int], output: int = 4, salt: str = "") -> Job:
    return Job.of(name, Chain.root("m", salt=salt), prompt, range(9000, 9000 + output), 4)


def small(blocks: int = 9, **settings: int) -> SimReplica:
    return SimReplica("r", H100, blocks=blocks, block_tokens=4, record_events=True, **settings)


def test_sequential_replay_of_a_real_server_has_no_difference() -> None:
    golden = recording("golden_replay_sequential.json.gz")
    replica = SimReplica("r", H100, blocks=golden["num_gpu_blocks"], block_tokens=32, record_events=True)
    replica.clear_cache()  # the recording begins with a reset
    for step in golden["steps"]:
        if step["op"] != "generate":
            assert replica.clear_cache()
            continue
        prompt, output = step["prompt_token_ids"], step["output_token_ids"]
        one = Job(
            f"s{step['i']}",
            len(prompt),
            len(output),
            engine_keys(prompt + output, 32, step["cache_salt"]),
            reads_cache=not step["skip_reading_prefix_cache"],
        )
        assert run(replica, one) == step["cached_tokens"], step["name"]
        want: list[tuple[object, ...]] = []
        for event in step["events"]:
            if event["type"] == "BlockStored":
                want.append(("S", event["hashes"], event["parent"]))
            elif event["type"] == "BlockRemoved":
                want += [("R", key) for key in event["hashes"]]
            else:
                want.append(("C",))
        assert plain(replica.cache.drained_events()) == want, step["name"]
    assert replica.counters.queried_tokens == golden["metrics_delta"]["vllm:prefix_cache_queries_total"]
    assert replica.counters.hit_tokens == golden["metrics_delta"]["vllm:prefix_cache_hits_total"]


def test_every_step_of_vllms_scheduler_has_no_difference() -> None:
    golden = recording("golden_scheduler_sync.json.gz")
    requests = requests_of(golden)
    replica = SimReplica("r", H100, **sized(golden), record_events=True)
    cached: dict[str, int] = {}
    for want in golden["steps"]:
        for name in want["add"]:
            replica.submit(sync_job(requests[name]))
        for name in want["abort"]:
            assert replica.abort(name)
        step = replica.step() or Step(0.0, {}, {}, ())
        cached |= step.admitted
        tokens = replica.finish_step()
        assert step.scheduled == want["scheduled"], want["step"]
        assert list(step.scheduled) == list(want["scheduled"]), want["step"]
        assert sorted(step.preempted) == want["preempted"], want["step"]
        assert list(tokens.finished) == [name for name, _ in want["finished"]], want["step"]
        assert plain(replica.cache.drained_events()) == told_events(want), want["step"]
        assert replica.cache.free_blocks == want["free_blocks"], want["step"]
    assert {name: cached[name] for name in hits(golden)} == hits(golden)
    assert replica.counters.preemptions == golden["num_preemptions"] == 9
    assert replica.idle


def test_a_prompt_of_whole_blocks_hits_all_but_the_last_and_stores_that_twice() -> None:
    replica = small()
    assert run(replica, job("a", range(8), 1)) == 0
    assert run(replica, job("b", range(8), 1)) == 4
    stored = [event for event in replica.cache.drained_events() if isinstance(event, Stored)]
    assert [len(event.keys) for event in stored] == [2, 1]
    assert stored[1].keys == stored[0].keys[1:]


def test_the_last_sampled_token_is_never_computed() -> None:
    replica = small()
    run(replica, job("a", range(3), 1))
    assert replica.cache.cached_keys == 0
    run(replica, job("b", range(3), 2))
    assert replica.cache.cached_keys == 1


def test_the_next_turn_hits_the_answer() -> None:
    replica = small(20)
    run(replica, job("a", range(5), 8))
    assert run(replica, job("b", [*range(5), *range(9000, 9008), 1, 2, 3])) == 12


def test_prompts_sent_at_once_hit_each_other_in_the_same_step() -> None:
    replica = small(40)
    for name in "abc":
        replica.submit(job(name, range(18)))
    step = replica.step()
    assert step is not None
    assert step.admitted == {"a": 0, "b": 16, "c": 16}


def test_salts_and_adapters_share_nothing() -> None:
    replica = small(40)
    run(replica, job("a", range(9), salt="one"))
    assert run(replica, job("b", range(9), salt="two")) == 0
    assert run(replica, job("c", range(9), salt="one")) == 8


def test_abort_keeps_the_blocks_cached_and_gives_no_more_tokens() -> None:
    replica = small(40)
    replica.submit(job("a", range(9), 8))
    replica.step()
    assert replica.abort("a")
    assert replica.finish_step().made == ()
    assert replica.idle
    assert replica.kv_used_fraction == 0
    assert not replica.abort("a")
    assert run(replica, job("b", range(9))) == 8


def test_a_job_that_can_never_fit_is_refused() -> None:
    with pytest.raises(JobRefused, match="needs 9 blocks, replica r has 8"):
        small().submit(job("a", range(30), 5))


def test_a_second_job_of_the_same_id_is_refused() -> None:
    replica = small()
    replica.submit(job("a", range(3)))
    with pytest.raises(JobRefused, match="already"):
        replica.submit(job("a", range(3)))


def test_the_cache_is_not_cleared_under_a_running_request() -> None:
    replica = small()
    replica.submit(job("a", range(5)))
    replica.step()
    assert not replica.clear_cache()
    replica.abort("a")
    assert replica.clear_cache()


def test_it_describes_itself_in_one_line() -> None:
    replica = small()
    replica.submit(job("a", range(9)))
    replica.step()
    assert repr(replica) == "<SimReplica r: 1 running, 0 waiting, 3 of 8 blocks pinned, 2 cached>"


def test_a_longer_step_costs_more() -> None:
    short, long = small(400), small(400)
    short.submit(job("a", range(10)))
    long.submit(job("a", range(1000)))
    first, second = short.step(), long.step()
    assert first is not None
    assert second is not None
    assert 0 < first.duration_s < second.duration_s


@given(
    st.lists(st.tuples(st.integers(1, 24), st.integers(1, 12), st.sampled_from(["", "x"]), st.booleans()), max_size=14),
    st.integers(10, 20),
    st.integers(1, 4),
    st.integers(3, 40),
)
def test_every_job_gets_its_tokens_and_the_pool_comes_back(
    jobs: list[tuple[int, int, str, bool]], blocks: int, seqs: int, budget: int
) -> None:
    replica = small(blocks, max_num_seqs=seqs, max_batched_tokens=budget)
    made: dict[str, int] = defaultdict(int)
    copies: dict[bytes, int] = defaultdict(int)
    for number, (prompt, output, salt, reads) in enumerate(jobs):
        made_job = job(f"j{number}", range(prompt), output, salt)
        made_job.reads_cache = reads
        replica.submit(made_job)
    while (step := replica.step()) is not None:
        assert sum(step.scheduled.values()) <= budget
        assert replica.running <= seqs
        for name in replica.finish_step().made:
            made[name] += 1
        for event in replica.cache.drained_events():
            if isinstance(event, Stored):
                for key in event.keys:
                    copies[key] += 1
            elif isinstance(event, Removed):
                copies[event.key] -= 1
                assert copies[event.key] >= 0
    assert made == {f"j{number}": output for number, (_, output, _, _) in enumerate(jobs)}
    assert replica.cache.used_blocks == 0
    assert sum(count > 0 for count in copies.values()) == replica.cache.cached_keys
