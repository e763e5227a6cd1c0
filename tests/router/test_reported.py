"""The whole router, against faults that users of other routers reported: each with the input that shows it."""

import asyncio
import hashlib
import json

import pytest

from router.config import load
from router.errors import ConfigError
from router.readers import TINY
from tests.fakes import (
    EVENT,
    IDLE,
    STREAM,
    chunk,
    client_of,
    fake_replica,
    load_of,
    ok,
    post,
    posted,
    router_over,
    said,
    until,
)
from tests.tenanted import ALPHA, bearer, tenanted

LOCAL = {"tokenizer__where": "local", "tokenizer__path": str(TINY)}
CHAT = b"/v1/chat/completions"


def prompted(prompt: object, **more: object) -> bytes:
    return json.dumps({"model": "m", "prompt": prompt, "max_tokens": 1, **more}).encode()


class Held:
    """A script that keeps requests waiting until it is told to answer."""

    def __init__(self, answer: bytes | None = None) -> None:
        self.free = asyncio.Event()
        self.data = ok() if answer is None else answer

    async def __call__(self, exchange) -> None:
        await self.free.wait()
        await exchange.send(self.data)


# -- streams -----------------------------------------------------------------------------------------------------------


def test_nothing_ends_a_stream_for_its_age_alone():
    """No limit on a whole reply or on its first byte; silence in the middle has a limit of minutes."""
    config, _ = load(flags={"replicas": ("test", "http://127.0.0.1:1")})
    assert set(type(config.timeouts).model_fields) == {
        "connect_s",
        "first_byte_s",
        "idle_s",
        "client_head_s",
        "client_body_idle_s",
        "client_keep_s",
        "hung_s",
    }
    assert config.timeouts.connect_s is not None
    assert config.timeouts.first_byte_s is None
    assert config.timeouts.idle_s is None or config.timeouts.idle_s >= 600


async def test_a_stream_that_fell_silent_is_told_apart_from_one_that_broke():
    async def silent(exchange) -> None:
        await exchange.send(STREAM + EVENT * 3)
        await exchange.left()

    async def broken(exchange) -> None:
        await exchange.send(STREAM + EVENT * 3)
        exchange.cut()

    async with fake_replica(silent) as replica, router_over(replica, timeouts__idle_s=0.05) as up:
        for word, kind, answer in (("given-up", "silent", silent), ("cut", "cut", broken)):
            replica.answer = answer
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await posted(up.url)
            await until(lambda: load_of(up) == IDLE)
            assert f'outcome="{word}"'.encode() in up.metrics.exposition()
            assert up.watcher.states()[0].failures[kind] == 1


@pytest.mark.parametrize("how", ["cut", "close"])
async def test_a_stream_that_broke_leaves_the_loop_idle(how, monkeypatch):
    turns = 0
    run = asyncio.Handle._run

    def counted(handle) -> None:
        nonlocal turns
        turns += 1
        run(handle)

    async def answer(exchange) -> None:
        await exchange.send(STREAM + EVENT)
        getattr(exchange, how)()

    async with fake_replica(answer) as replica, router_over(replica, health__interval_s=0.1) as up:
        for _ in range(5):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await posted(up.url)
        await until(lambda: load_of(up) == IDLE)
        replica.answer = said(ok())
        monkeypatch.setattr(asyncio.Handle, "_run", counted)
        asked = replica.asked
        await until(lambda: replica.asked >= asked + 2)  # as long as two probes take to come round
        monkeypatch.undo()
        assert turns < 2_000, "something spins"


@pytest.mark.parametrize("options", ["", ',"stream_options":{"include_usage":false}', ',"stream_options":null'])
async def test_a_stream_gets_no_usage_that_its_client_did_not_ask_for(options):
    body = b'{"model":"m","prompt":"hi","stream":true%b}' % options.encode()
    raw = STREAM + EVENT + chunk(b"data: [DONE]\n\n") + chunk(b"")
    async with fake_replica(raw) as replica, router_over(replica) as up:
        reply = await posted(up.url, body)
        assert replica.seen[0].body == body
        assert reply.head + reply.body == raw


# -- bodies ------------------------------------------------------------------------------------------------------------


async def test_a_stranger_who_sends_all_of_a_large_body_leaves_a_usable_connection(tmp_path):
    large = prompted("x" * 2**21)
    async with fake_replica() as replica, tenanted(tmp_path, replica) as up, client_of(up.url) as client:
        await client.send(post(large, b"Authorization: Bearer sk-test-nobody"))
        refused = await client.reply()
        assert refused.status == 401
        if refused.values(b"connection") == [b"close"]:
            assert await client.rest() == b""
        else:
            await client.send(post(prompted("hi"), bearer(ALPHA)))
            assert (await client.reply()).status == 200


@pytest.mark.parametrize("chunked", [False, True])
async def test_an_image_of_four_megabytes_arrives_whole(chunked):
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4_194_304}}
    content = [{"type": "text", "text": "describe"}, part]
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 1}).encode()
    async with fake_replica() as replica, router_over(replica, **LOCAL) as up, client_of(up.url) as client:
        if chunked:
            head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            await client.send(head + chunk(body[:1_000_000]) + chunk(body[1_000_000:]) + chunk(b""))
        else:
            await client.send(post(body, path=CHAT))
        assert (await client.reply()).status == 200
        (seen,) = replica.seen
        assert hashlib.sha256(seen.body).digest() == hashlib.sha256(body).digest()


# -- tokens ------------------------------------------------------------------------------------------------------------

BLOCK = 16
SYSTEM = "You are a careful assistant. " * 8


def toy(body: dict) -> list[int]:
    """A tokenizer small enough to check by eye: 256 to begin with, then UTF-8, of a template of four lines."""
    text = "".join(f"<|{one['role']}|>\n{one['content']}<|end|>\n" for one in body["messages"]) + "<|assistant|>\n"
    return [256, *text.encode()]


class Engine:
    """Tokenizes as `toy`, and answers chats with how many tokens they have."""

    def __init__(self) -> None:
        self.asked: list[dict] = []

    async def __call__(self, exchange) -> None:
        body = json.loads(exchange.seen.body)
        await exchange.send(ok(json.dumps({"usage": {"prompt_tokens": len(toy(body))}}).encode()))

    def tokenized(self, body: dict) -> dict:
        self.asked.append(body)
        return {"tokens": toy(body), "count": len(toy(body)), "max_model_len": 4096}


async def explained(up, body: bytes, path: str = "/v1/chat/completions") -> dict:
    return (await posted(up.admin_url, body, path=f"/explain?path={path}".encode())).json


async def test_a_chat_is_matched_as_the_engine_renders_it():
    """Not by its raw text, which shares no block with what an engine caches: 306 tokens, and the next turn has 19."""
    engine = Engine()
    turn1 = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "What is a prefix cache?"}]
    turn2 = [*turn1, {"role": "assistant", "content": "A store of reusable KV blocks."}]
    turn2 += [{"role": "user", "content": "And a block?"}]
    async with fake_replica(engine) as replica:
        replica.tokenize = engine.tokenized
        async with router_over(replica, tokenizer__where="replica", policy__name="prefix-aware") as up:
            first = json.dumps({"model": "m", "messages": turn1}).encode()
            second = json.dumps({"model": "m", "messages": turn2}).encode()
            told = await explained(up, first)
            assert (told["tokens"]["prompt"], told["blocks"]["count"]) == (306, 19)
            assert (await posted(up.url, first, path=CHAT)).status == 200
            await until(lambda: load_of(up) == IDLE)
            told = await explained(up, second)
            assert (told["tokens"]["prompt"], told["tokens"]["basis"], told["blocks"]["count"]) == (387, "exact", 24)
            assert told["replicas"][0]["matched_tokens"] == 19 * BLOCK
            assert (await posted(up.url, second, path=CHAT)).status == 200
            assert b"\nrouter_token_mismatch_total{" not in up.metrics.exposition()
            engine.asked.clear()
            fields = {"tools": [{"type": "function", "function": {"name": "f"}}], "chat_template_kwargs": {"a": 1}}
            await explained(up, json.dumps({"model": "m", "messages": turn1, **fields}).encode())
    (asked,) = engine.asked
    assert asked["messages"] == turn1
    assert {name: asked[name] for name in fields} == fields
    assert "prompt" not in asked


async def test_prompts_of_ids_match_by_ids():
    """Not by their number, nor as text, where 1234 begins 12345."""
    batch = [[*range(1, 9)], [90, 91, 92, 93]]
    async with fake_replica() as replica, router_over(replica, block_tokens=4, policy__name="prefix-aware") as up:

        async def matched(prompt: object) -> int:
            told = await explained(up, prompted(prompt), "/v1/completions")
            return told["replicas"][0]["matched_tokens"] // 4

        for prompt in ([*range(1, 13)], [1234, 5, 6, 7, 8]):
            assert (await posted(up.url, prompted(prompt))).status == 200
        await until(lambda: load_of(up) == IDLE)
        assert await matched([*range(90, 102)]) == 0
        assert await matched([*range(1, 12), 13]) == 2
        assert await matched([12345, 6, 7, 8, 9]) == 0
        assert (await posted(up.url, prompted(batch))).status == 200
        assert replica.seen[-1].body == prompted(batch)
        assert await matched(batch) == 1  # the longer of the two, which the first prompt began with


PARTS = [{"type": "text", "text": "Describe Seattle?"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"city": "Seattle"}'}}


async def test_content_in_parts_and_none_beside_a_tool_call_are_read():
    def body(first: object) -> bytes:
        messages = [
            {"role": "user", "content": first},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "rain " * 20},
        ]
        return json.dumps({"model": "m", "messages": messages}).encode()

    async with fake_replica() as replica, router_over(replica, policy__name="prefix-aware", **LOCAL) as up:
        assert (await posted(up.url, body("Describe Seattle?"), path=CHAT)).status == 200
        await until(lambda: load_of(up) == IDLE)
        told = await explained(up, body(PARTS))
        assert told["tokens"]["basis"] == "exact"
        assert told["replicas"][0]["matched_tokens"] == told["blocks"]["count"] * BLOCK > 0


async def test_a_tokenizer_nobody_has_is_looked_for_once(monkeypatch, caplog, tmp_path):
    """A model under an alias, no files of it on this machine, and a replica that can't tokenize."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    looked = []

    def found(name, _cache):
        looked.append(name)

    monkeypatch.setattr("router.readers.found_folder", found)
    async with fake_replica() as replica:
        replica.models = [{"id": "default", "object": "model", "root": "nobody/nothing"}]
        async with router_over(replica, tokenizer__where="auto", policy__name="prefix-aware") as up:
            questions = replica.questions
            for number in range(50):
                body = json.dumps({"model": "default", "prompt": f"{number} " * 100}).encode()
                assert (await posted(up.url, body)).status == 200
            assert looked == ["nobody/nothing"]
            assert replica.questions - questions <= 3
            told = await explained(up, b'{"model":"default","prompt":"hello"}', "/v1/completions")
    assert told["tokens"]["basis"] == "approximate"
    said_of_it = [
        record
        for record in caplog.records
        if "tokeniz" in record.getMessage() and "default" in record.msg % record.args
    ]
    assert len(said_of_it) == 1


# -- load --------------------------------------------------------------------------------------------------------------


async def test_a_long_prompt_is_load_from_when_it_is_sent():
    """Not from when its reply begins: eight at once, of 32,000 tokens each, are two for every replica."""
    held = Held()
    async with (
        fake_replica(held) as a,
        fake_replica(held) as b,
        fake_replica(held) as c,
        fake_replica(held) as d,
        router_over(a, b, c, d, policy__name="prefix-aware") as up,
    ):
        prompts = [prompted([*range(number * 40_000, number * 40_000 + 32_000)]) for number in range(8)]
        sent = [asyncio.create_task(posted(up.url, prompt)) for prompt in prompts]
        await until(lambda: len(a.seen) + len(b.seen) + len(c.seen) + len(d.seen) == 8)
        assert [len(one.seen) for one in (a, b, c, d)] == [2, 2, 2, 2]
        held.free.set()
        assert {reply.status for reply in await asyncio.gather(*sent)} == {200}


@pytest.mark.parametrize(("most", "used"), [(None, 2), (8, 2)])
async def test_a_burst_behind_one_prefix_meets_on_few_replicas(most, used):
    """Of 16 with 2,048 tokens in common and 64 of their own, before any has been answered."""
    held = Held()
    limits = {} if most is None else {"admission__max_in_flight": most}
    head = [*range(1, 2049)]
    async with (
        fake_replica(held) as a,
        fake_replica(held) as b,
        fake_replica(held) as c,
        fake_replica(held) as d,
        router_over(a, b, c, d, policy__name="prefix-aware", **limits) as up,
    ):
        replicas = (a, b, c, d)
        sent = []
        for number in range(16):
            body = prompted([*head, *range(10_000 + number * 64, 10_064 + number * 64)])
            sent.append(asyncio.create_task(posted(up.url, body)))
            await until(lambda: sum(len(one.seen) for one in replicas) == len(sent))
            if number == 0:
                told = await explained(up, body, "/v1/completions")
                assert max(row["matched_tokens"] for row in told["replicas"]) >= 2048
        takers = sorted(len(one.seen) for one in replicas if one.seen)
        assert len(takers) <= used
        if most is not None:
            assert takers == [8, 8]
        held.free.set()
        assert {reply.status for reply in await asyncio.gather(*sent)} == {200}


async def test_a_burst_whose_first_request_fails_is_not_expected_there():
    busy = ok(b"{}", status=b"503 Busy")
    async with fake_replica(busy) as replica, router_over(replica, policy__name="prefix-aware") as up:
        body = prompted([*range(2100)])
        assert (await posted(up.url, body)).status == 503
        await until(lambda: load_of(up) == IDLE)
        told = await explained(up, body, "/v1/completions")
        assert told["replicas"][0]["matched_tokens"] == 0


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "replica_key", "arrives"),
    [
        ("auto", "fleet", [b"Bearer fleet"]),
        ("auto", None, [b"Bearer client"]),
        ("forward", "fleet", [b"Bearer client"]),
        ("forward", None, [b"Bearer client"]),
        ("drop", "fleet", [b"Bearer fleet"]),
        ("drop", None, []),
    ],
)
async def test_a_clients_key_is_replaced_forwarded_or_dropped_as_the_operator_says(
    monkeypatch, setting, replica_key, arrives
):
    more = {}
    if replica_key is not None:
        monkeypatch.setenv("FLEET_KEY", replica_key)
        more = {"replica_key_env": "FLEET_KEY"}
    async with fake_replica() as replica, router_over(replica, client_key=setting, **more) as up:
        keys = (b"Authorization: Bearer client", b"x-api-key: client")
        assert (await posted(up.url, prompted("hi"), *keys)).status == 200
        assert replica.seen[0].values(b"authorization") == arrives
        assert (b"client" in replica.seen[0].head) is (setting != "drop")


async def test_replicas_may_want_different_keys(monkeypatch):
    """One wants the client's, another the fleet's, and a request that moves on to the other takes the other's along."""
    monkeypatch.setenv("FLEET_KEY", "fleet")
    async with fake_replica() as theirs, fake_replica() as ours:
        table = [{"name": "theirs", "url": theirs.url, "client_key": "forward"}, {"name": "ours", "url": ours.url}]
        async with router_over(replicas=table, replica_key_env="FLEET_KEY") as up:
            for _ in range(4):
                assert (await posted(up.url, prompted("hi"), b"Authorization: Bearer client")).status == 200
            assert {seen.values(b"authorization")[0] for seen in theirs.seen} == {b"Bearer client"}
            assert {seen.values(b"authorization")[0] for seen in ours.seen} == {b"Bearer fleet"}
            theirs.answer = ours.answer = said(ok(status=b"503 Busy"))
            theirs.seen.clear()
            ours.seen.clear()
            request = post(prompted("hi"), b"Authorization: Bearer client", b"X-Request-Id: q")
            async with client_of(up.url) as client:
                await client.send(request)
                assert (await client.reply()).status == 503
            assert [seen.values(b"authorization") for seen in theirs.seen] == [[b"Bearer client"]]
            assert [seen.values(b"authorization") for seen in ours.seen] == [[b"Bearer fleet"]]
            names = sorted(seen.values(b"x-request-id")[0] for seen in (*theirs.seen, *ours.seen))
            assert names == [b"q", b"q-retry-1"]


@pytest.mark.parametrize(
    "more",
    [{"client_key": "forward"}, {"replicas": [{"url": "http://127.0.0.1:1", "client_key": "forward"}]}],
    ids=["fleet", "replica"],
)
def test_tenants_keys_are_never_forwarded(more):
    given = {"replicas": "http://127.0.0.1:1", "tenants.file": "tenants.toml", **more}
    with pytest.raises(ConfigError, match="client_key = forward would hand tenants' keys to replicas"):
        load(flags={name: ("test", value) for name, value in given.items()})
