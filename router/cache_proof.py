"""The engine-side proof that a replica's prefix cache works: one fresh prompt, sent twice.

The prompt is token ids drawn for this once, low enough to be in every vocabulary, so nobody can have sent it before.
The one rule: a proof costs a replica two prefills and two tokens, so it is made only when asked for; whether a replica
tells of cached tokens at all is learnt from a prompt of a few tokens. Not here: what follows from it (`check`).
"""

import secrets
import time
from dataclasses import dataclass

import aiohttp
import orjson

from router.probes import ProbeError, server_of
from router.ranks import rank_of
from router.usage import Usage, usage

PROOF_TOKENS = 2000
_FEW_TOKENS = 4
_LEAST_ID, _MOST_IDS = 100, 900
_TIMEOUT_S = 120.0
_RANK = "X-data-parallel-rank"


@dataclass(frozen=True, slots=True)
class Proof:
    """What came of the same prompt sent twice."""

    prompt_tokens: int
    ttft_s: tuple[float, float]
    cached_tokens: tuple[int | None, int | None]
    """What the replica said it found cached, the first and the second time; None where it said nothing."""

    def shown(self) -> str:
        """One line for people."""
        first, second = (f"{seconds * 1000:.0f} ms" for seconds in self.ttft_s)
        found = " and ".join("unknown" if cached is None else str(cached) for cached in self.cached_tokens)
        return f"{self.prompt_tokens} fresh tokens twice: first token after {first} and {second}, cached {found}"


async def proved(client: aiohttp.ClientSession, url: str, model: str, *, most_tokens: int | None = None) -> Proof:
    """Send a fresh prompt twice, one after the other. Raises `ProbeError`."""
    tokens = PROOF_TOKENS if most_tokens is None else max(1, min(PROOF_TOKENS, most_tokens - 2))
    prompt = _fresh(tokens)
    first_s, first = await _asked(client, url, model, prompt)
    second_s, second = await _asked(client, url, model, prompt)
    return Proof(tokens, (first_s, second_s), (first.cached_tokens, second.cached_tokens))


async def tells_cached(client: aiohttp.ClientSession, url: str, model: str) -> bool:
    """Whether the replica says how many tokens of a prompt it found cached. Raises `ProbeError`."""
    _, told = await _asked(client, url, model, _fresh(_FEW_TOKENS))
    return told.cached_tokens is not None


async def asked_afresh(client: aiohttp.ClientSession, url: str, model: str, tokens: int) -> list[int]:
    """Have the replica compute so many tokens that nobody has sent before; return them. Raises `ProbeError`."""
    prompt = _fresh(tokens)
    await _asked(client, url, model, prompt)
    return prompt


def _fresh(tokens: int) -> list[int]:
    return [_LEAST_ID + secrets.randbelow(_MOST_IDS) for _ in range(tokens)]


async def _asked(client: aiohttp.ClientSession, url: str, model: str, prompt: list[int]) -> tuple[float, Usage]:
    """Seconds to the first token, and the usage. Raises `ProbeError`."""
    path = "/v1/completions"
    body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": True}
    body["stream_options"] = {"include_usage": True}
    rank = rank_of(url)
    headers = {"Content-Type": "application/json"} | ({} if rank is None else {_RANK: str(rank)})
    data, limit = orjson.dumps(body), aiohttp.ClientTimeout(total=_TIMEOUT_S)
    began_s = time.perf_counter()
    first_s: float | None = None
    told = b""
    try:
        async with client.post(server_of(url) + path, data=data, headers=headers, timeout=limit) as response:
            if response.status != 200:
                raise ProbeError(f"answered {response.status} to {path}")
            async for chunk in response.content.iter_any():
                first_s = time.perf_counter() - began_s if first_s is None else first_s
                told = (told + chunk)[-8192:]
    except TimeoutError:
        raise ProbeError(f"did not finish {path} within {_TIMEOUT_S:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise ProbeError(f"gave no HTTP answer to {path} ({type(error).__name__})") from None
    if first_s is None:
        raise ProbeError(f"answered {path} with nothing")
    return first_s, usage(told)
