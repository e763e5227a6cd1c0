"""`router bench` as a user types it: figures, Ctrl-C, what can't be used, servers that misbehave."""

import asyncio
import json
import os
import signal
import threading

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from router import bench_cli
from router.arguments import parsed
from router.bench.report import as_json
from router.cli import COMMANDS, main
from router.errors import RouterError, UsageError
from sim.emulator_faults import Faults
from tests.emulated import emulated
from tests.fakes import STREAM, Exchange, chunk, fake_replica, ok, until

QUICK = ("--rate", "300", "--requests", "10", "--max-tokens", "3", "--prefix-tokens", "64", "--question-tokens", "16")
EXACT = (*QUICK, "--endpoint", "completions")


async def bench(*words):
    return await bench_cli.measured(parsed(["bench", *words], COMMANDS))


def rows(report):
    return {(row["side"], row["group"], row["phase"]): row for row in as_json(report)["phases"]}


@pytest.fixture
async def server():
    emulator = await emulated(faults=Faults())
    yield emulator
    await emulator.close()


async def switch(server, **fault):
    async with aiohttp.ClientSession() as client, client.post(f"{server.url}/faults", json=fault) as answer:
        assert answer.status == 200


async def test_a_run_tells_what_the_server_counted(server):
    report = await bench(f"{server.url}/v1/", *EXACT, "--slo-ttft", "30")
    told = rows(report)
    assert list(told) == [("A", group, name) for group in ("shared", "unique") for name in ("cold", "warm")]
    assert sum(row["cached_tokens"] for row in told.values()) == server.engine.counters.hit_tokens
    assert told["A", "unique", "cold"]["cached_tokens"] == 0
    assert told["A", "unique", "warm"]["cached_tokens"] == 10 * 64
    assert {row["in_time_fraction"] for row in told.values()} == {1.0}
    assert {row["good"] for row in told.values()} == {10}
    assert not report.failed


async def test_chats_files_and_traces_are_asked_too(server, tmp_path):
    bodies = tmp_path / "bodies.jsonl"
    bodies.write_text('{"messages":[{"role":"user","content":"%s"}],"max_tokens":2}\n' % ("a long prompt " * 9))
    told = rows(await bench(server.url, *QUICK, "--file", str(bodies), "--groups", "own,unique"))
    assert told["A", "bodies.jsonl", "warm"]["requests"] == 1
    assert told["A", "bodies.jsonl", "cold"]["cached_tokens"] == 0
    assert told["A", "bodies.jsonl", "warm"]["cached_tokens"] > 100
    trace = tmp_path / "mooncake.jsonl"
    lines = [
        {"timestamp": 20 * place, "input_length": 600, "output_length": 2, "hash_ids": [0, place]} for place in range(3)
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ("--trace", str(trace), "--groups", "own", "--concurrency-limit", "1")
    told = rows(await bench(server.url, *words))
    assert told["A", "mooncake.jsonl", "cold"]["rate_per_s"] is None
    assert told["A", "mooncake.jsonl", "cold"]["cached_tokens"] == 2 * 512
    assert told["A", "mooncake.jsonl", "cold"]["prompt_tokens"] == 3 * 600
    assert told["A", "mooncake.jsonl", "cold"]["output_tokens"] == 3 * 2


async def test_two_sides_are_compared_without_warming_each_other(server):
    report = await bench("--compare", server.url, server.url, *EXACT, "--groups", "unique")
    told = rows(report)
    assert told["A", "unique", "cold"]["cached_tokens"] == told["B", "unique", "cold"]["cached_tokens"] == 0
    (cold, warm) = as_json(report)["ratios_b_over_a"]
    assert (cold["phase"], warm["phase"]) == ("cold", "warm")
    assert cold["ttft"]["pairs"] == 10
    assert cold["ttft"]["low"] <= cold["ttft"]["ratio"] <= cold["ttft"]["high"]
    same = rows(await bench("--compare", server.url, server.url, *EXACT, "--groups", "unique", "--same-prompts"))
    assert same["B", "unique", "cold"]["cached_tokens"] > 0


async def test_an_overloaded_server_shows_late_sends_and_errors_by_kind():
    emulator = await emulated(speed=1.0, max_queued=4)
    try:
        words = ("--rate", "2000", "--requests", "40", "--prefix-tokens", "600", "--endpoint", "completions")
        words = (*words, "--groups", "unique")
        refused = await bench(emulator.url, *words, "--max-tokens", "12")
        guarded = await bench(emulator.url, *words, "--max-tokens", "4", "--concurrency-limit", "2")
    finally:
        await emulator.close()
    cold = rows(refused)["A", "unique", "cold"]
    assert set(cold["errors"]) == {"http 503"}
    assert cold["good"] + cold["errors"]["http 503"] == 40
    assert refused.failed
    cold = rows(guarded)["A", "unique", "cold"]
    assert cold["errors"] == {}
    assert cold["late"] > 0
    assert any("the load was not the one asked for" in note for note in guarded.notes)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ({"kind": "error", "status": 429}, "http 429"),
        ({"kind": "cut", "tokens": 0}, "cut"),
        ({"kind": "hang"}, "timeout"),
    ],
)
async def test_faults_of_a_server_are_told_by_kind(server, fault, error):
    await switch(server, every=2, **fault)
    report = await bench(server.url, *EXACT, "--groups", "unique", "--timeout", "2")
    for row in rows(report).values():
        assert (row["errors"], row["good"]) == ({error: 5}, 5)


async def test_a_server_without_usage_leaves_unknown_what_it_does_not_tell():
    stream = STREAM + chunk(b'data: {"choices":[{"text":"x"}]}\n\ndata: [DONE]\n\n') + b"0\r\n\r\n"
    async with fake_replica(stream) as replica:
        report = await bench(replica.url, *EXACT, "--groups", "unique")
    cold = rows(report)["A", "unique", "cold"]
    assert cold["good"] == 10
    assert cold["ttft_s"]["p50"] is not None
    unknown = ("cached_tokens", "cached_fraction", "cached_source", "prompt_tokens", "output_tokens")
    assert {cold[name] for name in unknown} == {None}
    assert cold["tpot_s"] == {"p50": None, "p95": None}


async def test_counters_are_read_where_answers_are_silent(server):
    async def script(exchange: Exchange):
        await exchange.send(STREAM + chunk(b'data: {"choices":[{"text":"x"}]}\n\ndata: [DONE]\n\n') + b"0\r\n\r\n")
        server.engine.counters.queried_tokens += 40
        server.engine.counters.hit_tokens += 10

    async with fake_replica(script) as replica:
        report = await bench(replica.url, *EXACT, "--groups", "unique", "--metrics", server.url)
    cold = rows(report)["A", "unique", "cold"]
    assert (cold["cached_source"], cold["cached_tokens"], cold["cached_fraction"]) == ("metrics", 100, 0.25)


async def test_the_key_does_not_go_to_engines_elsewhere(monkeypatch):
    monkeypatch.setenv("BENCH_KEY", "secret-key")
    seen = []

    async def told(http):
        seen.append(http.headers.get("Authorization"))
        return web.Response(text="vllm:prefix_cache_queries_total 1\nvllm:prefix_cache_hits_total 0\n")

    app = web.Application()
    app.router.add_get("/metrics", told)
    async with TestServer(app) as elsewhere, fake_replica(ok(b"{}")) as replica:
        metrics = str(elsewhere.make_url(""))
        await bench(replica.url, *EXACT, "--api-key-env", "BENCH_KEY", "--groups", "unique", "--metrics", metrics)
    assert seen == [None] * 4


async def test_ctrl_c_ends_the_load_and_not_the_report():
    async def script(exchange: Exchange):
        if sum(seen.line.startswith(b"POST /v1/completions") for seen in replica.seen) == 5:
            os.kill(os.getpid(), signal.SIGINT)
            await exchange.left()
            return
        await exchange.send(ok(b"{}"))

    async with fake_replica(script) as replica:
        report = await bench(replica.url, *EXACT, "--concurrency-limit", "1")
    assert report.interrupted
    assert [row["requests"] for row in as_json(report)["phases"]] == [3]
    assert "interrupted" in report.notes[0]


async def test_a_request_that_is_not_taken_is_told_before_the_load(server, tmp_path):
    with pytest.raises(RouterError, match=r"answers 400 to /v1/chat/completions: .*maximum context length"):
        await bench(server.url, "--prefix-tokens", "3000")
    bodies = tmp_path / "bodies.jsonl"
    bodies.write_text('{"messages":[{"role":"user","content":"secret"}],"max_tokens":-1}')
    with pytest.raises(RouterError, match=r"answers 400 to /v1/chat/completions$"):
        await bench(server.url, "--file", str(bodies), "--groups", "own")
    await switch(server, kind="error", status=429)
    assert rows(await bench(server.url, *EXACT, "--groups", "unique"))["A", "unique", "cold"]["errors"] == {
        "http 429": 10
    }


async def test_key_and_headers_are_sent_and_not_reported(server, monkeypatch):
    monkeypatch.setenv("BENCH_KEY", "secret-key")
    async with fake_replica(ok(b"{}")) as replica:
        words = ("--api-key-env", "BENCH_KEY", "--header", "X-Team: secret-team", "--groups", "unique")
        report = await bench(replica.url, *EXACT, *words)
    assert replica.seen[0].values(b"Authorization") == [b"Bearer secret-key"]
    assert replica.seen[0].values(b"X-Team") == [b"secret-team"]
    assert "secret" not in json.dumps(as_json(report))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "name a URL to measure"),
        (("http://a", "--compare", "http://a", "http://b"), "name a URL to measure"),
        (("http://a", "--same-prompts"), "no meaning without --compare"),
        (("http://user:secret@host",), "the URL of host has a user, key or query"),
        (("http://host?key=secret",), "the URL of host has a user, key or query"),
        (("ftp://host",), "is no HTTP address"),
        (("http://host:port",), "no usable host and port"),
        (("http://a", "--api-key-env", "NOT_SET_HERE"), "NOT_SET_HERE holds no key"),
        (("http://a", "--header", "secret"), "header 1 is not of the form NAME:VALUE"),
    ],
)
async def test_what_cannot_be_used_is_told_without_secrets(words, told):
    with pytest.raises(UsageError, match=told) as raised:
        await bench(*words)
    assert "secret" not in str(raised.value)


async def test_own_prompts_want_a_source_with_prefixes(server, tmp_path):
    with pytest.raises(UsageError, match="--groups own wants --file or --trace"):
        await bench(server.url, "--groups", "own")
    trace = tmp_path / "lengths.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00.5,100,10\n2024-01-01 00:00:01.5,100,10\n"
    )
    with pytest.raises(UsageError, match="tells lengths only"):
        await bench(server.url, "--trace", str(trace))
    with pytest.raises(RouterError, match="absent"):
        await bench(server.url, "--trace", str(tmp_path / "absent"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--rate", "2,0"), "0 is not more than 0"),
        (("--groups", "shared,mine"), "there is no group 'mine'"),
        (("--extra", "[1]"), "is no JSON object"),
        (("--requests", "0"), "0 is less than 1"),
        (("--file", "a", "--trace", "b"), "not allowed with"),
    ],
)
def test_a_wrong_option_ends_with_2(capsys, words, told):
    assert main(["bench", "http://127.0.0.1:1", *words]) == 2
    assert told in capsys.readouterr().err


def test_a_server_that_is_not_there_ends_with_1(capsys):
    assert main(["bench", "http://127.0.0.1:1"]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "router: http://127.0.0.1:1 refused the connection\n")


@pytest.fixture
def threaded():
    """A server beside the main thread, so that the command can have that one, with its signals, for itself."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def done(awaitable):
        return asyncio.run_coroutine_threadsafe(awaitable, loop)

    emulator = done(emulated(faults=Faults())).result(10)
    yield emulator, done
    done(emulator.close()).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def test_the_command_prints_json_alone_writes_the_page_and_tells_failure(threaded, capsys, tmp_path):
    server, done = threaded
    page = tmp_path / "page.html"
    words = ["bench", server.url, *EXACT, "--groups", "unique", "--html", str(page)]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["phase"] for row in told["phases"]] == ["cold", "warm"]
    assert page.read_text().startswith("<!doctype html>")
    done(switch(server, kind="error", every=2)).result(10)
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert "TTFT p50" in out
    assert "5 http 500" in out
    assert f"router: wrote {page}" in err


def test_ctrl_c_ends_with_130_and_what_there_was(threaded, capsys):
    server, done = threaded
    done(switch(server, kind="hang", every=5)).result(10)  # one is tried unmeasured

    async def pressed():
        await until(lambda: server.faults.met > 0, bound_s=20)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = done(pressed())
    assert main(["bench", server.url, *EXACT, "--json", "--concurrency-limit", "1"]) == 130
    pressing.result(10)
    told = json.loads(capsys.readouterr().out)
    assert (told["interrupted"], [row["requests"] for row in told["phases"]]) == (True, [3])
