"""What the engines say they hold, heard and reckoned apart from the router.

The one rule: nothing of the router's is used here, neither its sockets nor its keys, so that both can't be wrong in
the same way. A prompt is kept whole for each block, and its key made from the formula in `policies.blocks`.
"""

import hashlib
import threading
from collections import Counter
from typing import Any

import msgspec
import zmq


class Listener:
    """Follows one replica's events on a thread, from before it starts until `close`."""

    def __init__(self, endpoint: str, model: str) -> None:
        self.restarts = 0
        self.gaps = 0
        self.kinds: Counter[str] = Counter()
        self.batches: list[tuple[int, bytes]] = []
        """Number and payload of everything that was heard."""
        self._model = model
        self._last = -1
        self._copies: Counter[int] = Counter()
        self._prefixes: dict[int, tuple[bytes, bytes, int]] = {}
        """By the engine's hash: what a prompt's key begins with, its tokens up to this block, the block's own bytes."""
        self._lock = threading.Lock()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.connect(endpoint)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def keys(self, block_tokens: int) -> set[bytes]:
        """The keys of all blocks of `block_tokens` that the engine holds."""
        with self._lock:
            held = [self._prefixes[found] for found, copies in self._copies.items() if copies > 0]
        step = block_tokens * 4
        return {
            hashlib.sha256(root + tokens[:end]).digest()[:16]
            for root, tokens, width in held
            for end in range(len(tokens) - width + step, len(tokens) + 1, step)
        }

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        self._socket.close()
        self._context.term()

    def _listen(self) -> None:
        while not self._ending.is_set():
            if self._socket.poll(50):
                _, number, payload = self._socket.recv_multipart()
                with self._lock:
                    self.batches.append((int.from_bytes(number, "big"), payload))
                    self._heard(int.from_bytes(number, "big"), msgspec.msgpack.decode(payload)[1])

    def _heard(self, number: int, events: list[dict[str, Any]]) -> None:
        if number <= self._last:
            self.restarts += 1
            self._copies.clear()
            self._last = -1
        self.gaps += number - self._last - 1
        self._last = number
        for event in events:
            self.kinds[event["type"]] += 1
            if event["type"] == "BlockStored":
                self._stored(event)
            elif event["type"] == "BlockRemoved":
                self._copies.subtract(event["block_hashes"])
            else:
                self._copies.clear()

    def _stored(self, event: dict[str, Any]) -> None:
        width, hashes = event["block_size"], event["block_hashes"]
        if event["parent_block_hash"] is None:
            adapter = event.get("lora_name") or ""
            extra = (event.get("extra_keys") or [None])[0] or []
            salt = next((key for key in extra if key != adapter), "")
            parts = [part.encode() for part in (self._model, adapter, salt)]
            root, tokens = b"".join(len(part).to_bytes(8, "little") + part for part in parts), b""
        else:
            root, tokens, _ = self._prefixes[event["parent_block_hash"]]
        for at, found in enumerate(hashes):
            for token in event["token_ids"][at * width : (at + 1) * width]:
                tokens += token.to_bytes(4, "little")
            self._prefixes[found] = (root, tokens, width * 4)
            self._copies[found] += 1
