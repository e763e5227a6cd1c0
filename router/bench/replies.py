"""One streamed reply, read as it comes: when a token was there, what usage it told, and whether it ended well.

Chat, text completions, Responses and Anthropic messages are understood. The one rule: events are parsed until the first
token and only looked at for their end after that, so that reading costs little of the load driver's time. Not here:
sockets and clocks.
"""

import orjson

from router.usage import Usage, aborted, error_event, usage

_TAIL_BYTES = 64 * 1024
"""More than the last events of a stream need, usage and a long finish included."""
_ENDS = (b"data: [DONE]", b'"type":"message_stop"', b'"type": "message_stop"', b"event: response.completed")


class Reply:
    """The bytes of one reply under status 200."""

    __slots__ = ("_rest", "_streamed", "_tail", "begun")

    def __init__(self, *, streamed: bool) -> None:
        self._streamed = streamed
        self._rest = b""
        self._tail = b""
        self.begun = False
        """Whether a token has come; stays False where the server does not stream."""

    def fed(self, data: bytes) -> None:
        """More bytes came, cut anywhere."""
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        if self.begun or not self._streamed:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.begun = any(_is_token(line) for line in lines)

    @property
    def usage(self) -> Usage:
        """What the server told of the request's tokens."""
        return usage(self._tail)

    @property
    def fault(self) -> str:
        """What was wrong with it once it has ended; the empty string when nothing was."""
        if error_event(self._tail):
            return "error event"
        if aborted(self._tail):
            return "aborted"
        if not self._streamed:
            return ""
        if not any(end in self._tail for end in _ENDS):
            return "cut"
        return "" if self.begun else "no token"


def _is_token(line: bytes) -> bool:
    """Whether a line of the stream brings a token, also one whose text is held back; a role alone is none."""
    if not line.startswith(b"data:"):
        return False
    try:
        told = orjson.loads(line[5:])
    except orjson.JSONDecodeError:  # [DONE], or no JSON at all
        return False
    if not isinstance(told, dict):
        return False
    choices = told.get("choices")
    if isinstance(choices, list):
        return any(isinstance(choice, dict) and _chosen(choice) for choice in choices)
    kind = told.get("type")
    return isinstance(kind, str) and (kind == "content_block_delta" or kind.endswith(".delta"))


def _chosen(choice: dict[str, object]) -> bool:
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return "text" in choice
    said = any(value for name, value in delta.items() if name != "role")
    return said or ("role" not in delta and "content" in delta)
