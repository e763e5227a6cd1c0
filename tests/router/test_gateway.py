"""Errors of the router's own, retries, broken streams, clients that leave, and what is counted."""

import asyncio
import json
import socket

import pytest

from policies.types import Choice
from router.readers import TINY
from router.sections import ReplicaAddress
from tests.fakes import (
    BODY,
    EVENT,
    IDLE,
    MODEL,
    STREAM,
    FakeReplica,
    chunk,
    client_of,
    fake_replica,
    load_of,
    ok,
    post,
    posted,
    router_over,
    said,
    unchunked,
    until,
)

NO_JSON = {
    "empty": b"",
    "cut": b'{"model":"m","prompt":',
    "nan": b'{"model":"m","temperature":NaN}',
    "byte order mark": b"\xef\xbb\xbf" + BODY,
    "lone surrogate": b'{"model":"m","prompt":"\\ud800"}',
    "not utf-8": b'{"model":"m","prompt":"\xff"}',
    "array": b'[{"model":"m"}]',
    "string": b'"secret words"',
    "number": b"7",
    "null": b"null",
    "deep": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "text": b"secret words",
}


@pytest.mark.parametrize("name", NO_JSON)
@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/messages"])
async def test_a_body_that_is_no_json_object_is_400(name, path):
    async with fake_replica() as replica, router_over(replica) as up:
        reply = await posted(up.url, NO_JSON[name], path=path)
        assert reply.status == 400
        assert reply.values(b"content-type") == [b"application/json"]
        assert set(reply.error) == {"message", "type", "param", "code"}
        assert reply.error["type"] == "invalid_request_error"
        assert reply.error["message"].startswith("the body is")
        assert b"secret" not in reply.body
        assert replica.seen == []


async def test_the_connection_goes_on_after_an_error():
    async with fake_replica() as replica, router_over(replica) as up, client_of(up.url) as client:
        await client.send(post(b"{"))
        assert (await client.reply()).status == 400
        await client.send(post())
        assert (await client.reply()).status == 200


async def test_an_unknown_model_is_404_and_lists_what_there_is():
    async with fake_replica() as replica, router_over(replica) as up:
        reply = await posted(up.url, b'{"model":"other","prompt":"x"}')
        assert (reply.status, reply.error["code"], reply.error["param"]) == (404, "model_not_found", "model")
        assert "'other'" in reply.error["message"]
        assert "served: m" in reply.error["message"]
        assert replica.seen == []


async def test_no_healthy_replica_is_503_with_retry_after():
    replica = FakeReplica(said(ok()), healthy=False)
    await replica.start()
    async with router_over(replica) as up:
        reply = await posted(up.url)
        assert (reply.status, reply.error["code"]) == (503, "no_replica_available")
        assert reply.values(b"retry-after") == [b"2"]
    await replica.stop()


CONTROL = [
    b"/sleep",
    b"/reset_prefix_cache",
    b"/metrics",
    b"/v1/load_lora_adapter",
    b"/%73leep",
    b"/v1%2Fload_lora_adapter",
]


@pytest.mark.parametrize("path", [*CONTROL, b"http://router.test/sleep", b"/sleep?level=1"])
async def test_control_paths_are_not_served(path):
    async with fake_replica() as replica, router_over(replica) as up:
        reply = await posted(up.url, b"{}", path=path)
        assert (reply.status, reply.error["code"]) == (404, "path_not_served")
        async with client_of(up.url) as client:
            await client.send(b"GET " + path + b" HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await client.reply()).status == 404
        assert replica.seen == []


FORM = (
    b'--xx\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\x00\xff\r\n'
    b'--xx\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--xx--\r\n'
)
PASSED = [
    (b"/v1/messages/count_tokens", b'{"model":"m","messages":[{"role":"user","content":"hi"}]}', b"application/json"),
    (b"/v1/audio/transcriptions", FORM, b"multipart/form-data; boundary=xx"),
    (b"/v1/responses", b'{"model":"m","input":"hi"}', b"application/json"),
    (b"/v1/embeddings", b'{"model":"m","input":["a","b"]}', b"application/json"),
    (b"/v1/embeddings", b'{"model":"m","input":[[1,2],[3]]}', b"application/json"),
    (b"/v1/audio/speech", b'{"model":"m","input":"hi"}', b"application/json"),
    (b"/v1/unknown", b"\x00\x01 anything", b"application/octet-stream"),
    (b"/v1/unknown", b"", b"text/plain"),
    (b"/v1/chat/completions", b'{"model":"m","messages":7}', b"application/json"),
    (b"/v1/chat/completions", b'{"model":"m"}', b"application/json"),
    (b"/v1/completions", b'{"model":"m","prompt":{"a":1}}', b"application/json"),
    (b"/v1/completions", b'{"prompt":"no model named"}', b"application/json"),
]


@pytest.mark.parametrize(("path", "body", "kind"), PASSED, ids=range(len(PASSED)))
async def test_what_can_not_be_tokenized_is_passed_on(path, body, kind):
    async with fake_replica() as replica, router_over(replica) as up:
        reply = await posted(up.url, body, b"Content-Type: " + kind, b"Authorization: Bearer k", path=path)
        assert reply.status == 200
        assert (replica.seen[0].body, replica.seen[0].values(b"content-type")) == (body, [kind])
        assert replica.seen[0].values(b"authorization") == [b"Bearer k"]


async def test_the_replica_key_replaces_the_clients(monkeypatch):
    monkeypatch.setenv("FLEET_KEY", "fleet-100%b")
    async with fake_replica() as replica, router_over(replica, replica_key_env="FLEET_KEY") as up:
        await posted(up.url, BODY, b"Authorization: Bearer client-key")
        assert replica.seen[0].values(b"authorization") == [b"Bearer fleet-100%b"]
        assert b"client-key" not in replica.seen[0].head


# -- another replica ---------------------------------------------------------------------------------------------------


async def test_a_replica_that_breaks_off_before_a_reply_is_replaced():
    async def cut(exchange):
        exchange.cut()

    async with fake_replica(cut) as bad, fake_replica() as good, router_over(bad, good, health__fall=100) as up:
        for _ in range(4):
            assert (await posted(up.url)).status == 200
        assert len(bad.seen) >= 1
        assert len(good.seen) == 4
        assert load_of(up) == IDLE


async def test_a_replica_that_refuses_is_replaced():
    async with fake_replica() as bad, fake_replica() as good, router_over(bad, good, health__interval_s=60) as up:
        await bad.stop()
        for _ in range(3):
            assert (await posted(up.url)).status == 200
        assert (len(bad.seen), len(good.seen)) == (0, 3)


async def test_no_replica_is_tried_twice_for_one_request():
    async def cut(exchange):
        exchange.cut()

    async with (
        fake_replica(cut) as a,
        fake_replica(cut) as b,
        fake_replica(cut) as c,
        router_over(a, b, c, health__fall=100) as up,
    ):
        reply = await posted(up.url)
        assert (reply.status, reply.error["code"]) == (502, "replica_unreachable")
        assert [len(one.seen) for one in (a, b, c)] == [1, 1, 1]
        assert load_of(up) == IDLE


async def test_a_failing_favourite_is_left_alone_and_comes_back():
    async def cut(exchange):
        exchange.cut()

    body = b'{"model":"m","prompt":"%b"}' % (b"the same long prefix " * 100)
    settings = {"policy__name": "prefix-aware", "health__interval_s": 0.05}
    async with (
        fake_replica() as a,
        fake_replica() as b,
        fake_replica() as c,
        router_over(a, b, c, **settings) as up,
    ):
        await posted(up.url, body)
        (favourite,) = [one for one in (a, b, c) if one.seen]
        await posted(up.url, body)
        assert len(favourite.seen) == 2
        favourite.answer = cut
        favourite.healthy = False
        statuses = [(await posted(up.url, body)).status for _ in range(50)]
        assert statuses == [200] * 50
        assert len(favourite.seen) - 2 <= 5
        favourite.answer, favourite.healthy = said(ok()), True
        await until(lambda: all(state.usable for state in up.watcher.states()), 20)


async def test_a_kept_connection_that_dies_is_replaced_and_is_no_failure():
    used = set()

    async def once(exchange):
        if exchange.seen.connection in used:
            exchange.cut()
            return
        used.add(exchange.seen.connection)
        await exchange.send(ok())

    async with fake_replica(once) as replica, router_over(replica) as up:
        assert [(await posted(up.url)).status for _ in range(2)] == [200, 200]
        assert len(replica.seen) == 3
        assert up.watcher.states()[0].failures == {}
        assert up.watcher.states()[0].state == "open"


async def test_a_kept_connection_closed_while_idle_is_not_used():
    async def closing(exchange):
        await exchange.send(ok())
        exchange.close()

    async with fake_replica(closing) as replica, router_over(replica) as up:
        assert [(await posted(up.url)).status for _ in range(5)] == [200] * 5
        assert up.watcher.states()[0].failures == {}


@pytest.mark.parametrize(
    "status", [b"400 Bad Request", b"401 Unauthorized", b"404 Not Found", b"422 x", b"429 Busy", b"503 Busy"]
)
async def test_errors_of_the_client_and_a_busy_engine_never_take_a_replica_out(status):
    async with fake_replica(ok(b"{}", status=status)) as replica, router_over(replica) as up:
        for _ in range(20):
            assert (await posted(up.url)).status == int(status[:3])
        replica.answer = said(ok())
        assert (await posted(up.url)).status == 200
        assert up.watcher.states()[0].failures == {}
        assert len(replica.seen) == 21


async def test_a_500_is_passed_on_and_counted():
    async with fake_replica(ok(b"{}", status=b"500 Broken")) as replica, router_over(replica) as up:
        assert (await posted(up.url)).status == 500
        assert up.watcher.states()[0].failures == {"status_5xx": 1}


# -- broken replies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cut", "close"])
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_a_stream_that_is_cut_is_broken_for_the_client(how, version):
    async def answer(exchange):
        await exchange.send(STREAM + EVENT)
        await asyncio.wait_for(passed.wait(), 5)
        getattr(exchange, how)()

    passed = asyncio.Event()
    async with fake_replica(answer) as one, fake_replica(answer) as two, router_over(one, two) as up:
        async with client_of(up.url) as client:
            await client.send(post(version=version))
            head = await client.head()
            await client.to(b"\n\n")
            passed.set()
            try:
                rest = await client.rest()
            except ConnectionError:
                rest = b""
            assert b"200" in head
            assert b"0\r\n\r\n" not in rest
            assert b"[DONE]" not in rest
        assert len(one.seen) + len(two.seen) == 1
        await until(lambda: load_of(up) == IDLE)
        assert sum(state.failures.get("cut", 0) for state in up.watcher.states()) == 1
        assert 'outcome="cut"' in up.metrics.exposition().decode()


@pytest.mark.parametrize("how", ["cut", "close"])
async def test_a_body_shorter_than_its_length_is_broken_for_the_client(how):
    async def answer(exchange):
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
        getattr(exchange, how)()

    async with fake_replica(answer) as replica, router_over(replica) as up:
        try:
            reply = await posted(up.url)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        else:
            assert reply.status == 502  # cut so early that nothing had been passed on
        await until(lambda: load_of(up) == IDLE)


async def test_a_broken_stream_is_broken_on_the_side_path_too():
    async def answer(exchange):
        await exchange.send(STREAM + EVENT)
        await asyncio.wait_for(passed.wait(), 5)
        exchange.cut()

    passed = asyncio.Event()
    async with fake_replica(answer) as replica, router_over(replica) as up, client_of(up.url) as client:
        await client.send(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        await client.reply()
        await client.send(post())
        await client.head()
        await client.to(b"\n\n")
        passed.set()
        try:
            rest = await client.rest()
        except ConnectionError:
            rest = b""
        assert b"0\r\n\r\n" not in rest
        await until(lambda: load_of(up) == IDLE)


async def test_a_silent_replica_is_504():
    async def silent(exchange):
        await exchange.left()

    async with fake_replica(silent) as replica, router_over(replica, timeouts__first_byte_s=0.1) as up:
        reply = await posted(up.url)
        assert (reply.status, reply.error["code"]) == (504, "replica_timed_out")
        assert reply.values(b"retry-after") == [b"2"]
        await until(lambda: replica.left == 1)
        assert load_of(up) == IDLE


async def test_a_stream_that_falls_silent_is_ended():
    async def silent(exchange):
        await exchange.send(STREAM + EVENT * 3)
        await exchange.left()

    async with fake_replica(silent) as replica, router_over(replica, timeouts__idle_s=0.1) as up:
        async with client_of(up.url) as client:
            await client.send(post())
            await client.head()
            try:
                rest = await client.rest()
            except ConnectionError:
                rest = b""
            assert b"0\r\n\r\n" not in rest
        await until(lambda: load_of(up) == IDLE and replica.left == 1)


async def test_an_error_event_is_passed_on_and_counted_as_such():
    answer = STREAM + chunk(b'data: {"error":{"message":"dead"}}\n\n') + chunk(b"data: [DONE]\n\n") + chunk(b"")
    async with fake_replica(answer) as replica, router_over(replica) as up:
        assert b"dead" in unchunked((await posted(up.url)).body)
        await until(lambda: load_of(up) == IDLE)
        assert 'outcome="error-event"' in up.metrics.exposition().decode()


# -- clients that leave ------------------------------------------------------------------------------------------------


async def _left(client, how):
    if how == "reset":
        sock = client.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        client.reset()
    elif how == "half-close":
        client.writer.write_eof()
    else:
        client.writer.close()


@pytest.mark.parametrize("side", [False, True], ids=["direct", "side path"])
@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
@pytest.mark.parametrize("phase", ["waiting", "stream"])
async def test_a_client_that_leaves_frees_its_replica(how, phase, side):
    """Half-closing counts as leaving: an engine's own server sees it so, too."""

    async def answer(exchange):
        if phase == "stream":
            await exchange.send(STREAM + EVENT * 3)
        await exchange.left()

    async with fake_replica(answer) as replica, router_over(replica) as up, client_of(up.url) as client:
        if side:
            await client.send(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            await client.reply()
        await client.send(post())
        await until(lambda: len(replica.seen) == 1)
        if phase == "stream":
            await client.head()
            await client.to(b"\n\n")
        await _left(client, how)
        await until(lambda: replica.left == 1, 1.0)
        await until(lambda: load_of(up) == IDLE, 1.0)
        assert up.watcher.states()[0].failures == {}
        await until(lambda: 'outcome="client-left"' in up.metrics.exposition().decode(), 1.0)


async def test_a_client_that_leaves_while_the_replica_is_being_reached(monkeypatch):
    reached = asyncio.Event()

    async def never(*_, **__):
        reached.set()
        await asyncio.Event().wait()

    async with fake_replica() as replica, router_over(replica) as up, client_of(up.url) as client:
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
        await client.send(post())
        await asyncio.wait_for(reached.wait(), 5)
        assert load_of(up) != IDLE
        client.reset()
        await until(lambda: load_of(up) == IDLE, 1.0)


async def test_counters_return_to_zero_after_a_mix():
    async def answer(exchange):
        kind = exchange.seen.values(b"x-kind")[0]
        if kind == b"cut":
            exchange.cut()
        elif kind == b"hang":
            await exchange.left()
        elif kind == b"500":
            await exchange.send(ok(b"{}", status=b"500 Broken"))
        else:
            await exchange.send(ok())

    async def one(url, kind):
        async with client_of(url) as client:
            await client.send(post(BODY, b"X-Kind: " + kind))
            if kind == b"hang":
                await asyncio.sleep(0.01)
                client.reset()
                return None
            return (await client.reply()).status

    kinds = [b"ok"] * 40 + [b"500"] * 10 + [b"hang"] * 10 + [b"cut"] * 10
    async with fake_replica(answer) as a, fake_replica(answer) as b, router_over(a, b, health__passive=False) as up:
        statuses = await asyncio.gather(*(one(up.url, kind) for kind in kinds))
        assert [statuses.count(status) for status in (200, 500, 502, None)] == [40, 10, 10, 10]
        await until(lambda: load_of(up) == IDLE)


async def test_three_hundred_streams_at_once():
    release = asyncio.Event()

    async def answer(exchange):
        await exchange.send(STREAM + EVENT)
        await release.wait()
        await exchange.send(chunk(b"data: [DONE]\n\n") + chunk(b""))

    async with fake_replica(answer) as replica, router_over(replica) as up:
        tasks = [asyncio.ensure_future(posted(up.url)) for _ in range(300)]
        await until(lambda: len(replica.seen) == 300, 10)
        assert up.fleet.load("r1")[0] == 300
        release.set()
        replies = await asyncio.gather(*tasks)
        assert all(unchunked(reply.body).endswith(b"[DONE]\n\n") for reply in replies)
        await until(lambda: load_of(up) == IDLE)


async def test_a_policy_that_fails_is_replaced_by_load(monkeypatch, caplog):
    class Broken:
        def choose(self, request, replicas):
            raise ValueError("broken")

    class Wrong:
        def choose(self, request, replicas):
            return "nobody"

    class Wordless:
        def choose(self, request, replicas):
            return Choice(replicas[0].name, 7)

    async with fake_replica() as replica, router_over(replica) as up:
        for policy in (Broken(), Wrong(), Wordless()):
            monkeypatch.setattr(up.gateway._placing, "_policy", policy)
            assert (await posted(up.url)).status == 200
            assert f"the policy {type(policy).__name__} " in caplog.text
        assert caplog.text.count("placed by load") == 3
        assert 'reason="policy-failed"' in up.metrics.exposition().decode()


async def test_a_fault_of_whoever_looks_on_leaves_no_load():
    def broken(_):
        raise ValueError("broken")

    async with fake_replica() as replica, router_over(replica) as up:
        up.gateway._accounts.choice_ears.append(broken)
        async with client_of(up.url) as client:
            await client.send(post())
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await client.reply()
        assert load_of(up) == IDLE
        assert replica.seen == []


async def test_requests_go_only_where_their_model_is():
    other = {**MODEL, "id": "n", "root": "n"}
    async with fake_replica() as a, fake_replica() as b:
        b.models = [other]
        async with router_over(a, b) as up:
            for _ in range(3):
                assert (await posted(up.url, b'{"model":"n","prompt":"x"}')).status == 200
            assert (len(a.seen), len(b.seen)) == (0, 3)


@pytest.mark.parametrize(
    ("status", "held"),
    [(b"200 OK", 3), (b"400 Bad Request", 0), (b"429 Too Many Requests", 0), (b"503 Service Unavailable", 0)],
)
async def test_a_prompt_that_a_replica_refused_is_not_expected_in_its_cache(status, held):
    body = json.dumps({"model": "m", "prompt": list(range(60))}).encode()
    async with fake_replica(ok(status=status)) as replica, router_over(replica) as up:
        await up.readers.ready()
        assert (await posted(up.url, body)).status == int(status[:3])
        await until(lambda: load_of(up) == {(0, 0)})
        (name,) = up.fleet.replicas()
        assert up.fleet.held_blocks(name) == held


async def test_a_prompts_last_full_block_is_held_though_it_could_not_be_read():
    body = json.dumps({"model": "m", "prompt": list(range(32))}).encode()
    settings = {"tokenizer__path": str(TINY), "tokenizer__where": "local"}
    async with fake_replica() as replica, router_over(replica, **settings) as up:
        assert (await posted(up.url, body, path=b"/v1/completions")).status == 200
        await until(lambda: up.fleet.held_blocks("r1") == 2)
        assert (await posted(up.url, body, path=b"/v1/completions")).status == 200
        exposed = up.metrics.exposition().decode()
    predicted = next(line for line in exposed.splitlines() if line.startswith("router_predicted_tokens_total"))
    assert predicted.endswith(" 16.0")


async def test_a_kept_connection_and_a_new_one_that_both_die_lead_to_the_next_replica_and_then_to_502():
    async def once(exchange):
        if len(exchange.replica.seen) > 1:
            exchange.cut()
            return
        await exchange.send(ok())

    async with fake_replica(once) as a, fake_replica(once) as b, router_over(a, b) as up:
        assert [(await posted(up.url)).status for _ in range(2)] == [200, 200]
        assert (len(a.seen), len(b.seen)) == (1, 1)
        reply = await posted(up.url)
        assert (reply.status, reply.error["code"]) == (502, "replica_unreachable")
        assert (len(a.seen), len(b.seen)) == (3, 3)  # each on its kept connection and on a new one
        assert [dict(state.failures) for state in up.watcher.states()] == [{"lost": 1}, {"lost": 1}]


async def test_the_only_replica_is_asked_again_after_a_failure():
    answers = [None, ok()]

    async def answer(exchange):
        said = answers.pop(0)
        await exchange.send(said) if said else exchange.cut()

    async with fake_replica(answer) as only, router_over(only) as up:
        assert [(await posted(up.url)).status for _ in range(2)] == [502, 200]


async def test_a_request_in_the_same_turn_as_a_replica_that_joins_is_served():
    async with fake_replica() as first, fake_replica() as second, router_over(first) as up:
        adding = asyncio.ensure_future(up.reload.membership.added(ReplicaAddress(name="new", url=second.url)))
        replies = await asyncio.gather(*(posted(up.url) for _ in range(5)))
        assert {reply.status for reply in replies} == {200}
        assert await adding == "new"
        await until(lambda: up.fleet.is_open("new"))
        assert {(await posted(up.url)).status for _ in range(4)} == {200}
        assert second.seen
