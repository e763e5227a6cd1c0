"""`router explain`: where one request body would go, by asking a running router, or its tokens alone without one.

The one rule: a dry run. Nothing is sent to a replica and nothing is remembered.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson

from policies.blocks import Chain
from router.errors import RouterError, UsageError
from router.readers import local_reader
from router.templates import TemplateError
from router.tokenizers import TokenizerError


def explain(body: str, path: str, url: str, tenant: str = "") -> dict[str, Any]:
    """What the router whose admin address is `url` says of the body in a file, sent by a tenant where those are on."""
    return asyncio.run(_asked(_read(body), path, url.rstrip("/"), tenant))


def offline(body: str, path: str, folder: Path, block_tokens: int) -> dict[str, Any]:
    """Tokens and blocks of the body in a file, by the tokenizer in a folder."""
    try:
        asked = orjson.loads(_read(body))
    except orjson.JSONDecodeError as error:
        raise UsageError(f"{body} is not JSON: {error}") from None
    if not isinstance(asked, dict):
        raise UsageError(f"{body} holds a {type(asked).__name__}, not a JSON object")
    try:
        reader = local_reader(folder, block_tokens=block_tokens)
    except (TokenizerError, TemplateError) as error:
        raise UsageError(f"--tokenizer {error}") from error
    prompt = asyncio.run(reader.read(path, asked, Chain.root(str(asked.get("model", "")))))
    return {
        "route": path,
        "model": asked.get("model"),
        "tokens": {"prompt": prompt.tokens, "basis": prompt.basis, "reason": prompt.reason},
        "blocks": {
            "count": len(prompt.blocks),
            "block_tokens": block_tokens,
            "keys": [key.hex() for key in prompt.blocks],
        },
    }


def _read(body: str) -> bytes:
    if body == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(body).read_bytes()
    except OSError as error:
        raise UsageError(f"{body} can't be read: {error.strerror}") from None


async def _asked(body: bytes, path: str, url: str, tenant: str) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", "X-Router-Tenant": tenant}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as client,
            client.post(f"{url}/explain?path={quote(path)}", data=body, headers=headers) as response,
        ):
            told = await response.json(content_type=None)
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
        raise UsageError(f"--url {url} is no http:// address") from None
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        remedy = "start one with `router serve`, give its admin address with --url, or use --tokenizer FOLDER"
        raise RouterError(f"no router answers at {url} ({type(error).__name__}); {remedy}") from None
    if response.status != 200 or not isinstance(told, dict) or "choice" not in told:
        raise RouterError(_complaint(told) or f"{url} answered {response.status}; is it a router's admin address?")
    return told


def _complaint(told: object) -> str:
    error = told.get("error") if isinstance(told, dict) else None
    return str(error.get("message", "")) if isinstance(error, dict) else ""
