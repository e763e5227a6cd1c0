"""What `router check` says of the KV events: whether any come, and whether they are of the replica they count for.

Each replica that can be listened to is asked a prompt that nobody has sent before: what it then stores must be told.
The one rule: an endpoint that was given or told and does not serve makes the router blind, so it is a problem, told
with what was found there and the remedy; a replica that publishes nothing is known by what is sent to it. Not here:
how events are followed (`kv_events`).
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import aiohttp

from policies.blocks import Chain, block_keys, packed
from policies.fleet import Fleet
from policies.types import Request
from router.cache_proof import asked_afresh
from router.config import Config
from router.kv_events import KvEvents
from router.kv_follow import seeds
from router.kv_followed import UNHEARD
from router.kv_sources import AUTO
from router.kv_standing import APPROXIMATE, KvState
from router.openai import COMPLETIONS
from router.probes import ProbeError, answer

_SETTLES_S = 2.0
_TOLD_S = 2.0
"""A block's event comes some 20 ms behind its first token at most (vLLM 0.32)."""
_LOOK_AGAIN_S = 0.02
_AWAY_S = 30.0
"""How long a router may be away, to restart for instance, and still learn from a replay what it missed."""
_UNTOLD_PER_S = 100.0
"""Batches a second of an engine that has not shown how many it sends: one a step at most, 50 to 100 when busy."""


@dataclass(frozen=True, slots=True)
class Listened:
    """A replica to listen to: the root of its model, the name to ask for, and the tokens of its blocks."""

    root: str
    model: str
    block_tokens: int


@dataclass(slots=True)
class Heard:
    """What came of it."""

    cache: str
    """`EXACT`, `ALIAS` or `APPROXIMATE`."""
    reason: str
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


async def listened(config: Config, replicas: Mapping[str, Listened], client: aiohttp.ClientSession) -> dict[str, Heard]:
    """Listen to these, by name, and ask each that has events a prompt of a block."""
    fleet = Fleet(config.block_tokens)
    told_of = {name: replica.root for name, replica in replicas.items()}
    events = KvEvents(
        fleet,
        ask=partial(answer, client),
        root=told_of.get,
        untold=lambda _: None,
        seeds=seeds(),
        replay_timeout_s=_SETTLES_S,
    )
    listening = [replica for replica in config.replicas if replica.name in replicas]
    settings = {replica.name: replica.kv_events or config.kv_events for replica in listening}
    for replica in listening:
        fleet.joined(replica.name)
        events.follow(replica.name, replica.url, settings[replica.name])
    async with events:
        await _until(lambda: all(state.settled for state in events.states()), _SETTLES_S)
        urls = {replica.name: replica.url for replica in listening}
        where = [state.name for state in events.states() if state.endpoints]
        asked = await asyncio.gather(*(_asked(name, urls[name], replicas[name], client, fleet) for name in where))
        sent = {request.id: request for request in asked if request is not None}
        await _until(lambda: all(_told(fleet, name, request) for name, request in sent.items()), _TOLD_S)
        return {
            state.name: _heard(state, settings[state.name], _untold(fleet, sent.get(state.name), state))
            for state in events.states()
        }


async def _until(happened: Callable[[], bool], within_s: float) -> None:
    until_s = asyncio.get_running_loop().time() + within_s
    while asyncio.get_running_loop().time() < until_s:
        if happened():
            return
        await asyncio.sleep(_LOOK_AGAIN_S)


async def _asked(name: str, url: str, replica: Listened, client: aiohttp.ClientSession, fleet: Fleet) -> Request | None:
    """Ask a fresh prompt of one block and a token more; None when it was not answered."""
    tokens = max(replica.block_tokens, fleet.block_tokens) + 1
    try:
        prompt = await asked_afresh(client, url, replica.model, tokens)
    except ProbeError:
        return None
    keys = block_keys(Chain.root(replica.root), packed(prompt), fleet.block_tokens)
    return Request(name, COMPLETIONS, replica.model, "", None, None, tokens, 1, keys, fleet.block_tokens)


def _told(fleet: Fleet, name: str, request: Request) -> bool:
    """Whether a replica's events told of the first block of what it was asked."""
    return any(row.name == name and row.matched_blocks > 0 for row in fleet.view(request, 0.0))


def _untold(fleet: Fleet, request: Request | None, state: KvState) -> str:
    """What is wrong when a prompt was computed; empty when its block was told."""
    if request is None or _told(fleet, state.name, request):
        return ""
    where, tokens = " and ".join(state.endpoints), request.prompt_tokens
    if state.batches:
        return f"has KV events at {where} that tell nothing of a prompt of {tokens} tokens it has just computed"
    return f"published nothing at {where} while it computed a prompt of {tokens} tokens"


def _heard(state: KvState, setting: str, untold: str) -> Heard:
    standing = state.standing
    heard = Heard(standing.word, standing.reason)
    heard.problems += _short_buffer(state)
    usable = standing.word != APPROXIMATE or not state.endpoints or standing.reason == UNHEARD
    trouble = untold if usable else standing.reason
    if trouble:
        heard.problems.append(trouble if "; run the router" in trouble else f"{trouble}; {_remedy(setting)}")
        heard.cache, heard.reason = APPROXIMATE, trouble
    elif standing.word == APPROXIMATE:
        heard.notes.append(f"{standing.reason}; its cache is known by what is sent to it")
    if state.faults.get("replay_failed"):
        heard.problems.append(f"does not replay what it published before a router listens; {_remedy(setting)}")
    elif standing.degraded:
        heard.notes.append(f"has KV events that are incomplete: {standing.degraded}")
    return heard


def _remedy(setting: str) -> str:
    if setting == AUTO:
        return (
            "it names that endpoint itself: see that the router reaches the port, or set kv_events ="
            " ENDPOINT,REPLAY_ENDPOINT of this replica to where it is reached from here"
        )
    return (
        f"kv_events is {setting}: set it to endpoint and replay_endpoint of this replica's own --kv-events-config, or"
        " to auto where vLLM tells them (0.32)"
    )


def _short_buffer(state: KvState) -> list[str]:
    """Whether the replay buffer is smaller than the traffic, as measured where it can be."""
    kept, per_s = state.buffer_batches, state.batches_per_s
    lasts_s = kept / (per_s or _UNTOLD_PER_S) if kept is not None else _AWAY_S
    if lasts_s >= _AWAY_S:
        return []
    basis = f"the {per_s:.3g} a second of its busiest seconds" if per_s else "100 a second, as a busy engine sends"
    wanted = max(10_000, math.ceil(2 * _AWAY_S * (per_s or 0.0)))
    told = f"keeps only {kept} batches of KV events for a replay, {lasts_s:.2g} s at {basis}"
    remedy = f'set "buffer_steps":{wanted} in --kv-events-config'
    return [f"{told}; a router that is away for longer can't catch up: {remedy}"]
