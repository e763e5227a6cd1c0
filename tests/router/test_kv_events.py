"""Real sockets: a publisher with its replay socket, as an engine has them, and everything that may be there instead."""

import asyncio
import logging
import time
from contextlib import asynccontextmanager

import msgspec
import pytest
import zmq
import zmq.asyncio

from policies.blocks import Chain, block_keys, packed
from policies.engine_hashes import FIXED_SEED, block_hashes, root_hash, short
from policies.fleet import Fleet
from policies.types import Request
from router.kv_events import KvEvents
from router.kv_publisher import FAULTS
from router.kv_standing import ALIAS, APPROXIMATE, EXACT
from router.probes import ProbeError
from tests.fakes import until

BLOCK_TOKENS = 4
MODEL = "m"


class Engine:
    """Publishes and replays as vLLM does; `kept` batches can be replayed."""

    def __init__(self, context, *, kept=10_000, replay=True, instead_of=None, batches=()):
        self.batches = list(batches)
        self.kept = kept
        self.asked = []
        self.router = self.replay_endpoint = self.answering = None
        if replay:
            address = instead_of and instead_of.replay_endpoint
            self.router, self.replay_endpoint = self._bound(context, zmq.ROUTER, address)
            self.answering = asyncio.create_task(self._answer())
        self.live, self.endpoint = self._bound(context, zmq.PUB, instead_of and instead_of.endpoint)

    @staticmethod
    def _bound(context, kind, address):
        socket = context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        if address is None:
            return socket, f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"
        for _ in range(1000):  # whoever had the address gives it back in a thread of its own
            try:
                socket.bind(address)
                break
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE:
                    raise
                time.sleep(0.002)
        return socket, address

    async def _answer(self):
        while True:
            who, _, start = await self.router.recv_multipart()
            start = int.from_bytes(start, "big")
            self.asked.append(start)
            first = max(start, len(self.batches) - self.kept)
            for number in range(first, len(self.batches)):
                frames = [b"kv", number.to_bytes(8, "big"), self.batches[number]]
                await self.router.send_multipart([who, b"", *frames])
            await self.router.send_multipart([who, b"", b"", (-1).to_bytes(8, "big", signed=True), b""])

    async def publish(self, *events, lose=False, payload=None):
        self.batches.append(packed_batch(*events, clock=len(self.batches)) if payload is None else payload)
        if not lose:
            await self.repeat(len(self.batches) - 1)

    async def repeat(self, number):
        await self.live.send_multipart([b"kv", number.to_bytes(8, "big"), self.batches[number]])

    async def close(self):
        if self.router is not None:
            self.answering.cancel()
            await asyncio.gather(self.answering, return_exceptions=True)
            self.router.close()
        self.live.close()

    def source(self):
        return {"endpoint": self.endpoint, "replay_endpoint": self.replay_endpoint, "topic": "kv", "publisher": "zmq"}


def packed_batch(*events, clock=0.0):
    return msgspec.msgpack.encode([float(clock), list(events), 0])


def tokens(*blocks):
    return [token for block in blocks for token in range(block * 100, block * 100 + BLOCK_TOKENS)]


def stored(*blocks, after=(), seed=FIXED_SEED, **more):
    """Blocks `blocks` of a prompt that begins with the blocks `after`, hashed as vLLM does."""
    whole = [*after, *blocks]
    made = block_hashes("sha256", root_hash("sha256", seed), tokens(*whole), BLOCK_TOKENS, [None] * len(whole))
    hashes = [short(full) for full in made]
    parent = hashes[len(after) - 1] if after else None
    told = {"type": "BlockStored", "block_hashes": hashes[len(after) :], "parent_block_hash": parent}
    return told | {"token_ids": tokens(*blocks), "block_size": BLOCK_TOKENS, "medium": "GPU", "group_idx": 0} | more


def removed(event, at=-1):
    return {"type": "BlockRemoved", "block_hashes": [event["block_hashes"][at]], "medium": "GPU", "group_idx": 0}


CLEARED = {"type": "AllBlocksCleared"}


class Followed:
    """One replica of a fleet, and who follows its events."""

    def __init__(self, fleet, events, replies):
        self.fleet = fleet
        self.events = events
        self.replies = replies
        self.untold = []

    @staticmethod
    def request(number, *blocks):
        keys = block_keys(Chain.root(MODEL), packed(tokens(*blocks)), BLOCK_TOKENS)
        return Request(f"q{number}", "/", "", "", None, None, len(keys) * BLOCK_TOKENS + 1, None, keys, BLOCK_TOKENS)

    def matched(self, *blocks, now_s=0.0):
        return self.fleet.view(self.request("", *blocks), now_s)[0].matched_blocks

    def serves(self, number, *blocks):
        """The replica has computed a prompt."""
        request = self.request(number, *blocks)
        self.fleet.sent(request, "r1")
        self.fleet.first_token(request)
        self.fleet.done(request)

    @property
    def state(self):
        state = self.events.states()[0]
        assert set(state.faults) <= set(FAULTS)
        return state

    @property
    def word(self):
        return self.state.standing.word

    def fault(self, kind):
        return self.state.faults.get(kind, 0)

    async def sees(self, blocks, count):
        await until(lambda: self.matched(*blocks) == count)


@asynccontextmanager
async def following(engine=None, *, setting="auto", sources=None, root=lambda _: MODEL, **options):
    fleet = Fleet(BLOCK_TOKENS)
    fleet.joined("r1")
    replies = {"status": 200, "sources": sources if sources is not None else {"0": engine.source()} if engine else {}}

    async def ask(_url, path):
        assert path == "/kv_event_sources"
        if replies["status"] is None:
            raise ProbeError("refused the connection")
        return replies["status"], msgspec.json.encode(replies["sources"])

    def untold(name):
        followed.untold.append(name)
        fleet.left(name)
        fleet.joined(name)

    options = {"first_retry_s": 0.05, "replay_timeout_s": 0.5} | options
    followed = Followed(fleet, KvEvents(fleet, ask=ask, root=root, untold=untold, **options), replies)
    followed.events.follow("r1", "http://127.0.0.1:1", setting)
    async with followed.events:
        yield followed


@pytest.fixture
async def context():
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
async def engine(context):
    engine = Engine(context)
    yield engine
    await engine.close()


async def test_the_index_is_what_the_engine_says(engine):
    async with following(engine) as followed:
        await until(lambda: engine.asked)
        await engine.publish(stored(1, 2))
        await engine.publish(stored(3, after=(1, 2)))
        await followed.sees((1, 2, 3), 3)
        await engine.publish(removed(stored(1, 2, 3)))
        await followed.sees((1, 2, 3), 2)
        await engine.publish(CLEARED)
        await followed.sees((1, 2, 3), 0)
        assert followed.state.blocks == {"stored": 3, "removed": 1}
        assert not any(followed.state.faults.values())


async def test_a_router_that_starts_late_reads_what_is_still_kept(engine):
    for block in range(20):
        await engine.publish(stored(block))
    async with following(engine) as followed:
        await followed.sees((19,), 1)
        assert followed.matched(0) == 1
        assert engine.asked == [0]
        assert followed.state.standing.degraded == ""


async def test_a_buffer_shorter_than_the_past_is_said(context):
    engine = Engine(context, kept=5)
    for block in range(20):
        await engine.publish(stored(block))
    async with following(engine) as followed:
        await followed.sees((19,), 1)
        assert [followed.matched(block) for block in (14, 15)] == [0, 1]
        assert followed.fault("missed") == 15
        assert "15 batches" in followed.state.standing.degraded
        await engine.publish(CLEARED)
        await engine.publish(stored(1))
        await followed.sees((1,), 1)
        assert followed.state.standing.degraded == "", "an empty cache is known in full"
    await engine.close()


async def test_what_an_engine_turns_out_not_to_have_is_forgotten(engine):
    """Its cache was emptied and no event said so: what comes from now on is believed again."""
    async with following(engine) as followed:
        await engine.publish(stored(1))
        await followed.sees((1,), 1)
        followed.events.disbelieved("r1")
        followed.events.disbelieved("r9")
        await followed.sees((1,), 0)
        assert "found nothing" in followed.state.standing.degraded
        assert followed.fault("unfounded") == 1
        await engine.publish(stored(2))
        await followed.sees((2,), 1)
        await engine.publish(CLEARED)
        await engine.publish(stored(3))
        await followed.sees((3,), 1)
        assert followed.state.standing.degraded == ""


async def test_a_gap_is_asked_for_and_healed_in_order(engine):
    async with following(engine) as followed:
        await engine.publish(stored(1))
        await followed.sees((1,), 1)
        await engine.publish(stored(2), lose=True)
        await engine.publish(removed(stored(2)), lose=True)
        await engine.publish(stored(3), lose=True)
        await engine.publish(stored(4))
        await followed.sees((4,), 1)
        assert [followed.matched(block) for block in (1, 2, 3)] == [1, 0, 1]
        assert engine.asked[-1] == 1
        assert followed.fault("missed") == 0
        assert followed.state.standing.degraded == ""


async def test_a_gap_without_a_replay_endpoint_degrades_and_purges_nothing(context):
    engine = Engine(context, replay=False)
    async with following(engine) as followed:
        await until(lambda: followed.events.states()[0].standing.reason.startswith("has published"))
        await engine.publish(stored(1))
        await followed.sees((1,), 1)
        for block in range(2, 6):
            await engine.publish(stored(block), lose=True)
        await engine.publish(stored(6))
        await followed.sees((6,), 1)
        assert followed.matched(1) == 1
        assert followed.fault("missed") == 4
        assert "4 batches" in followed.state.standing.degraded
        assert followed.word == EXACT
    await engine.close()


async def test_a_repeated_batch_is_no_second_copy_and_no_restart(engine):
    async with following(engine) as followed:
        await engine.publish(stored(1))
        await followed.sees((1,), 1)
        await engine.repeat(0)
        await until(lambda: followed.fault("duplicate") == 1)
        await engine.publish(removed(stored(1)))
        await followed.sees((1,), 0)
        assert followed.fault("restart") == 0


@pytest.mark.parametrize("published", [1, 3, 8])
async def test_a_new_process_at_the_same_address(context, published):
    """However far the new process has come when it is heard again: nothing of the old one is left."""
    old = Engine(context)
    async with following(old) as followed:
        for block in range(3):
            await old.publish(stored(block))
        await followed.sees((2,), 1)
        await old.close()
        new = Engine(context, instead_of=old, batches=[packed_batch(stored(10 + at)) for at in range(published)])
        await followed.sees((9 + published,), 1)
        assert [followed.matched(block) for block in range(3)] == [0, 0, 0]
        assert followed.matched(10) == 1
        await new.close()


async def test_a_number_that_goes_back_is_a_restart(engine):
    async with following(engine) as followed:
        for block in range(3):
            await engine.publish(stored(block))
        await followed.sees((2,), 1)
        engine.batches.clear()
        await engine.publish(stored(50))
        await followed.sees((50,), 1)
        assert [followed.matched(block) for block in range(3)] == [0, 0, 0]
        assert followed.fault("restart") == 1


async def test_ranks_are_kept_apart(context):
    first, second = Engine(context), Engine(context)
    async with following(sources={"0": first.source(), "1": second.source()}) as followed:
        await until(lambda: first.asked and second.asked)
        await first.publish(stored(1))
        await second.publish(stored(1))
        await second.publish(stored(2))
        await followed.sees((2,), 1)
        await until(lambda: followed.state.batches == 3)
        await second.publish(CLEARED)
        await followed.sees((2,), 0)
        assert followed.matched(1) == 1, "the other rank still holds it"
        await first.publish(CLEARED)
        await followed.sees((1,), 0)
    await first.close()
    await second.close()


# -- how far it can be believed --------------------------------------------------------------------------------------


async def test_hashes_that_can_be_recomputed_are_exact(engine, caplog):
    caplog.set_level(logging.INFO, "router.kv_events")
    async with following(engine) as followed:
        await until(lambda: "has published no KV events yet" in followed.state.standing.reason)
        assert followed.word == APPROXIMATE
        await engine.publish(stored(1))
        await until(lambda: followed.word == EXACT)
        assert followed.state.standing.reason == "block hashes are sha256 with vLLM's own seed"
        await until(lambda: "cache known EXACT" in caplog.text)


async def test_hashes_with_an_unknown_seed_are_mapped(engine):
    async with following(engine) as followed:
        await until(lambda: engine.asked)
        await engine.publish(stored(1, seed="by chance"))
        await followed.sees((1,), 1)
        assert followed.word == ALIAS
    async with following(engine, seeds=("by chance",)) as followed:
        await followed.sees((1,), 1)
        assert followed.state.standing.reason == "block hashes are sha256 with PYTHONHASHSEED=by chance"


@pytest.mark.parametrize(
    ("status", "said"), [(404, "set kv_events"), (500, "answered 500"), (200, "--kv-events-config"), (None, "refused")]
)
async def test_a_replica_without_events(status, said):
    async with following(sources={}) as followed:
        followed.replies["status"] = status
        await until(lambda: said in followed.state.standing.reason)
        assert followed.word == APPROXIMATE
        assert followed.untold == []


async def test_a_replica_that_takes_prompts_and_tells_of_none_is_told_of_again_and_again(engine, caplog, monkeypatch):
    """Its engine has events off, or publishes elsewhere: all requests go well, and nothing else would show it."""
    monkeypatch.setattr("router.kv_events._TICK_S", 0.01)
    monkeypatch.setattr("router.kv_followed._QUIET_S", 0.05)
    async with following(engine, lost_s=0.02) as followed:
        await until(lambda: "no KV events yet" in followed.state.standing.reason)
        keys = block_keys(Chain.root(MODEL), packed(tokens(1, 2)), BLOCK_TOKENS)
        request = Request("q", "/", "", "", None, None, 2 * BLOCK_TOKENS + 1, None, keys, BLOCK_TOKENS)
        followed.fleet.sent(request, "r1")
        followed.fleet.done(request)
        warned = "takes prompts and publishes no KV events; start vLLM with --kv-events-config"
        await until(lambda: caplog.text.count(warned) >= 2)
        assert {record.levelname for record in caplog.records if warned in record.getMessage()} == {"WARNING"}
        assert followed.state.standing.degraded
        await engine.publish(stored(1))
        await followed.sees((1,), 1)
        await until(lambda: followed.word == EXACT and not followed.state.standing.degraded)


async def test_a_replica_that_was_sent_nothing_has_nothing_to_tell(engine, caplog, monkeypatch):
    monkeypatch.setattr("router.kv_events._TICK_S", 0.002)
    async with following(engine, lost_s=0.05) as followed:
        await until(lambda: "no KV events yet" in followed.state.standing.reason)
        looks = followed.events._followed["r1"]
        for _ in range(100):
            await asyncio.sleep(0.001)
            assert looks.mute_since_s is None
    assert "takes prompts" not in caplog.text


async def test_off(engine):
    async with following(engine, setting="off") as followed:
        await engine.publish(stored(1))
        assert followed.state.standing.reason == "kv_events is off"


async def test_events_that_are_switched_on_later(engine):
    async with following(engine) as followed:
        followed.replies["sources"], sources = {}, followed.replies["sources"]
        await engine.publish(stored(1))
        followed.replies["sources"] = sources
        await followed.sees((1,), 1)


async def test_a_model_that_is_known_later(engine):
    known = {}
    async with following(engine, root=known.get, first_retry_s=60.0) as followed:
        await until(lambda: "model" in followed.state.standing.reason)
        known["r1"] = MODEL
        followed.events.learnt()
        await engine.publish(stored(1))
        await followed.sees((1,), 1)


# -- bad input -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def speaking(said):
    """A service that is no ZMQ publisher."""

    async def serve(_reader, writer):
        writer.write(said)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(64), b"\x00" * 100], ids=["nothing", "http", "zeros"]
)
async def test_another_service_behind_the_address(said):
    async with speaking(said) as endpoint, following(setting=endpoint, lost_s=0.5) as followed:
        await until(lambda: endpoint in followed.state.standing.reason)
        await until(lambda: followed.word == APPROXIMATE and not followed.events._followed["r1"].feeds)
        assert followed.untold == []


async def test_events_of_another_engine_do_not_count(engine, context):
    """The address of one replica's publisher, given for another: what that one computes is never told."""
    async with following(engine, strange_s=0.0, first_retry_s=60.0) as followed:
        await engine.publish(stored(1))
        await followed.sees((1,), 1)
        for place in range(8):
            followed.serves(place, 10 + place)
        assert followed.word == EXACT
        assert followed.matched(10) == 1  # it has a second to tell
        assert followed.matched(10, now_s=2.0) == 0
        await until(lambda: followed.untold == ["r1"])
        assert followed.word == APPROXIMATE
        assert "tell nothing of the prompts" in followed.state.standing.reason
        assert followed.fault("strange") == 1


async def test_who_tells_of_its_prompts_is_believed(engine):
    async with following(engine, strange_s=0.0) as followed:
        await engine.publish(stored(1))
        await followed.sees((1,), 1)
        for place in range(40):
            followed.serves(place, 10 + place)
            followed.matched(10, now_s=2.0 * place)
            if place % 7 == 6:
                await engine.publish(stored(10 + place))
                await followed.sees((10 + place,), 1)
        assert followed.matched(11, now_s=1000.0) == 0
        assert followed.untold == []
        assert followed.fault("strange") == 0
        followed.serves("again", 16)
        await until(lambda: followed.events._followed["r1"].proved)


async def test_who_never_proves_anything_is_tried_less_and_less(engine):
    """What was heard before it broke is no reason to be back soon: only prompts it told of are."""
    async with following(engine, first_retry_s=0.01) as followed:
        for _ in range(12):
            await engine.publish(payload=b"\xc1")
        await until(lambda: followed.events._followed["r1"].tries >= 4)
        assert followed.fault("unusable") >= 4
        assert followed.word == APPROXIMATE
        assert followed.state.standing.reason == "sends events that can't be read (not msgpack)"


@pytest.mark.parametrize("number", [1 << 40, (1 << 63) - 1, (1 << 64) - 1])
async def test_numbers_of_batches_that_nobody_can_have_sent(engine, number):
    async with following(engine) as followed:
        await engine.publish(stored(1))
        await followed.sees((1,), 1)
        await engine.live.send_multipart([b"kv", number.to_bytes(8, "big"), packed_batch(stored(9))])
        await engine.publish(stored(2))
        await followed.sees((2,), 1)
        assert followed.matched(9) == 0
        assert followed.state.faults == {"foreign": 1}
        assert not followed.state.standing.degraded


async def test_events_that_tell_no_block_are_none_to_go_by(engine):
    async with following(engine) as followed:
        await until(lambda: engine.asked)
        await engine.publish(stored(1) | {"kv_cache_spec_kind": "sliding_window"}, {"type": "Odd"}, {"no": "type"})
        await until(lambda: followed.state.batches == 1)
        assert followed.word == APPROXIMATE
        assert "told no block which can be used" in followed.state.standing.reason
        await engine.publish(stored(1))
        await until(lambda: followed.word == EXACT)


async def test_a_message_that_is_too_large_breaks_the_connection(engine, caplog):
    async with following(engine, lost_s=0.3) as followed:
        await until(lambda: engine.asked)
        for _ in range(3):
            before = followed.fault("disconnected")
            await engine.live.send_multipart([b"kv", bytes(8), bytes(9_000_000)])
            await until(lambda before=before: followed.fault("disconnected") > before)
            await until(lambda: followed.events._followed["r1"].feeds[0].link == "connected")
        assert followed.word == APPROXIMATE
        assert "no message over 8 MiB is taken" in followed.state.standing.reason


async def test_sockets_are_closed_however_listening_ends(context):
    """Here in the middle of a replay, with a batch that can't be followed."""
    engine = Engine(context, batches=[packed_batch(stored(1) | {"block_size": 3, "token_ids": [1, 2, 3]})] * 3)
    async with following(engine, first_retry_s=0.01) as followed:
        sockets = followed.events._context._sockets
        await until(lambda: len(engine.asked) > 8)
        await until(lambda: not followed.events._followed["r1"].feeds and all(one.closed for one in sockets))
    await engine.close()


async def test_nobody_behind_the_address(unused_tcp_port):
    endpoint = f"tcp://127.0.0.1:{unused_tcp_port}"
    async with following(setting=endpoint) as followed:
        await until(lambda: "can't be reached" in followed.state.standing.reason)


async def test_the_replay_socket_given_as_the_publisher(engine):
    async with following(setting=engine.replay_endpoint) as followed:
        await until(lambda: engine.replay_endpoint in followed.state.standing.reason)
        assert followed.word == APPROXIMATE


async def test_a_replay_endpoint_that_never_answers(engine, context, caplog):
    silent = context.socket(zmq.PULL)
    port = silent.bind_to_random_port("tcp://127.0.0.1")
    async with following(setting=f"{engine.endpoint},tcp://127.0.0.1:{port}", replay_timeout_s=0.05) as followed:
        await until(lambda: "did not answer" in caplog.text)
        await engine.publish(stored(1), lose=True)
        await engine.publish(stored(2))
        await followed.sees((2,), 1)
        assert followed.fault("replay_failed") >= 1
        assert followed.fault("missed") == 1
    silent.close()


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1garbage", b"\x93\xcb", bytes(700_000)], ids=["empty", "bad", "cut", "big"]
)
async def test_one_payload_that_can_t_be_read_costs_that_one(engine, payload):
    async with following(engine) as followed:
        await engine.publish(stored(1))
        await followed.sees((1,), 1)
        await engine.publish(payload=payload)
        await engine.publish(stored(2))
        await followed.sees((2,), 1)
        assert followed.matched(1) == 1
        assert followed.fault("unreadable") == 1
        assert "batch 1 could not be read" in followed.state.standing.degraded


async def test_only_garbage_takes_the_replica_back_to_approximate(engine, caplog):
    async with following(engine, first_retry_s=60.0) as followed:
        await engine.publish(stored(1))
        await followed.sees((1,), 1)
        for _ in range(30):
            await engine.publish(payload=b"\xc1")
        await until(lambda: followed.untold == ["r1"])
        assert followed.word == APPROXIMATE
        assert "can't be read" in followed.state.standing.reason
        assert len([line for line in caplog.messages if "could not be read" in line]) == 1
        engine.batches.clear()
        await engine.publish(stored(5))
        followed.events.restarted("r1")
        await followed.sees((5,), 1)
        assert followed.word == EXACT


async def test_a_frame_beyond_every_bound_cuts_the_connection_and_no_more(engine):
    async with following(engine) as followed:
        await engine.publish(stored(1))
        await followed.sees((1,), 1)
        await engine.live.send_multipart([b"kv", bytes(8), bytes(20_000_000)])
        await until(lambda: len(engine.asked) > 1, 10)
        await engine.publish(stored(2))
        await followed.sees((2,), 1)
        assert followed.matched(1) == 1


@pytest.mark.parametrize(
    "frames", [[b"kv"], [b"kv", b"x"], [b"kv", bytes(7), b""], [b"kv", b"\xff" * 8, b""], [b"kv"] * 5], ids=len
)
async def test_messages_that_are_no_batches(engine, frames):
    async with following(engine) as followed:
        await until(lambda: engine.asked)
        await engine.publish(stored(1))
        await followed.sees((1,), 1)
        await engine.live.send_multipart(frames)
        await until(lambda: followed.fault("foreign") == 1)
        await engine.publish(stored(2))
        await followed.sees((2,), 1)


async def test_blocks_of_another_size(engine):
    async with following(engine, first_retry_s=60.0) as followed:
        await until(lambda: engine.asked)
        await engine.publish(stored(1) | {"block_size": 3, "token_ids": [1, 2, 3]})
        await until(lambda: "--set block_tokens=3" in followed.state.standing.reason)
        assert followed.word == APPROXIMATE
        assert followed.untold == ["r1"]


async def test_token_ids_out_of_range_and_clocks_that_jump(engine):
    async with following(engine) as followed:
        await until(lambda: engine.asked)
        await engine.publish(stored(1) | {"token_ids": [-1, 2, 3, 1 << 40]})
        for clock in (0.0, -1e300, float("nan"), float("inf"), 1.0):
            await engine.publish(payload=msgspec.msgpack.encode([clock, [stored(2)], 0]))
        await followed.sees((2,), 1)
        await until(lambda: followed.state.batches == 6)
        assert followed.state.blocks == {"bad_tokens": 1, "stored": 5}


async def test_a_publisher_that_goes_away_is_not_believed_for_long(context):
    engine = Engine(context)
    async with following(engine, lost_s=0.2, first_retry_s=60.0) as followed:
        await engine.publish(stored(1))
        await followed.sees((1,), 1)
        await engine.close()
        await until(lambda: followed.untold == ["r1"])
        assert "can't be reached" in followed.state.standing.reason


async def test_counts_survive_what_takes_a_replica_back(context):
    engine = Engine(context)
    async with following(engine, lost_s=0.2) as followed:
        await engine.publish(stored(1))
        await followed.sees((1,), 1)
        await engine.close()
        await until(lambda: followed.untold == ["r1"])
        assert followed.state.blocks == {"stored": 1}
        assert followed.state.batches == 1


async def test_thousands_of_batches_never_hold_up_the_loop(engine):
    """Requests go on while a long past is read: the loop turns again and again in between."""
    for start in range(0, 4000, 20):
        await engine.publish(*(stored(block) for block in range(start, start + 20)))
    turns = 0

    async def others():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    async with following(engine) as followed:
        await followed.sees((3999,), 1)
        assert followed.state.blocks == {"stored": 4000}
        assert turns > 50
    task.cancel()
