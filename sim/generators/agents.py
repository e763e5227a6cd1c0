"""Coding agents: long sessions whose prompt is nearly all history, with thinking in between.

Made after the 710 Claude Code sessions of kv-cache-tester (WEKA, Apache-2.0) as a routing study would take them: 128 k
tokens of context, pauses of a minute at most, starts of sessions drawn as a Poisson process. It begins with nobody and
ends when the last session has, so requests come in a swell: of 5,000, those of a minute vary 40 times as much as a
Poisson process's. Most of a session's head (tools and system prompt) is everybody's. The one rule: a session ends after
its turns, a context that is full is compacted first. Not here: the traces.
"""

import itertools
import random
from collections.abc import Iterator

from sim.arrivals import Arrival
from sim.generators.draws import Gaps, Lengths, poisson, stream
from sim.prompts_of_runs import Segment
from sim.sessions import Opening, Options, Turn, started

CONTEXT_TOKENS = 128_000
DEVELOPERS = 60

_SHARED = (1, 11_211)  # tools and system prompt: 75 % of the median head
_FRESH = 1_000
_PROJECT = Lengths(3_737, 0.5, 256, 12_000)
_TASK = Lengths(9_500, 0.9, 100, 60_000)
_RESULT = Lengths(1_100, 1.1, 20, 30_000)  # what a tool gave, or what was asked next
_ANSWER = Lengths(216, 1.12, 8, 8_000)
_SUMMARY = Lengths(9_000, 0.5, 1_000, 30_000)
_THINK = Gaps(10, 1.7, 60)
_API = Gaps(6.1, 0.9, 120)
_TURNS = Lengths(37, 0.85, 2, 160)  # as far as 128 k tokens reach: 50 in the mean
_MEAN_TURNS = 50.0
_SWELL = 2.4  # a session starts every 20 s where 100 of them come to 1.05 requests a second in the mean
_ALTERED = 0.006  # of turns go on from the head: edited, or branched


def agents(options: Options) -> Iterator[Arrival]:
    """Sessions of coding agents, as many as make so many requests; the last one may be cut short."""
    contents = itertools.count(_FRESH)
    lengths, who = stream(options.seed, "agent lengths"), stream(options.seed, "agent users")
    projects = {user: _PROJECT.of(lengths) for user in range(DEVELOPERS)}
    starts = poisson(stream(options.seed, "arrivals"), _SWELL * options.rate / _MEAN_TURNS)
    users = (who.randrange(DEVELOPERS) for _ in itertools.count())
    openings = (_session(user, projects[user], contents, lengths) for user in users)
    return started(zip(starts, _making(openings, options.requests), strict=False), options)


def _making(openings: Iterator[Opening], requests: int) -> Iterator[Opening]:
    for opening in openings:
        yield opening._replace(turns=opening.turns[:requests])
        requests -= len(opening.turns)
        if requests <= 0:
            return


def _session(user: int, project_tokens: int, contents: Iterator[int], draw: random.Random) -> Opening:
    head: tuple[Segment, ...] = (_SHARED, (2 + user, project_tokens))
    turns = [Turn(((next(contents), _TASK.of(draw)),), _ANSWER.of(draw))]
    fixed = _SHARED[1] + project_tokens
    context = fixed + turns[0].segments[0][1] + turns[0].answer_tokens
    for _ in range(_TURNS.of(draw) - 1):
        added, answer = _RESULT.of(draw), _ANSWER.of(draw)
        full = context + added + answer > CONTEXT_TOKENS
        forgets = full or draw.random() < _ALTERED
        if forgets:
            context = fixed
            added += _SUMMARY.of(draw)
        context += added + answer
        turns.append(Turn(((next(contents), added),), answer, _THINK.of(draw), _API.of(draw), forgets))
    return Opening(head, turns, user, "agent")
