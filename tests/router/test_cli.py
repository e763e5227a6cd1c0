"""The `router` command, from its words to its exit code."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from router import cli

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("ROUTER_")]:
        monkeypatch.delenv(name)


def test_help_lists_every_command(capsys):
    assert cli.main(["--help"]) == 0
    told = capsys.readouterr().out
    for name, command in cli.COMMANDS.items():
        assert re.search(rf"^\s+{name}\s+{re.escape(command.summary[:20])}", told, re.MULTILINE)


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_has_help(name, capsys):
    assert cli.main([name, "--help"]) == 0
    assert f"usage: router {name}" in capsys.readouterr().out


def test_help_loads_nothing_heavy():
    code = "import sys; from router.cli import main; main(['--help']); print(*sys.modules, sep='\\n', file=sys.stderr)"
    loaded = subprocess.run(  # noqa: S603 -- our own program
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stderr.splitlines()
    heavy = {"pydantic", "aiohttp", "numpy", "tokenizers", "rich", "jinja2", "prometheus_client", "asyncio", "orjson"}
    assert "router.cli" in loaded
    assert heavy.isdisjoint(loaded)


def test_no_words_at_all(capsys):
    assert cli.main([]) == 2
    assert "usage: router" in capsys.readouterr().out


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("prefix-router 0.")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["srve"], "did you mean serve"),
        (["serve"], "no replicas; name them: router serve --replicas"),
        (["serve", "--replicas", "h"], "has no port; write h:8000"),
        (["serve", "--replicas", "x=a:1", "--replicas", "x=b:1"], "two replicas are named 'x'"),
        (["serve", "--replicas", "a:1", "--policy", "prefix-awre"], "did you mean 'prefix-aware'"),
        (["serve", "--replicas", "a:1", "--set", "policy.settings.x=1"], "has no setting 'x'"),
        (["serve", "--replicas", "a:1", "--config", "/none.toml"], "'/none.toml' can't be read"),
        (["serve", "--replicas", "a:1", "--set", "replica_key_env=NOT_SET"], "variable NOT_SET"),
        (["config", "--set", "listen.prt=1"], "did you mean listen.port"),
        (["check"], "no replicas to check"),
        (["demo", "--policy", "prefix-awre"], "did you mean 'prefix-aware'"),
        (["demo", "--rate", "0"], "0 is not more than 0"),
        (["replica", "--profile", "llama-h100"], "did you mean llama-3.1-8b-h100"),
        (["replica", "--tokenizer", "/none"], "/none/tokenizer.json: No such file"),
        (["explain", "/none.json"], "/none.json can't be read"),
        (["explain", "/none.json", "--tokenizer", "/none"], "/none.json can't be read"),
    ],
)
def test_what_can_not_be_used_as_asked_ends_with_2_and_one_line(words, told, capsys):
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("router: ")
    assert told in captured.err
    assert captured.err.count("\n") == 1


def test_a_package_that_hides_ours_is_named_before_anything_is_imported(monkeypatch, capsys):
    monkeypatch.setattr(cli.guard, "conflicts", lambda: ["policies: /x stands before /y"])
    assert cli.main(["policies"]) == 2
    assert "policies: /x stands before /y" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (KeyboardInterrupt(), 130, ""),
        (OSError(13, "Permission denied", "/file"), 1, "router: /file: Permission denied\n"),
        (OSError(98, "address already in use"), 1, "choose another port with --port or --admin-port"),
        (ImportError("no module named x", name="x"), 1, "x can't be imported"),
    ],
)
def test_how_a_command_ends(monkeypatch, capsys, error, code, told):
    def ended(_: object) -> int:
        raise error

    monkeypatch.setitem(cli.COMMANDS, "config", cli.Command("x", lambda _: None, ended))
    assert cli.main(["config"]) == code
    assert told in capsys.readouterr().err


def test_a_bug_keeps_its_traceback(monkeypatch):
    def ended(_: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setitem(cli.COMMANDS, "config", cli.Command("x", lambda _: None, ended))
    with pytest.raises(ZeroDivisionError):
        cli.main(["config"])


def test_config_tells_values_and_origins(capsys, monkeypatch):
    monkeypatch.setenv("ROUTER_LISTEN__PORT", "81")
    assert cli.main(["config", "--json", "--policy", "user-hash", "--replicas", "a:1"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["config"]["listen"]["port"] == 81
    assert told["config"]["replicas"][0]["url"] == "http://a:1"
    assert told["origins"]["listen.port"] == "environment ROUTER_LISTEN__PORT"
    assert told["origins"]["policy.name"] == "--policy"
    assert told["origins"]["drain_s"] == "default"


def test_policies(capsys):
    assert cli.main(["policies", "--json"]) == 0
    names = [policy["name"] for policy in json.loads(capsys.readouterr().out)["policies"]]
    assert {"round-robin", "least-loaded", "user-hash", "prefix-aware"} <= set(names)
    assert cli.main(["policies"]) == 0
    assert "prefix-aware" in capsys.readouterr().out


def replica(*words: str) -> tuple[subprocess.Popen[str], str]:
    """A replica in a process of its own, and its address."""
    started = subprocess.Popen(  # noqa: S603 -- our own program
        [sys.executable, "-m", "router", "replica", "--port", "0", *words],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stderr is not None
    line = started.stderr.readline()
    found = re.search(r"http://127\.0\.0\.1:\d+", line)
    assert found, line
    return started, found[0]


async def test_an_emulated_replica_drains_after_one_signal_and_ends_after_two():
    words = ("--shutdown-timeout", "60", "--kv-events", "auto", "--faults", "--max-num-queued-reqs", "5")
    process, url = await asyncio.to_thread(replica, *words)
    body = {"prompt": "Hello", "max_tokens": 1}
    try:
        async with aiohttp.ClientSession() as client:
            async with client.get(url + "/kv_event_sources") as response:
                assert list(await response.json()) == ["0"]
            async with client.get(url + "/faults") as response:
                assert (await response.json())["kind"] == "none"
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(10):
                status = 200
                while status == 200:  # until the signal has arrived
                    async with client.post(url + "/v1/completions", json=body) as response:
                        status = response.status
            assert status == 500
            async with client.get(url + "/health") as response:
                assert response.status == 200
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 20) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
async def test_an_emulated_replica_serves_until_it_is_told_to_stop(number, code):
    process, url = await asyncio.to_thread(replica, "--model", "m1", "--adapter", "sql", "--blocks", "100")
    try:
        async with aiohttp.ClientSession() as client:
            async with client.get(url + "/v1/models") as response:
                assert [card["id"] for card in (await response.json())["data"]] == ["m1", "sql"]
            body = {"model": "m1", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
            async with client.post(url + "/v1/chat/completions", json=body) as response:
                assert (await response.json())["usage"]["completion_tokens"] == 3
        process.send_signal(number)
        assert await asyncio.to_thread(process.wait, 20) == code
    finally:
        process.kill()
        process.communicate()
