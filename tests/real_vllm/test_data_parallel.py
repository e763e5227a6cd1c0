"""The router before one real vLLM server with two engines behind it: each is a replica, with a cache of its own."""

from collections import Counter
from collections.abc import Iterator

import pytest

from router.kv_standing import EXACT
from router.openai import COMPLETIONS
from tests.real_vllm import engines as real
from tests.real_vllm.engines import Engine, Engines
from tests.real_vllm.listener import Listener
from tests.real_vllm.routed import routed
from tests.real_vllm.traffic import Traffic

RANKS = 2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engines, Engine]]:
    """All ranks as engines of their own, and the one server that they are."""
    python = real.python()
    assert python is not None, "tests without it are skipped"
    started = real.launched(python, real.tokenizer(), tmp_path_factory.mktemp("ranks"), count=0)
    try:
        port, events, replay = real.free_ports(3, ranks=RANKS)
        server = Engine("r1", port, events, replay, ("--data-parallel-size", str(RANKS)))
        started.start(server)
        started.all += [Engine(f"r1/{rank}", port, events + rank, replay + rank) for rank in range(RANKS)]
        yield started, server
    finally:
        started.close()


async def test_each_rank_is_a_replica_of_its_own(server: tuple[Engines, Engine], measured: list[str]) -> None:
    """What is predicted for the rank that was chosen is what that very rank delivers, and the index is its cache."""
    engines, whole = server
    listeners = {one.name: Listener(f"tcp://127.0.0.1:{one.events}", str(engines.model)) for one in engines.all}
    settings = {"replicas": f"r1={whole.url}", "data_parallel_ranks": "auto"}
    try:
        async with routed(engines, listeners, **settings) as found:
            assert found.up.fleet.replicas() == ("r1/0", "r1/1")
            traffic = Traffic(11)
            for number in range(1, 61):
                route, body = traffic.next()
                status, answer = await found.post(route, body)
                assert status == 200, answer
                traffic.answered(answer)
                if number % 10 == 0:
                    await found.quiet()
            told = [one for one in found.outcomes if one["delivered_tokens"] is not None]
            right = sum(one["predicted_tokens"] == one["delivered_tokens"] for one in told)
            served = Counter(one["replica"] for one in found.outcomes)
            cached = sum(one["delivered_tokens"] for one in told)
            measured.append(
                f"two ranks: {right} of {len(told)} predicted to the token, {cached} cached; {dict(served)}"
            )
            assert right >= 0.99 * len(told)
            assert min(served[one.name] for one in engines.all) > 0
            assert all(listener.kinds["BlockStored"] > 0 for listener in listeners.values())
            assert all(state.standing.word == EXACT for state in found.up.events.states())
            assert all(state.engine is not None and state.engine.engines == 1 for state in found.up.watcher.states())
            await found.quiet()
            body = {"model": "tiny", "prompt": [7] * 320, "max_tokens": 1}
            delivered = []
            for _ in range(4):  # vLLM's own balancer would alternate, and miss twice
                assert (await found.post(COMPLETIONS, body))[0] == 200
                delivered.append(found.outcomes[-1]["delivered_tokens"])
            assert delivered == [0, 288, 288, 288]
    finally:
        for listener in listeners.values():
            listener.close()
