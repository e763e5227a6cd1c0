"""Tenants as their clients see them: who comes in, what replicas get, what is told to whom."""

import asyncio
import gc
import json
import logging
import tracemalloc

import pytest

from router.errors import BadRequest, ConfigError, HeadTooLarge, Unauthorized
from router.quotas import Quotas
from router.rereading import Fixed
from router.salted_paths import SaltedPaths
from router.salts import Salts
from router.tenant_keys import Register, Tenant, hashed
from router.tenant_metrics import LABELS, TenantCounts
from router.tenants import LONGEST_BYTES, Tenants, credential
from tests.fakes import BODY, IDLE, client_of, fake_replica, load_of, ok, post, posted, router_over, until
from tests.router.outcomes import outcome
from tests.tenanted import ALPHA, BETA, SECRET, bearer, tenanted, tenants_text

SALTS = Salts(SECRET.encode())
SALT_OF = {name: SALTS.of(Tenant(name), 0.0) for name in ("alpha", "beta")}


def salt_seen(replica, at: int = -1) -> object:
    """The salt of the body a replica got, and that the body names it once."""
    pairs = json.loads(replica.seen[at].body, object_pairs_hook=list)
    found = [value for name, value in pairs if name == "cache_salt"]
    assert len(found) == 1
    return found[0]


# -- who comes in ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [b"Authorization: Bearer sk-test-nobody"],
        [b"Authorization: Bearer "],
        [b"Authorization: Basic abc"],
        [b"Authorization: " + ALPHA.encode()],
        [b"x-api-key: sk-test-nobody"],
        [b"X-Tenant-Id: alpha"],
        [b"Authorization: Bearer a.b.c"],
    ],
    ids=range(8),
)
async def test_nobody_comes_in_unknown(tmp_path, fields):
    async with fake_replica() as replica, tenanted(tmp_path, replica) as up:
        reply = await posted(up.url, BODY, *fields)
        assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
        assert reply.values(b"www-authenticate") == [b"Bearer"]
        assert b"sk-test" not in reply.head + reply.body
        assert replica.seen == []
        assert load_of(up) == IDLE


@pytest.mark.parametrize("field", [bearer(ALPHA), b"x-api-key: " + ALPHA.encode(), b"API-Key: " + ALPHA.encode()])
async def test_a_key_comes_in_and_stops_here(tmp_path, field):
    async with fake_replica() as replica, tenanted(tmp_path, replica) as up:
        assert (await posted(up.url, BODY, field)).status == 200
        assert salt_seen(replica) == SALT_OF["alpha"]
        assert ALPHA.encode() not in replica.seen[0].head + replica.seen[0].body


async def test_the_routers_own_key_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("FLEET_KEY", "fleet-key")
    async with fake_replica() as replica, tenanted(tmp_path, replica, replica_key_env="FLEET_KEY") as up:
        await posted(up.url, BODY, b"x-api-key: " + BETA.encode())
        assert replica.seen[0].values(b"authorization") == [b"Bearer fleet-key"]
        assert BETA.encode() not in replica.seen[0].head


async def test_only_the_credential_tells_who_it_is(tmp_path):
    async with fake_replica() as replica, tenanted(tmp_path, replica) as up:
        body = b'{"model":"m","prompt":"hi","tenant":"beta","user":"beta"}'
        await posted(up.url, body, bearer(ALPHA), b"X-Tenant-Id: beta", b"X-Router-Tenant: beta")
        assert salt_seen(replica) == SALT_OF["alpha"]


@pytest.mark.parametrize("get", [True, False])
async def test_two_authorization_headers_are_refused(tmp_path, get):
    async with fake_replica() as replica, tenanted(tmp_path, replica) as up, client_of(up.url) as client:
        twice = bearer(ALPHA) + b"\r\n" + bearer(BETA)
        await client.send(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n" + twice + b"\r\n\r\n" if get else post(BODY, twice))
        reply = await client.reply()
        assert reply.status == 400
        assert "more than one" in reply.error["message"]
        assert b"K3yM4terial" not in reply.body


def test_credentials_that_can_not_be_told_apart():
    with pytest.raises(BadRequest, match="more than one credential"):
        credential([(b"Authorization", b"Bearer a"), (b"X-Api-Key", b"b")])
    with pytest.raises(HeadTooLarge, match="longer than 8192 bytes"):
        credential([(b"authorization", b"Bearer " + b"k" * LONGEST_BYTES)])
    with pytest.raises(Unauthorized, match="no API key"):
        credential([(b"x-api-key", b"  ")])
    assert credential([(b"AUTHORIZATION", b"bEARER  k ")]) == b"k"


async def test_a_key_over_8_kb_is_431_and_quoted_nowhere(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    async with fake_replica() as replica, tenanted(tmp_path, replica) as up:
        for field in (bearer("sk-" + "LongKey0" * 1200), b"x-api-key: " + b"LongKey0" * 1200):
            reply = await posted(up.url, BODY, field)
            assert reply.status == 431
            assert "LongKey0" not in reply.body.decode() + caplog.text
        assert replica.seen == []


async def test_a_large_body_is_not_read_from_a_stranger(tmp_path):
    async with fake_replica() as replica, tenanted(tmp_path, replica) as up, client_of(up.url) as client:
        head = (
            b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %b\r\nContent-Length: 50000000\r\n\r\n"
        )
        await client.send(head % b"sk-test-nobody" + b" " * 70_000)
        reply = await client.reply()  # long before the body's end
        assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
        large = b'{"model":"m","prompt":"%b"}' % (b"x" * 200_000)
        assert (await posted(up.url, large, bearer(ALPHA))).status == 200


async def test_models_are_told_to_tenants_and_replicas_to_nobody(tmp_path):
    async with fake_replica() as replica, tenanted(tmp_path, replica) as up:
        await until(lambda: up.gateway.models.names != ())
        for fields, status in ((b"", 401), (bearer(ALPHA) + b"\r\n", 200)):
            async with client_of(up.url) as client:
                await client.send(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n" + fields + b"\r\n")
                assert (await client.reply()).status == status
        async with client_of(up.url) as client:
            await client.send(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            told = await client.reply()
            assert (told.status, told.json["replicas_open"]) == (200, 1)
            assert replica.url.encode() not in told.body


# -- what replicas get -------------------------------------------------------------------------------------------------

GIVEN = {
    "absent": b'{"model":"m","prompt":"p"}',
    "empty": b'{"model":"m","prompt":"p","cache_salt":""}',
    "null": b'{"model":"m","cache_salt":null,"prompt":"p"}',
    "another tenant's": b'{"model":"m","prompt":"p","cache_salt":"%b"}' % SALT_OF["beta"].encode(),
    "a list": b'{"model":"m","prompt":"p","cache_salt":["x"]}',
    "an object": b'{"cache_salt":{"cache_salt":"x"},"model":"m","prompt":"p"}',
    "twice": b'{"model":"m","prompt":"p","cache_salt":"one","cache_salt":"two"}',
    "escaped": b'{"model":"m","prompt":"p","cache\\u005fsalt":"one", "\\u0063ache_salt" : "two" }\r\n',
}


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("path", [b"/v1/completions", b"/v1/responses", b"/v1/embeddings", b"/inference/v1/generate"])
async def test_the_clients_salt_never_reaches_a_replica(tmp_path, name, path):
    async with fake_replica() as replica, tenanted(tmp_path, replica) as up:
        for _ in range(2):
            reply = await posted(up.url, GIVEN[name], bearer(ALPHA), path=path)
            assert reply.status == 200
            assert salt_seen(replica) == SALT_OF["alpha"]
            assert SALT_OF["alpha"].encode() not in reply.head + reply.body


@pytest.mark.parametrize("path", [b"/v1/audio/transcriptions", b"/v1/audio/speech", b"/v1/unknown", b"/V1/completions"])
async def test_a_path_without_a_salt_is_refused_unless_the_operator_shares_it(tmp_path, path):
    async with fake_replica() as replica:
        async with tenanted(tmp_path, replica) as up:
            reply = await posted(up.url, BODY, bearer(ALPHA), path=path)
            assert (reply.status, reply.error["code"]) == (403, "path_not_salted")
            assert replica.seen == []
        async with tenanted(tmp_path, replica, tenants__shared_paths=path.decode()) as up:
            assert (await posted(up.url, BODY, bearer(ALPHA), path=path)).status == 200
            assert replica.seen[0].body == BODY


async def test_a_path_where_nothing_runs_takes_no_salt(tmp_path):
    async with fake_replica() as replica, tenanted(tmp_path, replica) as up:
        await posted(up.url, b'{"model":"m","cache_salt":"x","prompt":"p"}', bearer(ALPHA), path=b"/tokenize")
        assert replica.seen[-1].body == b'{"model":"m","prompt":"p"}'


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","prompt":"p","kv_transfer_params":{"prompt_token_ids":[1,2,3]}}',
        b'{"model":"m","prompt":"p","previous_response_id":"resp_1"}',
        b"not JSON",
    ],
    ids=range(3),
)
async def test_what_can_not_be_made_safe_is_refused(tmp_path, body):
    async with fake_replica() as replica, tenanted(tmp_path, replica) as up:
        assert (await posted(up.url, body, bearer(ALPHA), path=b"/inference/v1/generate")).status == 400
        assert replica.seen == []


# -- limits ------------------------------------------------------------------------------------------------------------


async def test_requests_a_minute(tmp_path):
    text = tenants_text(alpha="requests_per_minute = 2")
    async with fake_replica() as replica, tenanted(tmp_path, replica, text=text) as up:
        statuses = [(await posted(up.url, BODY, bearer(ALPHA))).status for _ in range(2)]
        reply = await posted(up.url, BODY, bearer(ALPHA))
        assert (statuses, reply.status, reply.error["code"]) == ([200, 200], 429, "rate_limit_exceeded")
        assert reply.values(b"x-ratelimit-limit-requests") == [b"2"]
        assert reply.values(b"x-ratelimit-remaining-requests") == [b"0"]
        assert 1 <= int(reply.values(b"retry-after")[0]) <= 30
        assert (await posted(up.url, BODY, bearer(BETA))).status == 200


async def test_requests_in_flight_are_let_go_however_they_end(tmp_path):
    async def never(exchange):
        await exchange.left()

    text = tenants_text(alpha="in_flight = 1")
    async with fake_replica(never) as replica, tenanted(tmp_path, replica, text=text) as up:
        async with client_of(up.url) as client:
            await client.send(post(BODY, bearer(ALPHA)))
            await until(lambda: len(replica.seen) == 1)
            assert (await posted(up.url, BODY, bearer(ALPHA))).status == 429
        await until(lambda: replica.left == 1)
        async with client_of(up.url) as client:
            await client.send(post(BODY, bearer(ALPHA)))
            await until(lambda: len(replica.seen) == 2)


async def test_tokens_a_minute_are_taken_before_and_after(tmp_path):
    answer = b'{"usage":{"prompt_tokens":1,"completion_tokens":90,"total_tokens":91}}'
    text = tenants_text(alpha="tokens_per_minute = 60")
    async with fake_replica(ok(answer)) as replica, tenanted(tmp_path, replica, text=text) as up:
        assert (await posted(up.url, BODY, bearer(ALPHA))).status == 200
        reply = await posted(up.url, BODY, bearer(ALPHA))
        assert reply.status == 429
        assert reply.values(b"x-ratelimit-limit-tokens") == [b"60"]
        assert int(reply.values(b"retry-after")[0]) > 25


# -- what is told to whom ----------------------------------------------------------------------------------------------


async def test_metrics_name_tenants_and_neither_keys_nor_salts(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    async with fake_replica() as replica, tenanted(tmp_path, replica) as up:
        await posted(up.url, b'{"model":"m","prompt":"the prompt itself"}', bearer(ALPHA))
        await posted(up.url, BODY, b"Authorization: Bearer sk-test-nobody-knows")
        told = up.metrics.exposition().decode() + caplog.text
        assert 'router_tenant_requests_total{outcome="ok",tenant="alpha"} 1.0' in told
        assert 'code="invalid_api_key"' in told
        for secret in (ALPHA, "sk-test", SECRET[:8], SALT_OF["alpha"], "the prompt itself", "nobody-knows"):
            assert secret not in told


async def test_start_says_whether_caches_are_shared(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    async with fake_replica() as replica:
        async with router_over(replica):
            assert "tenants are off: every client shares the replicas' prefix caches" in caplog.text
        async with tenanted(tmp_path, replica, tenants__shared_paths="/v1/audio/speech"):
            assert "tenants are on: 2 in the file" in caplog.text
            assert "NOT kept apart on /v1/audio/speech" in caplog.text


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"tenants__salt_secret_file": None}, "ROUTER_SALT_SECRET"),
        ({"tenants__file": "nowhere.toml"}, "router tenants add"),
        ({"tenants__salt_secret_file": "nowhere"}, "can't be read"),
        ({"jwt__key_file": "nowhere"}, "issuer"),
        ({"jwt__key_file": "nowhere", "jwt__algorithms": "none"}, "jwt.algorithms"),
    ],
)
async def test_no_start_without_what_keeps_tenants_apart(tmp_path, monkeypatch, settings, told):
    monkeypatch.delenv("ROUTER_SALT_SECRET", raising=False)
    async with fake_replica() as replica:
        with pytest.raises(ConfigError, match=told):
            async with tenanted(tmp_path, replica, **settings):
                pass


async def test_a_dry_run_names_its_tenant_and_predicts_nothing_of_another(tmp_path):
    prompt = json.dumps({"model": "m", "prompt": "word " * 400}).encode()
    async with fake_replica() as replica, tenanted(tmp_path, replica, tokenizer__where="text") as up:
        await posted(up.url, prompt, bearer(ALPHA))
        await until(lambda: load_of(up) == IDLE)
        matched = {}
        for name in ("alpha", "beta", ""):
            fields = [b"X-Router-Tenant: " + name.encode()] if name else []
            reply = await posted(up.admin_url, prompt, *fields, path=b"/explain?path=/v1/completions")
            matched[name] = reply.json["replicas"][0]["matched_tokens"]
        assert matched["alpha"] > 0
        assert (matched["beta"], matched[""]) == (0, 0)
        reply = await posted(up.admin_url, prompt, b"X-Router-Tenant: nobody", path=b"/explain")
        assert (reply.status, reply.error["message"]) == (400, "no tenant is named 'nobody'")


async def test_requests_go_on_while_the_file_changes(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("router.tenant_wiring.LOOK_S", 0.01)
    file = tmp_path / "tenants.toml"
    new = "sk-test-gamma-key"
    async with fake_replica() as replica, tenanted(tmp_path, replica) as up:
        statuses: dict[str, list[int]] = {ALPHA: [], BETA: [], new: []}
        stop = asyncio.Event()

        async def asks(key: str) -> None:
            while not stop.is_set():
                statuses[key].append((await posted(up.url, BODY, bearer(key))).status)

        asking = [asyncio.ensure_future(asks(key)) for key in statuses]
        file.write_text(tenants_text() + "[tenants.half")
        await until(lambda: "stays in force" in caplog.text)
        assert "router_tenants_file_faulty 1.0" in up.metrics.exposition().decode()
        file.write_text(tenants_text().replace(hashed(BETA), hashed(new)))
        await until(lambda: statuses[new][-1] == 200 and statuses[BETA][-1] == 401)
        assert "router_tenants_file_faulty 0.0" in up.metrics.exposition().decode()
        stop.set()
        await asyncio.gather(*asking)
    assert set(statuses[ALPHA]) == {200}
    assert statuses[BETA] == sorted(statuses[BETA])
    assert statuses[new] == sorted(statuses[new], reverse=True)


async def test_a_token_comes_in_under_its_tenants_name_and_limits(tmp_path):
    jwt = pytest.importorskip("jwt")
    secret = "jwt-secret-0123456789abcdefghijklmnop"
    (tmp_path / "jwt").write_text(secret)
    settings = {
        "jwt__key_file": str(tmp_path / "jwt"),
        "jwt__algorithms": "HS256",
        "jwt__issuer": "us",
        "jwt__audience": "router",
    }
    claims = {"iss": "us", "aud": "router", "exp": 4_000_000_000}
    text = tenants_text(beta="requests_per_minute = 1")
    async with fake_replica() as replica, tenanted(tmp_path, replica, text=text, **settings) as up:

        async def asked(**more: object) -> int:
            token = jwt.encode(claims | more, secret, "HS256")
            return (await posted(up.url, BODY, bearer(token))).status

        assert await asked(sub="alpha") == 200
        assert salt_seen(replica) == SALT_OF["alpha"]
        assert [await asked(sub="beta"), await asked(sub="beta")] == [200, 429]
        assert await asked(sub="in-no-file") == 401
        assert await asked(sub="alpha", aud="else") == 401
        unsigned = jwt.encode(claims | {"sub": "alpha"}, None, "none")
        assert (await posted(up.url, BODY, bearer(unsigned))).status == 401
        assert (await posted(up.url, BODY, bearer(ALPHA))).status == 200
    async with fake_replica() as replica, tenanted(tmp_path, replica, tenants__file=None, **settings) as up:
        assert await asked(sub="in-no-file") == 200
        assert salt_seen(replica) == SALTS.of(Tenant("in-no-file"), 0.0)
        assert (await posted(up.url, BODY, bearer(ALPHA))).status == 401
        told = up.metrics.exposition().decode()
        assert 'router_tenant_requests_total{outcome="ok",tenant="other"} 1.0' in told
        assert not [line for line in told.splitlines() if line.startswith("router_tenant_") and "in-no-file" in line]


def test_neither_tenants_nor_users_make_labels_grow():
    register = Register([Tenant(f"t{number}") for number in range(10_000)])
    counts = TenantCounts(Fixed(register))
    for number in range(10_000):
        counts.answered(f"t{number}", outcome(9))
        counts.answered(f"user-{number}", outcome(9))
    families = list(counts.collect())
    labels = {sample.labels.get("tenant") for family in families for sample in family.samples} - {None}
    assert len(labels) == LABELS + 1
    requests = {sample.labels["tenant"]: sample.value for sample in families[0].samples}
    assert requests["other"] == 10_000 - LABELS + 10_000
    assert "1000 tenants" in repr(counts)


async def test_many_names_leave_nothing_behind():
    """A token may name anybody: nothing of who came once may stay, but so many salts."""
    register: Fixed[Register] = Fixed(Register(anybody=True))
    quotas, counts = Quotas(lambda: 0.0), TenantCounts(register)
    door = Tenants(
        register=register,
        salts=Fixed(SALTS),
        tokens=None,
        paths=SaltedPaths(),
        quotas=quotas,
        counts=counts,
        wall_clock=lambda: 0.0,
    )
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(20_000):
            with door.named(f"user-{number}") as guest:
                door.answered(guest.name, outcome(9))
        used_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used_bytes < 500_000  # 250,000 seen, and as many with ten times the names
    assert len(quotas) == 0
