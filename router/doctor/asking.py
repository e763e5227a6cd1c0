"""`GET /doctor` and `GET /hits` of an admin port, asked for by the command line.

The one rule: whatever goes wrong is an error with a text for the user. Not here: what is answered.
"""

from typing import Any

import aiohttp

from router.errors import UsageError


async def fetched(url: str) -> dict[str, Any]:
    """What the doctor of the router whose admin address is `url` tells. Raises `UsageError`."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as client,
            client.get(f"{url}/doctor?sketches=1") as response,
        ):
            told = await response.json(content_type=None)
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
        raise UsageError(f"--url {url} is no http:// address") from None
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        remedy = "start one with `router serve`, and give its admin address with --url"
        raise UsageError(f"no router answers at {url} ({type(error).__name__}); {remedy}") from None
    if response.status != 200 or not isinstance(told, dict) or "findings" not in told:
        refusal = told.get("error") if isinstance(told, dict) else None
        said = refusal.get("message") if isinstance(refusal, dict) else None
        why = said if response.status == 403 and said else "is it a router's admin address, with doctor.on?"
        raise UsageError(f"{url}/doctor answered {response.status}; {why}")
    return told
