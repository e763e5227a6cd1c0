"""What tenants cost a request: credential to tenant, salt, the splice, the seeded chain, limits and their release.

    python bench/tenants.py [--tenants 10000] [--body-kb 32]

Prints microseconds of CPU per request, the median and the best of several rounds, for a key and for a token that was
checked before. The target is 30 µs at 32 KB bodies.
"""

import argparse
import time
from statistics import median

import orjson
from msgspec.structs import replace

from policies.blocks import Chain
from router.http.messages import Call
from router.jwt_tokens import Tokens
from router.openai import CHAT, Ask
from router.quotas import Quotas
from router.rereading import Fixed
from router.salted_paths import SaltedPaths
from router.salts import Salts
from router.tenant_keys import Key, Quota, Register, Tenant, hashed
from router.tenant_metrics import TenantCounts
from router.tenants import OpenDoor, Tenants

SECRET = b"bench-secret-0123456789abcdefghijklmnopqrstuv"
ROUNDS = 15
REQUESTS = 2000


def chat(size_bytes: int, **members: object) -> bytes:
    text = "The quick brown fox, über, jumps over the lazy dog. "
    body = {"model": "m", "messages": [{"role": "user", "content": text * (size_bytes // len(text))}], **members}
    return orjson.dumps(body)


def door(tenants: int, quota: Quota) -> tuple[Tenants, bytes]:
    known = [Tenant(f"tenant-{number}", quota=quota) for number in range(tenants)]
    keys = [Key(bytes.fromhex(hashed(f"sk-{one.name}")[7:]), one, None) for one in known]
    register = Fixed(Register(known, keys))
    tokens = Tokens({"": SECRET}, ["HS256"], "us", "router", "sub")
    made = Tenants(
        register=register,
        salts=Fixed(Salts(SECRET)),
        tokens=Fixed(tokens),
        paths=SaltedPaths(),
        quotas=Quotas(time.monotonic),
        counts=TenantCounts(register),
        wall_clock=time.time,
    )
    return made, f"Bearer sk-{known[tenants // 2].name}".encode()


def token() -> bytes:
    import jwt

    claims = {"sub": "tenant-7", "iss": "us", "aud": "router", "exp": 4_000_000_000}
    return f"Bearer {jwt.encode(claims, SECRET, 'HS256')}".encode()


def one_request(made: Tenants | OpenDoor, call: Call, ask: Ask) -> None:
    """What the gateway does for tenants, in its order."""
    with made.guest(call) as guest:
        if guest.salt:
            Chain.root("m", "", guest.salt)
        made.salted(call, ask, guest)
        guest.asks(8000)


def measured(made: Tenants | OpenDoor, call: Call, ask: Ask) -> str:
    rounds = []
    for _ in range(ROUNDS):
        began_s = time.process_time()
        for _ in range(REQUESTS):
            one_request(made, call, ask)
        rounds.append((time.process_time() - began_s) / REQUESTS * 1e6)
    return f"{median(rounds):6.2f} µs, best {min(rounds):6.2f} µs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tenants", type=int, default=10_000)
    parser.add_argument("--body-kb", type=int, default=32)
    given = parser.parse_args()
    made, key = door(given.tenants, Quota(10**9, 10**12, 1000))
    headers = [(b"Content-Type", b"application/json"), (b"User-Agent", b"bench"), (b"Accept", b"*/*")]
    for name, credential, members in (
        ("a key", key, {}),
        ("a token", token(), {}),
        ("a key, and a salt of the client's to cut out", key, {"cache_salt": "theirs"}),
    ):
        body = chat(given.body_kb * 1024, **members)
        call = Call.of(b"POST", CHAT.encode(), [*headers, (b"Authorization", credential)], body, b"a", "1.2.3.4")
        ask = Ask(CHAT, orjson.loads(body), "m", None, False)
        print(f"{name:<46} {measured(made, call, ask)}  ({len(body) / 1024:.0f} KB body, {given.tenants} tenants)")
    print(f"{'tenants off':<46} {measured(OpenDoor(), replace(call, headers=headers), ask)}")


if __name__ == "__main__":
    main()
