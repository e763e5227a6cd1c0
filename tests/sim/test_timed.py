"""A replica in virtual time gives tokens when their steps are over."""

import pytest

from sim.cost import PROFILES
from sim.jobs import Job
from sim.timed import TimedReplica

H100 = PROFILES["llama-3.1-8b-h100"]


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
    replica.submit(Job(7, 1000, 3, ()), 5.0)
    first_s = finished_s = 0.0
    while (now_s := replica.next_s) is not None:
        moment = replica.advance(now_s)
        first_s = now_s if 7 in moment.first else first_s
        finished_s = now_s if 7 in moment.finished else finished_s
    assert first_s == pytest.approx(5.0 + one_step_s(512) + one_step_s(488, 512))
    decodes = one_step_s(decodes=1, kv_tokens=1001) + one_step_s(decodes=1, kv_tokens=1002)
    assert finished_s == pytest.approx(first_s + decodes)
