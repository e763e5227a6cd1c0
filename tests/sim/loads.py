"""A small workload for tests of what is made of a run."""

import random

from sim.arrivals import Arrival, Workload

BLOCK = 16


def keys(name, start, stop):
    return tuple(f"{name:>12}".encode()[:12] + place.to_bytes(4, "little") for place in range(start, stop))


def chats(count=60, seed=1, *, tenants=2, has_prefixes=True, **more):
    """Users of several tenants, one head of 10 blocks a tenant, every turn continuing the one before."""
    draw = random.Random(seed)
    tokens, arrivals, now_s = {}, [], 0.0
    for number in range(count):
        now_s += draw.expovariate(20)
        user = draw.randrange(12)
        tenant = f"t{user % tenants}"
        prompt = tokens.get(user, 160) + draw.randrange(20, 200)
        output = draw.randrange(1, 60)
        tokens[user] = prompt + output
        chain = keys(tenant, 0, 10) + keys(f"user {user}", 10, tokens[user] // BLOCK)
        route = "/v1/completions" if user % 3 else "/v1/chat/completions"
        chain = chain if has_prefixes else ()
        arrivals.append(Arrival(number, now_s, prompt, output, chain, user=str(user), tenant=tenant, route=route))
    return Workload("chats", BLOCK, tuple(arrivals), requests=count, has_prefixes=has_prefixes, **more)
