"""Long prompts of the Mooncake traces: chat, questions on documents, and tools.

Made after the statistics that the published traces show (FAST'25 release, kvcache-ai/Mooncake, Apache-2.0): lengths,
turns, gaps, and how much of all prompt tokens one infinite cache finds. The one rule: what the traces do not tell
(contents, users) is drawn in the simplest way that keeps what they tell. Not here: the traces themselves (`traces`).
"""

import itertools
import random
from collections import deque
from collections.abc import Iterator

from sim.arrivals import Arrival
from sim.generators.draws import Gaps, Lengths, poisson, stream
from sim.prompts_of_runs import Segment
from sim.sessions import Opening, Options, Turn, paced

LONGEST_PROMPT = 126_000
TOKEN_S = 0.025
"""How long a token of an answer took when the gaps were observed, roughly."""

_GAP = Gaps(123, 1.02, 7_200)
_SHARED = (1, 512)  # the first block of every conversation
_FRESH = 1_000  # contents below are heads
_REMEMBERED = 256  # documents that may come back


class _Documents:
    """What was shown before and may be shown again, to somebody else too."""

    def __init__(self) -> None:
        self._shown: deque[Segment] = deque(maxlen=_REMEMBERED)

    def again(self, draw: random.Random) -> Segment | None:
        return draw.choice(self._shown) if self._shown else None

    def shown(self, document: Segment) -> None:
        self._shown.append(document)


class _Talk:
    """Conversations of the kind in `conversation_trace`: three of four have one turn."""

    first = Lengths(5_450, 1.12, 24, LONGEST_PROMPT - 4_000)
    message = Lengths(900, 1.35, 10, 60_000)
    answer = Lengths(385, 0.45, 1, 2_000)
    short_answer = Lengths(40, 0.8, 1, 2_000)
    short = 0.22  # of answers: their median is above their mean
    returns = 0.08  # of first prompts, begin as another conversation's did

    def __init__(self, seed: int, contents: Iterator[int]) -> None:
        self._draw = stream(seed, "talk lengths")
        self._pick = stream(seed, "talk contents")
        self._contents = contents
        self._documents = _Documents()

    def opening(self, user: int, route: str) -> Opening:
        draw = self._draw
        turns = [Turn(self._begun(), self._answer())]
        tokens = _SHARED[1] + sum(count for _, count in turns[0].segments) + turns[0].answer_tokens
        for _ in range(_more_turns(draw)):
            message, answer = self.message.of(draw), self._answer()
            if tokens + message > LONGEST_PROMPT:
                break
            tokens += message + answer
            took_s = turns[-1].answer_tokens * TOKEN_S
            think_s = max(1.0, _GAP.of(draw) - took_s)
            turns.append(Turn(((next(self._contents), message),), answer, think_s, took_s))
        return Opening((_SHARED,), turns, user, route)

    def _answer(self) -> int:
        return (self.short_answer if self._draw.random() < self.short else self.answer).of(self._draw)

    def _begun(self) -> tuple[Segment, ...]:
        tokens = self.first.of(self._draw)
        known = self._documents.again(self._pick) if self._pick.random() < self.returns else None
        fresh = (next(self._contents), tokens)
        if known is None:
            self._documents.shown(fresh)
            return (fresh,)
        content, count = known
        return (content, min(count, 3 * tokens // 4 + 1)), (fresh[0], tokens // 4)


def _more_turns(draw: random.Random) -> int:
    """Beyond the first: none for three of four, else 1.96 in the mean, 42 at most."""
    if draw.random() < 0.75:
        return 0
    return min(42, int(draw.paretovariate(1.55)))


def chat(options: Options) -> Iterator[Arrival]:
    """Multi-turn chat behind one short system prompt, like the Mooncake conversation trace."""
    talk = _Talk(options.seed, itertools.count(_FRESH))
    openings = (talk.opening(user, "chat") for user in itertools.count())
    return paced(openings, poisson(stream(options.seed, "arrivals"), options.rate), options)


# -- tools -------------------------------------------------------------------------------------------------------------

_TOOLS = (("tool-a", 0.390, (2, 6_144)), ("tool-b", 0.146, (3, 2_560)))
"""Route, share of the requests and head of the two tools in `toolagent_trace`; the rest are conversations."""

_QUESTION = Lengths(380, 0.7, 16, 8_000)
_CALL = Lengths(30, 0.8, 1, 1_000)
_TALK_TURNS = 1.49  # in the mean


def tools(options: Options) -> Iterator[Arrival]:
    """Two tools with long heads and short questions beside chat, like the Mooncake tool and agent trace."""
    talk = _Talk(options.seed, contents := itertools.count(_FRESH))
    lengths, kinds = stream(options.seed, "tool lengths"), stream(options.seed, "kinds")
    openings = (_tool_or_talk(user, talk, contents, lengths, kinds) for user in itertools.count())
    return paced(openings, poisson(stream(options.seed, "arrivals"), options.rate), options)


def _tool_or_talk(
    user: int, talk: _Talk, contents: Iterator[int], lengths: random.Random, kinds: random.Random
) -> Opening:
    """Shares are of requests: a conversation brings several, so fewer begin."""
    tools_share = sum(share for _, share, _ in _TOOLS)
    drawn = kinds.random() * (tools_share + (1 - tools_share) / _TALK_TURNS)
    for route, share, head in _TOOLS:
        if drawn < share:
            question = (next(contents), _QUESTION.of(lengths))
            return Opening((head,), (Turn((question,), _CALL.of(lengths)),), user, route)
        drawn -= share
    return talk.opening(user, "chat")


# -- documents ---------------------------------------------------------------------------------------------------------

_PLAIN_SHARE = 0.68  # of what begins is one prompt without a document
_PLAIN = Lengths(4_300, 0.85, 32, LONGEST_PROMPT)
_DOCUMENT = Lengths(18_500, 0.76, 1_000, 180_000)
_ASKED = Lengths(60, 0.8, 8, 4_000)
_TOLD = Lengths(120, 0.65, 1, 1_000)
_ASKED_AGAIN = 0.49  # of documents were shown to somebody before
_QUESTION_GAP = Gaps(60, 1.0, 1_800)
_MORE_QUESTIONS = 0.67  # the chance of another one


def docs(options: Options) -> Iterator[Arrival]:
    """Questions on long documents, some shown to several users, like the Mooncake synthetic trace."""
    contents, documents = itertools.count(_FRESH), _Documents()
    lengths, kinds = stream(options.seed, "document lengths"), stream(options.seed, "kinds")
    openings = (_document(user, contents, documents, lengths, kinds) for user in itertools.count())
    return paced(openings, poisson(stream(options.seed, "arrivals"), options.rate), options)


def _document(
    user: int, contents: Iterator[int], documents: _Documents, lengths: random.Random, kinds: random.Random
) -> Opening:
    if kinds.random() < _PLAIN_SHARE:
        return Opening((), (Turn(((next(contents), _PLAIN.of(lengths)),), _TOLD.of(lengths)),), user, "plain")
    document = documents.again(kinds) if kinds.random() < _ASKED_AGAIN else None
    if document is None:
        document = (next(contents), _DOCUMENT.of(lengths))
        documents.shown(document)
    turns = [Turn(((next(contents), _ASKED.of(lengths)),), _TOLD.of(lengths))]
    while kinds.random() < _MORE_QUESTIONS:
        took_s = turns[-1].answer_tokens * TOKEN_S
        think_s = max(1.0, _QUESTION_GAP.of(kinds) - took_s)
        turns.append(Turn(((next(contents), _ASKED.of(lengths)),), _TOLD.of(lengths), think_s, took_s))
    return Opening((document,), turns, user, "documents")
