"""Asks a publisher for batches it has published before.

A DEALER sends an empty frame and the number to start from; the answer is one message per batch, then one numbered -1
(vLLM 0.10 to 0.33; a REQ socket would get the first one only). A buffer that is too short begins later without a word,
and a full send queue leaves batches out: the caller looks at the numbers. The one rule: it ends, whatever is sent.
"""

import asyncio
from collections.abc import AsyncGenerator

import zmq
import zmq.asyncio

from router.kv_sequence import MOST_NUMBER

MOST_MESSAGE_BYTES = 8 * 1024 * 1024
"""A peer that sends a larger frame is cut off."""
_QUEUED = 100_000  # messages; as many as the engine's queue, so that neither side drops any


class ReplayError(Exception):
    """No usable answer; the text completes `the replay endpoint …`."""


async def replayed(
    context: zmq.asyncio.Context, endpoint: str, start: int, *, timeout_s: float
) -> AsyncGenerator[tuple[int, bytes], None]:
    """Numbers and payloads from `start` on, as far as they are still kept. Raises `ReplayError`."""
    with context.socket(zmq.DEALER) as dealer:
        for option, value in options().items():
            dealer.setsockopt(option, value)
        dealer.setsockopt(zmq.RCVHWM, _QUEUED)
        try:
            dealer.connect(endpoint)
            async with asyncio.timeout(timeout_s):
                await dealer.send_multipart([b"", start.to_bytes(8, "big")])
            while True:
                async with asyncio.timeout(timeout_s):
                    frames = await dealer.recv_multipart()
                if len(frames) < 3 or len(frames[-2]) != 8:
                    raise ReplayError("sends something else than numbered batches")
                number = int.from_bytes(frames[-2], "big", signed=True)
                if number < 0:
                    return
                if number >= MOST_NUMBER:
                    raise ReplayError("sends something else than numbered batches")
                yield number, frames[-1]
        except TimeoutError:
            raise ReplayError(f"did not answer within {timeout_s:g} s") from None
        except zmq.ZMQError as error:
            raise ReplayError(f"can't be used ({error.strerror})") from None


def options() -> dict[int, int]:
    """Of every socket: nothing lingers, a lost peer is noticed and called again with back-off, frames are bounded."""
    return {
        zmq.LINGER: 0,
        zmq.IPV6: 1,
        zmq.MAXMSGSIZE: MOST_MESSAGE_BYTES,
        zmq.RECONNECT_IVL: 100,
        zmq.RECONNECT_IVL_MAX: 500,  # who comes back must be heard before what it computes counts as untold
        zmq.HEARTBEAT_IVL: 5_000,
        zmq.HEARTBEAT_TIMEOUT: 20_000,
    }
