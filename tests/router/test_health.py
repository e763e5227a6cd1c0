"""The watcher against a replica on loopback that does as it is told."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from policies.fleet import Fleet
from policies.types import Request
from router.health import Watcher

BLOCKS = tuple(bytes([number]) * 16 for number in range(4))
REQUEST = Request("1", "/v1/chat/completions", "tiny", "", None, None, 65, None, BLOCKS, 16)
METRICS = (
    "process_start_time_seconds {started}\n"
    'vllm:num_requests_running{{engine="0"}} 3.0\n'
    'vllm:num_requests_waiting{{engine="0"}} 1.0\n'
    'vllm:kv_cache_usage_perc{{engine="0"}} 0.5\n'
    'vllm:prefix_cache_queries_total{{engine="0"}} {queries}\n'
    'vllm:cache_config_info{{block_size="32",num_gpu_blocks="101",enable_prefix_caching="{caching}",engine="0"}} 1.0\n'
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class FakeReplica:
    """`/health`, `/v1/models` and `/metrics` of a replica; every answer can be changed between two rounds."""

    def __init__(self) -> None:
        self.status = {"/health": 200, "/v1/models": 200, "/metrics": 200}
        self.models: list[dict[str, object]] = [{"id": "tiny", "root": "/models/tiny", "max_model_len": 2048, "x": [1]}]
        self.started, self.queries, self.caching = 1000.5, 10, True
        self.asked: list[str] = []
        self.keys: set[str | None] = set()
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        self.keys.add(request.headers.get("Authorization"))
        if self.status[request.path] != 200:
            return web.Response(status=self.status[request.path], text="secret detail")
        if request.path == "/v1/models":
            return web.json_response({"object": "list", "data": self.models})
        if request.path == "/metrics":
            return web.Response(text=METRICS.format(started=self.started, queries=self.queries, caching=self.caching))
        return web.Response()


@pytest.fixture
async def replicas() -> AsyncIterator[list[FakeReplica]]:
    found, servers = [], []
    for _ in range(2):
        replica, application = FakeReplica(), web.Application()
        application.router.add_get("/{path:.*}", replica.answer)
        server = TestServer(application, host="127.0.0.1")
        await server.start_server()
        replica.url = f"http://127.0.0.1:{server.port}"
        found.append(replica)
        servers.append(server)
    yield found
    for server in servers:
        await server.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fleet() -> Fleet:
    fleet = Fleet(block_tokens=16)
    fleet.joined("r1")
    fleet.joined("r2")
    return fleet


@pytest.fixture
async def watched(fleet, clock, replicas) -> AsyncIterator[Watcher]:
    """A watcher whose rounds the test asks for one by one: its own tasks have ended their first and sleep."""
    async with Watcher(fleet, clock=clock, interval_s=3600, cooldown_s=3600) as watcher:
        for name, replica in zip(("r1", "r2"), replicas, strict=True):
            watcher.watch(name, replica.url)
        await watcher.first_answers(10)
        yield watcher


def in_view(fleet: Fleet, model: str = "tiny") -> list[str]:
    request = Request("q", "/v1/chat/completions", model, "", None, None, 65, None, BLOCKS, 16)
    return [replica.name for replica in fleet.view(request, 100.0)]


def state(watcher: Watcher, name: str) -> str:
    return next(found.state for found in watcher.states() if found.name == name)


async def until(told: Callable[[], bool], changed: asyncio.Event) -> None:
    async with asyncio.timeout(20):
        while not told():
            changed.clear()
            await changed.wait()


async def test_a_replica_that_answers_is_in_with_what_it_says_of_itself(watched, fleet):
    assert in_view(fleet) == ["r1", "r2"]
    assert in_view(fleet, "another") == []
    view = fleet.view(REQUEST, 103.0)[0]
    assert (view.engine_running, view.engine_waiting, view.engine_kv_used_fraction) == (3, 1, 0.5)
    assert view.capacity_blocks == 200  # 100 usable blocks of 32 tokens, in blocks of 16
    assert view.report_age_s == 3.0
    found = watched.states()[0]
    assert (found.state, found.models, found.restarts, found.usable) == ("open", ("tiny",), 0, True)


async def test_merged_models_lose_no_field_and_name_each_id_once(watched, replicas):
    replicas[1].models = [{"id": "tiny", "root": "elsewhere"}, {"id": "sql", "parent": "tiny", "new_field": {"a": 1}}]
    for _ in range(5):
        await watched.asked("r2")
    merged = orjson.loads(watched.models())
    assert merged == {
        "object": "list",
        "data": [
            {"id": "tiny", "root": "/models/tiny", "max_model_len": 2048, "x": [1]},
            {"id": "sql", "parent": "tiny", "new_field": {"a": 1}},
        ],
    }


async def test_adapters_that_appear_are_learnt(watched, fleet, replicas):
    replicas[0].models = [*replicas[0].models, {"id": "sql", "parent": "tiny"}]
    for _ in range(5):
        await watched.asked("r1")
    assert in_view(fleet, "sql") == ["r1"]


async def test_bad_health_twice_takes_a_replica_out_and_is_logged_once(watched, fleet, replicas, clock, caplog):
    replicas[0].status["/health"] = 503
    caplog.set_level(logging.INFO, "router.health")
    for _ in range(6):
        await watched.asked("r1")
    assert in_view(fleet) == ["r2"]
    assert [record.getMessage() for record in caplog.records] == [
        f"replica r1 ({replicas[0].url}) answered 503 to /health 2 times; it is out until it answers /health"
    ]
    replicas[0].status["/health"] = 200
    clock.now_s += 3601
    await watched.asked("r1")
    assert in_view(fleet) == ["r1", "r2"]
    assert caplog.records[-1].getMessage() == (
        f"replica r1 ({replicas[0].url}) is back: serves tiny; 101 blocks of 32 tokens"
    )


async def test_failed_requests_take_a_replica_out_but_busy_and_4xx_do_not(watched, fleet, caplog):
    for _ in range(20):
        watched.failed("r1", "busy")
        watched.succeeded("r1")
    assert in_view(fleet) == ["r1", "r2"]
    watched.failed("r1", "status_5xx")
    watched.failed("r1", "status_5xx")
    assert in_view(fleet) == ["r2"]
    assert watched.states()[0].failures == {"status_5xx": 2}
    assert "answered with a server error 2 times; it is out until it answers /health" in caplog.text


async def test_the_last_open_replica_stays_until_probes_confirm(watched, fleet, replicas):
    for name in ("r2", "r1", "r2", "r1", "r1", "r1"):
        watched.failed(name, "unreachable")
    assert in_view(fleet) == ["r1"]
    replicas[0].status["/health"] = 500
    await watched.asked("r1")
    await watched.asked("r1")
    assert in_view(fleet) == []


async def test_a_replica_that_is_loading_its_model_is_not_used(fleet, clock, replicas, caplog):
    replicas[0].status["/health"] = 503
    replicas[1].status["/v1/models"] = 500
    async with Watcher(fleet, clock=clock, interval_s=3600, cooldown_s=3600) as watcher:
        watcher.watch("r1", replicas[0].url)
        watcher.watch("r2", replicas[1].url)
        await watcher.first_answers(10)
        assert in_view(fleet) == []
        assert watcher.models() == b'{"object":"list","data":[]}'
        assert "r1 (" in caplog.text
        assert "answered 503 to /health; serving without it until it answers /health" in caplog.text
        replicas[0].status["/health"] = 200
        await watcher.asked("r1")
        assert in_view(fleet) == ["r1"]


async def test_a_replica_nobody_can_reach_at_the_start(fleet, clock, caplog):
    async with Watcher(fleet, clock=clock, interval_s=3600, cooldown_s=3600) as watcher:
        watcher.watch("r1", f"http://127.0.0.1:{unused_port()}")
        await watcher.first_answers(10)
        await watcher.asked("r1")
        assert watcher.states()[0].reason == "refused the connection"
    assert caplog.text.count("refused the connection; serving without it") == 1


@pytest.mark.parametrize("key", [None, "k-1"])
async def test_the_replica_key_goes_with_every_probe_and_a_401_says_what_to_do(fleet, clock, replicas, caplog, key):
    replicas[0].status["/v1/models"] = 401
    async with Watcher(fleet, clock=clock, interval_s=3600, replica_key=key) as watcher:
        watcher.watch("r1", replicas[0].url)
        await watcher.first_answers(10)
        assert in_view(fleet, "anything") == ["r1", "r2"]  # r2 is not watched here; r1's models stay unknown
    assert replicas[0].asked == ["/health", "/v1/models", "/metrics"]
    assert replicas[0].keys == {None if key is None else "Bearer k-1"}
    remedy = "wants an API key: set replica_key_env" if key is None else "refused the router's key"
    assert f"answered 401 to /v1/models; it {remedy}" in caplog.text
    assert "k-1" not in caplog.text


async def test_a_server_that_is_no_vllm_is_used_without_its_facts(fleet, clock, replicas, caplog):
    replicas[0].status.update({"/v1/models": 404, "/metrics": 404})
    async with Watcher(fleet, clock=clock, interval_s=3600) as watcher:
        watcher.watch("r1", replicas[0].url)
        await watcher.first_answers(10)
        await watcher.asked("r1")
        assert "r1" in in_view(fleet, "whatever")
        found = watcher.states()[0]
        assert (found.models, found.engine) == (None, None)
    assert caplog.text.count("answered 404 to /metrics; its load and cache size stay unknown") == 1
    assert caplog.text.count("tells no models; every model is sent to it") == 1


@pytest.mark.parametrize("change", [{"started": 2000.5}, {"queries": 3}])
async def test_a_restart_empties_the_index_of_that_replica(watched, fleet, replicas, caplog, change):
    fleet.sent(REQUEST, "r1")
    fleet.done(REQUEST)
    assert fleet.held_blocks("r1") == 4
    if "queries" in change:
        replicas[0].started = "not-a-number"
        await watched.asked("r1")
        assert fleet.held_blocks("r1") == 4
    for name, value in change.items():
        setattr(replicas[0], name, value)
    caplog.set_level(logging.INFO, "router.health")
    await watched.asked("r1")
    assert fleet.held_blocks("r1") == 0
    assert watched.states()[0].restarts == 1
    assert "has restarted; its cache counts as empty" in caplog.text


async def test_prefix_caching_that_is_off_is_said_once(watched, replicas, caplog):
    replicas[0].caching = False
    await watched.asked("r1")
    await watched.asked("r1")
    assert caplog.text.count("runs with prefix caching off") == 1


async def test_probes_end_with_the_replica(watched, fleet, replicas):
    await watched.unwatch("r1")
    fleet.left("r1")
    before = len(replicas[0].asked)
    watched.failed("r1", "lost")
    watched.succeeded("r1")
    await watched.asked("r2")
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("watch")] == ["watch r2"]
    assert len(replicas[0].asked) == before
    assert [found.name for found in watched.states()] == ["r2"]


async def test_two_replicas_of_one_name(watched):
    with pytest.raises(ValueError, match="'r1' is watched already"):
        watched.watch("r1", "http://127.0.0.1:1")


async def test_left_alone_it_notices_that_a_replica_goes_and_comes_back(fleet, replicas):
    changed = asyncio.Event()
    clock = asyncio.get_running_loop().time
    async with Watcher(fleet, clock=clock, interval_s=0.01, cooldown_s=0.01, changed=changed.set) as watcher:
        watcher.watch("r1", replicas[0].url)
        await until(lambda: state(watcher, "r1") == "open", changed)
        replicas[0].status["/health"] = 500
        await until(lambda: state(watcher, "r1") == "closed", changed)
        replicas[0].status["/health"] = 200
        await until(lambda: state(watcher, "r1") == "trial", changed)


async def test_a_failed_request_brings_the_next_probe_nearer(fleet, replicas):
    changed = asyncio.Event()
    clock = asyncio.get_running_loop().time
    async with Watcher(fleet, clock=clock, interval_s=3600, cooldown_s=0.01, changed=changed.set) as watcher:
        watcher.watch("r1", replicas[0].url)
        watcher.watch("r2", replicas[1].url)
        await watcher.first_answers(10)
        watcher.failed("r1", "unreachable")
        watcher.failed("r1", "unreachable")
        assert state(watcher, "r1") == "closed"
        await until(lambda: state(watcher, "r1") == "trial", changed)
        watcher.succeeded("r1")
        assert state(watcher, "r1") == "open"


async def test_repr(watched):
    assert repr(watched) == "<Watcher <Health r1=open r2=open>>"
