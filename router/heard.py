"""The text of an answer, put together from a reply that passes by, for replicas that tell nothing by events.

The connection hands over what it would drop, about 2 KB at a time; events of a stream are read a slice at a time, well
under a millisecond's work, and only their text is kept. The one rule: a reply that is anything but one plain answer,
or too long, is given up. Not here: which blocks the text makes (`answers`).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from policies.fleet import Fleet
from policies.types import Request
from router.answers import Answer, answer_of
from router.heard_events import Event, Usage, events
from router.prompt_bodies import Prompt

_log: Final = logging.getLogger("router.heard")

_SLICE_BYTES: Final = 64 * 1024  # of a stream, read at once: 0.2 ms
_END_BYTES: Final = 8 * 1024  # of a stream, in which its last words are; backwards a look takes half as long
_MOST_BYTES: Final = 256 * 1024  # of a reply in one piece; characters of a stream's text
_MOST_THREADED: Final = 64  # answers on their way to a thread; what comes beyond is not entered
_BEFORE, _BETWEEN, _BEHIND, _DONE = b"data: ", b"\n\ndata: ", b"\n\n", b"data: [DONE]"
_NEXT: Final = b"\ndata: "  # after the end of any line: a comment, another field, one that ends with CRLF


class Heard:
    """One reply as far as it came; given up once it is none of ours."""

    __slots__ = (
        "_begun",
        "_bytes",
        "_edge",
        "_finished",
        "_given_up",
        "_pieces",
        "_spoken",
        "_streamed",
        "_text",
        "_text_chars",
        "_usage",
    )

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._begun = 0
        """Events of a stream after its first. Counted as they pass: many streams end together."""
        self._edge = b""
        """Where one of them may begin that the next piece goes on with."""
        self._streamed: bool | None = None
        self._given_up = False
        self._text: list[str] = []
        self._text_chars = 0
        self._spoken = 0
        """Events that had text: tokens, of an engine that sends each by itself."""
        self._finished: str | None = None
        self._usage: Usage | None = None

    def __repr__(self) -> str:
        return f"<Heard {self._bytes} bytes>"  # none of the text

    def heard(self, piece: bytes) -> None:
        """The next part of the reply's body, in order; the rest comes with `answer`."""
        if self._given_up or not piece:
            return
        self._pieces.append(piece)
        self._bytes += len(piece)
        self._begun += (self._edge + piece).count(_NEXT)
        self._edge = piece[1 - len(_NEXT) :]
        if self._bytes > _SLICE_BYTES and self._is_stream():
            self._read(last=False)
        if self._bytes > _MOST_BYTES or self._text_chars > _MOST_BYTES:
            self._give_up()

    def answer(self, rest: bytes) -> Answer | None:
        """What the reply said in all; None unless it is one answer that ended by itself."""
        self.heard(rest)
        if self._given_up or not self._bytes:
            return None
        if not self._is_stream():
            return answer_of(b"".join(self._pieces))
        if self._finished is None and self._end().rfind(b'"stop"') < 0:  # it was cut, or ended for another reason
            return None
        self._read(last=True)
        if self._given_up or self._finished != "stop":
            return None
        told = self._usage or Usage()
        # Without a count by the engine: each event was a token if the text makes as many; the end is one more.
        tokens = self._spoken + 1 if told.completion_tokens is None else told.completion_tokens
        return Answer("".join(self._text), told.prompt_tokens, tokens)

    def uncounted_tokens(self) -> int:
        """Tokens of a stream that has ended and whose engine told no count: its events, but the first and `[DONE]`."""
        if self._given_up or not self._streamed or self._usage is not None:
            return 0
        if self._finished == "stop":
            return self._spoken + 1
        if self._end().rfind(b'"completion_tokens"') >= 0:
            return 0
        return max(0, self._begun - 1)

    def _end(self) -> bytes:
        """Where a stream says why it ended and what it took. A look through all of a long one holds up others.

        A last event longer than that hides it: then the answer is not entered.
        """
        self._pieces = [b"".join(self._pieces)]
        return self._pieces[0][-_END_BYTES:]

    def _is_stream(self) -> bool:
        if self._streamed is None:
            self._streamed = b"".join(self._pieces).startswith(_BEFORE)
        return self._streamed

    def _read(self, *, last: bool) -> None:
        data = b"".join(self._pieces)
        if last:
            data = data.rstrip(b"\n").removesuffix(_DONE).rstrip(b"\n") + _BEHIND
        end = data.rfind(_BEHIND)
        start = 0 if end < 0 else end + len(_BEHIND)
        self._pieces, self._bytes = [data[start:]], len(data) - start
        if end <= 0:
            return
        if not data.startswith(_BEFORE):
            self._give_up()
            return
        try:
            for event in events.decode(b"[" + data[len(_BEFORE) : end].replace(_BETWEEN, b",") + b"]"):
                self._take(event)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
            self._give_up()

    def _take(self, event: Event) -> None:
        self._usage = event.usage or self._usage
        if not event.choices:
            return
        (choice,) = event.choices  # of several, each is another branch
        delta = choice.delta
        if choice.index or delta.tool_calls or delta.reasoning or delta.reasoning_content:
            raise ValueError("not one plain answer")
        if choice.finish_reason is not None:
            self._finished = choice.finish_reason if bytes(choice.stop_reason) == b"null" else "told to"
        if delta.content:
            self._text.append(delta.content)
            self._text_chars += len(delta.content)
            self._spoken += 1

    def _give_up(self) -> None:
        self._given_up = True
        self._pieces, self._text, self._bytes = [], [], 0


class Answers:
    """Has the fleet learn the blocks of answers that replicas do not tell by events."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._threaded: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Answers {len(self._threaded)} in threads>"

    def listening(self, prompt: Prompt, name: str) -> Heard | None:
        """Who listens to the reply; nobody where its blocks can't be known, or a replica tells them itself."""
        if prompt.opened is None or not prompt.alone or self._fleet.tells(name):
            return None
        return Heard()

    def stored(
        self,
        heard: Heard | None,
        rest: bytes,
        request: Request,
        prompt: Prompt,
        name: str,
        output_tokens: int | None,
    ) -> Sequence[bytes]:
        """Keys that continue the request's; those of a long answer are told to the fleet later, by a thread.

        An answer of so few `output_tokens` that they fill no block is not read.
        """
        if heard is None:
            return prompt.stored
        named = len(prompt.blocks) + len(prompt.stored)
        if output_tokens is not None and (prompt.tokens + output_tokens - 1) // request.block_tokens <= named:
            return prompt.stored
        try:
            return self._known(heard, rest, request, prompt, name, output_tokens)
        except Exception as error:  # whose load is released next; only its kind: the text may quote the answer
            _log.error("the answer to request %s can't be read (%s)", request.id, type(error).__name__)
            return prompt.stored

    def _known(
        self, heard: Heard, rest: bytes, request: Request, prompt: Prompt, name: str, output_tokens: int | None
    ) -> Sequence[bytes]:
        answer = heard.answer(rest)
        if output_tokens is None and (uncounted := heard.uncounted_tokens()):
            self._fleet.generated(request, uncounted)
        if answer is None or prompt.opened is None:
            return prompt.stored
        if prompt.opened.reads_at_once(answer):
            return prompt.stored_by(answer)
        if len(self._threaded) < _MOST_THREADED:
            self._fleet.generated(request, 0)  # what it takes is entered with its names
            task = asyncio.get_running_loop().create_task(self._later(lambda: prompt.stored_by(answer), request, name))
            self._threaded.add(task)
            task.add_done_callback(self._threaded.discard)
        return prompt.stored

    async def _later(self, work: Callable[[], Sequence[bytes]], request: Request, name: str) -> None:
        blocks = await asyncio.to_thread(work)
        self._fleet.answered(name, request, blocks)
