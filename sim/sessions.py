"""From conversations to requests in the order of time: what all presets of traffic share.

A preset says which conversations begin (`Opening`) and what their turns are; here their prompts grow, get keys and meet
the options. The one rule: everything follows from the options, and only conversations that still go on are in
memory. Not here: lengths, gaps and heads (`generators`), and what becomes of the requests (`run`).

    paced      requests come at given times; each is the next turn of whoever is due, else a new one. The rate is kept
    started    conversations begin at their own times and go on by their gaps. The rate is what comes of it
"""

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sim.arrivals import Arrival
from sim.prompts_of_runs import Prompt, Segment

STAMP_TOKENS = 2
_HEADS_KEPT = 2_048
_ANSWERS = 1 << 62
_STAMPS = 1 << 63
"""Contents of answers and stamps are numbered from here; those of the presets stay below."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may change of a preset."""

    requests: int
    rate: float
    """Requests per second."""
    seed: int = 1
    tenants: int = 10
    """Users are dealt out to so many tenants."""
    salt: Literal["none", "tenant", "user"] = "none"
    """Whose cached blocks are kept apart."""
    volatile: Literal["none", "head", "before-message"] = "none"
    """Where every prompt carries two tokens of its own, as a timestamp would; they are not kept in the history."""
    cache_outputs: bool = True
    """Whether the next turn finds what was generated for this one."""
    replay: Literal["timestamps", "think"] = "timestamps"
    """Whether a turn comes at its time, or so long after the end of the turn before it."""
    block_tokens: int = 16


class Turn(NamedTuple):
    """One request of a conversation."""

    segments: tuple[Segment, ...]
    """What it adds to the history, before the answer."""
    answer_tokens: int
    think_s: float = 0.0
    """From the end of the turn before to this one."""
    took_s: float = 0.0
    """How long the turn before took where the gaps were observed; used to place turns by timestamps."""
    forgets: bool = False
    """The history is dropped, and the conversation goes on from its head."""


class Opening(NamedTuple):
    """A conversation that begins. `turns` has one at least."""

    head: tuple[Segment, ...]
    turns: Sequence[Turn]
    user: int
    route: str = ""
    tenant: str | None = None
    """None: users are dealt out."""


def paced(openings: Iterator[Opening], times: Iterable[float], options: Options) -> Iterator[Arrival]:
    """A request at each of the times, until there are as many as asked for."""
    due: list[tuple[float, int, _Conversation]] = []
    heads = _Heads(options.block_tokens)
    for number, time_s in zip(range(options.requests), times, strict=False):
        if due and due[0][0] <= time_s:
            conversation = heapq.heappop(due)[2]
        else:
            conversation = _Conversation(number, next(openings), options, heads)
        yield conversation.said(number, time_s)
        if (gap_s := conversation.gap_s) is not None:
            heapq.heappush(due, (time_s + gap_s, number, conversation))


def started(openings: Iterable[tuple[float, Opening]], options: Options) -> Iterator[Arrival]:
    """Conversations that begin at their own times, in their order, until there are as many requests as asked for.

    All of their turns must be as many.
    """
    due: list[tuple[float, int, _Conversation]] = []
    heads = _Heads(options.block_tokens)
    begin = iter(openings)
    coming = next(begin, None)
    begun = itertools.count()
    for number in range(options.requests):
        if coming is None or (due and due[0][0] <= coming[0]):
            time_s, _, conversation = heapq.heappop(due)
        else:
            time_s, conversation = coming[0], _Conversation(next(begun), coming[1], options, heads)
            coming = next(begin, None)
        yield conversation.said(number, time_s)
        if (gap_s := conversation.gap_s) is not None:
            heapq.heappush(due, (time_s + gap_s, number, conversation))


class _Heads:
    """Prompts that many conversations begin with, made once."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._made: dict[tuple[str, tuple[Segment, ...]], Prompt] = {}

    def prompt(self, salt: str, head: tuple[Segment, ...]) -> Prompt:
        made = self._made.get((salt, head))
        if made is None:
            if len(self._made) >= _HEADS_KEPT:
                del self._made[next(iter(self._made))]
            made = self._made[salt, head] = Prompt.root(self._block_tokens, salt).grown(head)
        return made


class _Conversation:
    """A conversation that goes on: its history and the turns to come."""

    __slots__ = ("_grown", "_head", "_next", "_options", "_parts", "_place", "_root", "_turns",
                 "history", "route", "session", "tenant", "user")  # fmt: skip

    def __init__(self, place: int, opening: Opening, options: Options, heads: "_Heads") -> None:
        self._options = options
        self._grown = _GROWN[options.volatile]
        self._turns = opening.turns
        self._next = 0
        self._head = opening.head
        self.session = f"s{place}" if len(opening.turns) > 1 else None
        self.user = f"u{opening.user}"
        self.tenant = f"t{opening.user % options.tenants}" if opening.tenant is None else opening.tenant
        self.route = opening.route
        salt = {"none": "", "tenant": f"tenant {self.tenant}", "user": f"user {self.user}"}[options.salt]
        self._root = heads.prompt(salt, ())
        self.history = heads.prompt(salt, opening.head)
        self._parts: list[Segment] = list(opening.head)

    @property
    def gap_s(self) -> float | None:
        """From the last turn to the earliest time of the next one; None when that was the last."""
        if self._next == len(self._turns):
            return None
        turn = self._turns[self._next]
        return turn.think_s if self._options.replay == "think" else turn.think_s + turn.took_s

    def said(self, number: int, time_s: float) -> Arrival:
        """The next turn as a request."""
        turn, options = self._turns[self._next], self._options
        if turn.forgets:
            self.history = self._root.grown(self._head)
            self._parts = list(self._head)
        answer_tokens = turn.answer_tokens
        whole = self._grown(self, (_STAMPS + number, STAMP_TOKENS), turn.segments, (_ANSWERS + number, answer_tokens))
        prompt_tokens = whole.tokens - answer_tokens
        keys = whole.keys if options.cache_outputs else whole.keys[: prompt_tokens // options.block_tokens]
        think_s = turn.think_s if options.replay == "think" and self._next else None
        self._next += 1
        return Arrival(
            number,
            time_s,
            prompt_tokens,
            answer_tokens,
            keys,
            self.session,
            self.user,
            self.tenant,
            self.route,
            "",
            think_s,
        )

    def plain(self, _: Segment, added: tuple[Segment, ...], answer: Segment) -> Prompt:
        self.history = self.history.grown((*added, answer))
        return self.history

    def stamped_before_message(self, stamp: Segment, added: tuple[Segment, ...], answer: Segment) -> Prompt:
        whole = self.history.grown((stamp, *added, answer))
        self.history = self.history.grown((*added, answer))
        return whole

    def stamped_at_head(self, stamp: Segment, added: tuple[Segment, ...], answer: Segment) -> Prompt:
        self._parts += (*added, answer)
        return self._root.grown((stamp, *self._parts))


_Grown = Callable[[_Conversation, Segment, tuple[Segment, ...], Segment], Prompt]
_GROWN: dict[str, _Grown] = {
    "none": _Conversation.plain,
    "before-message": _Conversation.stamped_before_message,
    "head": _Conversation.stamped_at_head,
}
"""From a conversation, a stamp, what is added and the answer: all of it after the history, which grows."""
