"""One question to one replica, and what its answer means in words a log can print.

The one rule: every way not to get an answer is a `ProbeError` whose text completes the sentence `replica r1 …`.
Not here: when to ask (`health`) and what follows from it (`hysteresis`).
"""

import ssl
from typing import Any

import aiohttp
import orjson

_ANSWER_BYTES = 16 * 1024 * 1024  # more than this from a probe is no answer


class ProbeError(Exception):
    """A probe got no answer, or a bad one."""


class Refused(ProbeError):  # noqa: N818 -- named after what happened
    """Nobody listens there."""


def session(*, timeout_s: float, key: str | None, tls: ssl.SSLContext | None = None) -> aiohttp.ClientSession:
    """A client for probes: no cookies, no proxies from the environment, the replicas' key if there is one.

    `tls` is for https; the system's authorities when not given.
    """
    # Asking for plain text spares the engine's one API process the time to compress 80 KB every round.
    headers = {"Accept-Encoding": "identity", "User-Agent": "prefix-router"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    return aiohttp.ClientSession(
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        connector=aiohttp.TCPConnector(limit=0, limit_per_host=0, ssl=tls or True),
    )


def server_of(url: str) -> str:
    """Where requests go: a replica's URL without the rank it may name."""
    return url.partition("#")[0]


async def answer(client: aiohttp.ClientSession, url: str, path: str) -> tuple[int, bytes]:
    """Status and body of `GET path`."""
    try:
        # vLLM redirects /metrics to /metrics/; nothing else has a reason to send us elsewhere.
        async with client.get(server_of(url) + path, allow_redirects=path == "/metrics") as response:
            body = bytearray()
            async for chunk in response.content.iter_chunked(64 * 1024):
                body += chunk
                if len(body) > _ANSWER_BYTES:
                    raise ProbeError(f"sent more than {_ANSWER_BYTES} bytes to {path}")
            return response.status, bytes(body)
    except TimeoutError:
        raise ProbeError(f"did not answer {path} within {client.timeout.total:g} s") from None
    except aiohttp.ClientConnectorError as error:
        raise (Refused if isinstance(error.os_error, ConnectionRefusedError) else ProbeError)(_refused(error)) from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise ProbeError(f"gave no HTTP answer to {path} ({type(error).__name__})") from None


def model_entries(body: bytes) -> list[dict[str, Any]] | None:
    """The entries of a `/v1/models` answer that have an id; None when it is not such an answer."""
    try:
        return [entry for entry in orjson.loads(body)["data"] if isinstance(entry.get("id"), str)]
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return None


def _refused(error: aiohttp.ClientConnectorError) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "shows a TLS certificate that can't be verified"
    cause = error.os_error
    if isinstance(cause, ConnectionRefusedError):
        return "refused the connection"
    return f"could not be connected to ({cause.strerror or type(cause).__name__})"
