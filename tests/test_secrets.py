"""No key and no prompt in anything the router says: one process, every way we know to make it talk.

A reply of a replica is not the router's word: it is relayed as it came, whatever it holds.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys

import pytest

from router.salts import Salts
from router.tenant_keys import Tenant, hashed
from sim.emulator_faults import Faults
from tests.emulated import emulated
from tests.fakes import client_of, fake_replica, ok, post
from tests.processes import ROOT, addresses, served

CLIENT_KEY, REPLICA_KEY = "sk-test-K3yM4terial-0001", "rp-Xq7WvZ1n-0002"
PASSWORD, QUERY_KEY, PROMPT = "pw-Hj4LmB9c-0003", "qk-Dt2RyF6u-0004", "Zyx Quetzal Fjord 0005"
SALT_SECRET = "sl-Pb8NwK3x-0006-Vd5JhR9m-0007-abcdefgh"
SECRETS = (CLIENT_KEY, REPLICA_KEY, PASSWORD, QUERY_KEY, PROMPT, SALT_SECRET)
AUTHORIZATION = b"Authorization: Bearer " + CLIENT_KEY.encode()
JSON = b"Content-Type: application/json"
LENGTH = 8


def leaked(text: str | bytes) -> set[str]:
    """Every run of eight characters of a secret that stands in `text`."""
    text = text.decode("latin-1") if isinstance(text, bytes) else text
    runs = {secret[start : start + LENGTH] for secret in SECRETS for start in range(len(secret) - LENGTH + 1)}
    return {run for run in runs if run in text}


def environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("ROUTER_")} | more


def body(prompt: str = PROMPT, **more: object) -> bytes:
    return b'{"model":"tiny","prompt":"%b","max_tokens":60%b}' % (
        prompt.encode(),
        b"".join(b',"%b":%b' % (name.encode(), str(value).encode()) for name, value in more.items()),
    )


async def reply_to(url: str, raw: bytes) -> bytes:
    """Everything that comes back, until the end of one reply or of the connection."""
    async with client_of(url) as client:
        try:
            await client.send(raw)
            reply = await client.reply()
        except (ConnectionError, asyncio.IncompleteReadError):
            return b""
        return reply.head + reply.body


def get(path: str, *fields: bytes) -> bytes:
    return b"\r\n".join([b"GET " + path.encode() + b" HTTP/1.1", b"Host: a", *fields]) + b"\r\n\r\n"


MALFORMED = {
    "bad JSON": post(body()[:-1], AUTHORIZATION),
    "no object": post(b'["' + PROMPT.encode() + b'"]', AUTHORIZATION),
    "empty": post(b"", AUTHORIZATION),
    "a model nobody serves": post(body().replace(b"tiny", b"nobody"), AUTHORIZATION),
    "a path that steers": post(body(), AUTHORIZATION, path=b"/sleep"),
    "a key in the query": post(body()[:-1], path=b"/v1/completions?api_key=" + QUERY_KEY.encode()),
    "two lengths": post(body(), AUTHORIZATION, b"Content-Length: 5"),
    "two ways to end": post(body(), AUTHORIZATION, b"Transfer-Encoding: chunked"),
    "no colon": post(body(), AUTHORIZATION.replace(b":", b"")),
    "a control character": post(body(), AUTHORIZATION + b"\x00"),
    "too long a key": post(body(), AUTHORIZATION * 4000),
    "no HTTP": CLIENT_KEY.encode() + b" " + PROMPT.encode() + b"\r\n\r\n",
    "too large a body": post(b'{"prompt":"' + PROMPT.encode() * 20_000 + b'"}', AUTHORIZATION),
    "too long a key of a GET": get("/v1/models?api_key=" + QUERY_KEY, AUTHORIZATION * 4000),
}


@pytest.mark.timeout(60)
async def test_nothing_the_router_says_holds_a_secret() -> None:
    async def echoing(exchange) -> None:
        told = b"".join(value for _, value in exchange.seen.fields) + exchange.seen.body
        await exchange.send(ok(told, status=b"401 Unauthorized"))

    replica = await emulated(api_key=REPLICA_KEY, faults=Faults(), speed=50.0)
    async with fake_replica(echoing) as echo, fake_replica() as gone:
        echo.models = gone.models = [{"id": "tiny", "object": "model"}]
        words = ["--replicas", f"{replica.url},{echo.url},{gone.url}", "--policy", "round-robin"]
        settings = [
            "replica_key_env=ROUTER_TEST_KEY",
            "log.level=debug",
            "log.requests=true",
            "limits.body_bytes=300000",
        ]
        for setting in settings:
            words += ["--set", setting]
        with served(*words, env=environment(ROUTER_TEST_KEY=REPLICA_KEY)) as process:
            url, admin, log = await asyncio.to_thread(addresses, process)
            answers = [await reply_to(url, post(body(), AUTHORIZATION, JSON)) for _ in range(3)]
            assert any(b'"text_completion"' in one for one in answers)
            assert any(CLIENT_KEY.encode() not in one and REPLICA_KEY.encode() in one for one in answers)  # the echo
            await gone.stop()  # its port refuses: failures, retries and their texts
            said = [await reply_to(url, raw) for raw in MALFORMED.values()]
            said += [await reply_to(admin, raw) for raw in MALFORMED.values()]
            await echo.stop()  # what fails from here on can't be tried elsewhere
            for kind in ("none", "cut", "error"):
                replica.faults.set(type(replica.faults.fault)(kind=kind))
                for stream in ("false", "true"):
                    for _ in range(3):
                        await reply_to(url, post(body(stream=stream), AUTHORIZATION, JSON))
            await replica.close()
            for _ in range(4):  # nobody is left
                said.append(await reply_to(url, post(body(), AUTHORIZATION, JSON)))
            for path in ("/metrics", "/state", "/health", "/nothing?k=" + QUERY_KEY):
                said.append(await reply_to(admin, get(path, AUTHORIZATION)))
            said.append(await reply_to(url, get("/health", AUTHORIZATION)))
            said.append(await reply_to(admin, post(body(), AUTHORIZATION, path=b"/explain?path=/v1/completions")))
            process.send_signal(signal.SIGTERM)
            log += await asyncio.to_thread(process.stderr.read)
    assert {number: leaked(one) for number, one in enumerate(said) if leaked(one)} == {}
    assert leaked(log) == set()
    assert {"ok", "client-error", "replica-error", "cut"} <= set(re.findall(r"INFO router.requests (\S+)", log))
    assert any(b"replica_unreachable" in one or b"no_replica_available" in one for one in said)


@pytest.mark.timeout(60)
async def test_tenants_keys_and_salts_are_said_nowhere(tmp_path) -> None:
    """Two tenants, the secret, and what it becomes: in no answer, no metric and no line of the log."""
    (tmp_path / "tenants.toml").write_text(f'[tenants.acme]\nkeys = [{{ hash = "{hashed(CLIENT_KEY)}" }}]\n')
    (tmp_path / "secret").write_text(SALT_SECRET)
    salt = Salts(SALT_SECRET.encode()).of(Tenant("acme"), 0.0)
    async with fake_replica() as replica:
        replica.models = [{"id": "tiny", "object": "model"}]
        words = ["--replicas", replica.url, "--tenants", str(tmp_path / "tenants.toml")]
        words += [
            "--salt-secret-file",
            str(tmp_path / "secret"),
            "--set",
            "log.level=debug",
            "--set",
            "log.requests=true",
        ]
        with served(*words, env=environment()) as process:
            url, admin, log = await asyncio.to_thread(addresses, process)
            said = [await reply_to(url, post(body(), AUTHORIZATION, JSON)) for _ in range(2)]
            assert salt.encode() in replica.seen[-1].body
            said += [await reply_to(url, raw) for raw in MALFORMED.values()]
            said.append(await reply_to(url, post(body(), b"Authorization: Bearer " + QUERY_KEY.encode())))
            said.append(await reply_to(url, post(body(), AUTHORIZATION, b"x-api-key: " + QUERY_KEY.encode())))
            said.append(await reply_to(url, post(body(kv_transfer_params='{"a":1}'), AUTHORIZATION)))
            for path in ("/metrics", "/state", "/health"):
                said.append(await reply_to(admin, get(path, AUTHORIZATION)))
            said.append(
                await reply_to(admin, post(body(), b"X-Router-Tenant: acme", path=b"/explain?path=/v1/completions"))
            )
            (tmp_path / "tenants.toml").write_text(f'[tenants.acme]\nkeys = ["{CLIENT_KEY}"]\n')
            process.send_signal(signal.SIGTERM)
            log += await asyncio.to_thread(process.stderr.read)
    assert {number: leaked(one) for number, one in enumerate(said) if leaked(one)} == {}
    assert leaked(log) == set()
    for text in (log, *(one.decode("latin-1") for one in said)):
        assert not [start for start in range(len(salt) - LENGTH + 1) if salt[start : start + LENGTH] in text]
        assert hashed(CLIENT_KEY)[7:15] not in text
    assert b'tenant="acme"' in b"".join(said)


@pytest.mark.parametrize(
    "words",
    [
        ["config", "--replicas", f"http://u:{PASSWORD}@127.0.0.1:9"],
        ["check", "--replicas", f"http://u:{PASSWORD}@127.0.0.1:9"],
        ["serve", "--replicas", f"http://u:{PASSWORD}@127.0.0.1:9"],
        ["config", "--set", "replica_key_env=ROUTER_TEST_KEY"],
        ["check", "--replicas", "127.0.0.1:9", "--set", "replica_key_env=ROUTER_TEST_KEY"],
        ["config", "--set", f"replica_key={REPLICA_KEY}"],
        ["config", "--set", f"replica_key_env={REPLICA_KEY}"],
    ],
    ids=lambda words: f"{words[0]} {words[-1].partition('=')[0][:16]}",
)
def test_no_command_tells_a_secret(words: list[str]) -> None:
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "router", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
        cwd=ROOT,
        env=environment(ROUTER_TEST_KEY=REPLICA_KEY),
    )
    assert done.stdout + done.stderr
    assert leaked(done.stdout + done.stderr) == set()
