"""Whether replicas keep tenants apart, shown in pairs: one fresh prompt as one tenant twice, and as another.

Isolation alone proves nothing, a cache that is off isolates too: so the same tenant must find its prompt cached, and
the other must not. Bodies are salted by the very code that salts clients' bodies. The one rule: each path that
generates is asked by itself, for an engine may read the salt on one and pass over it on another (vLLM before PR 49498
on `/v1/messages`). Not here: what else may be wrong with a replica (`check`).
"""

import asyncio
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from router.check import Checked
from router.openai import CHAT, COMPLETIONS
from router.probes import ProbeError, session
from router.salts import Salts
from router.splice import salted
from router.tenant_keys import Tenant
from router.usage import Usage, usage

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
PATHS = (COMPLETIONS, CHAT, RESPONSES, MESSAGES)
"""Every path of vLLM that generates from a JSON body, but for the one of its scale-out mode."""

_TIMEOUT_S = 120.0
_MOST_CHARACTERS = 4000
_ABSENT = (404, 405, 501)


@dataclass(frozen=True, slots=True)
class Pair:
    """What came of one path."""

    path: str
    prompt_tokens: int | None
    own_tokens: int | None
    """Found cached by the tenant that had sent the prompt before; None when the replica does not say."""
    others_tokens: int | None
    """Found cached by the tenant that had not."""

    @property
    def word(self) -> str:
        """`apart`, `shared`, or `unknown`."""
        if self.others_tokens:
            return "shared"
        return "apart" if self.own_tokens else "unknown"


def body_of(path: str, model: str, text: str) -> dict[str, Any]:
    """A request for one token of answer to a text."""
    if path == COMPLETIONS:
        return {"model": model, "prompt": text, "max_tokens": 1}
    if path == RESPONSES:
        return {"model": model, "input": text, "max_output_tokens": 1, "store": False}
    return {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 1}


async def paired(
    client: aiohttp.ClientSession, url: str, path: str, model: str, *, most_tokens: int | None = None
) -> Pair | None:
    """Ask one path; None where the replica does not serve it. Raises `ProbeError`."""
    salts = Salts(secrets.token_bytes(32))
    one, other = (salts.of(Tenant(name), 0.0) for name in ("one", "other"))
    characters = min(_MOST_CHARACTERS, (most_tokens or _MOST_CHARACTERS) // 2)
    body = body_of(path, model, secrets.token_hex(characters // 2))
    first = await _asked(client, url, path, body, one)
    if first is None:
        return None
    own = await _asked(client, url, path, body, one)
    others = await _asked(client, url, path, body, other)
    if own is None or others is None:
        return None
    return Pair(path, first.prompt_tokens, own.cached_tokens, others.cached_tokens)


async def _asked(client: aiohttp.ClientSession, url: str, path: str, body: dict[str, Any], salt: str) -> Usage | None:
    data = salted(orjson.dumps(body), body, salt)
    headers = {"Content-Type": "application/json"}
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    try:
        async with client.post(url + path, data=data, headers=headers, timeout=timeout) as response:
            told = await response.read()
            if response.status in _ABSENT:
                return None
            if response.status != 200:
                raise ProbeError(f"answered {response.status} to {path} with a cache_salt")
            return usage(told)
    except TimeoutError:
        raise ProbeError(f"did not answer {path} within {_TIMEOUT_S:g} s") from None
    except aiohttp.ClientError as error:
        raise ProbeError(f"gave no answer to {path} ({type(error).__name__})") from None


def examined(replicas: Iterable[Checked], key: str | None) -> None:
    """Ask every replica that serves a model, and add what was found to its problems and notes."""

    async def all_of() -> None:
        async with session(timeout_s=_TIMEOUT_S, key=key) as client:
            await asyncio.gather(*(_examined(found, client) for found in replicas if found.models))

    asyncio.run(all_of())


async def _examined(found: Checked, client: aiohttp.ClientSession) -> None:
    apart = []
    for path in PATHS:
        try:
            pair = await paired(client, found.url, path, found.models[0], most_tokens=found.max_model_tokens)
        except ProbeError as error:
            found.problems.append(f"{error}; whether it keeps tenants apart there is not known")
            continue
        if pair is None:
            continue
        if pair.word == "shared":
            found.problems.append(
                f"does NOT keep tenants apart on {path}: {pair.others_tokens} of {pair.prompt_tokens} tokens of"
                " one's prompt were found cached by another; it passes over cache_salt there, update vLLM"
            )
        elif pair.word == "unknown":
            found.problems.append(
                f"was asked the same twice on {path} and told of no cached tokens, so nothing is proved; is prefix"
                " caching on, and --enable-prompt-tokens-details given?"
            )
        else:
            apart.append(f"{path} (own {pair.own_tokens} of {pair.prompt_tokens} tokens cached, another's 0)")
    if apart:
        found.notes.append(f"keeps tenants apart on {', '.join(apart)}")
