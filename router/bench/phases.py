"""When prompts are asked, and of whom: for every rate and group a cold phase, then the same requests again, warm.

The one rule: phases never overlap, each begins when the one before has ended, so that no queue of one is measured in
another. Cold means under a mark nobody used before. Two set-ups take turns in the order A B B A, so that what drifts
over the run meets both alike. Not here: sending (`driver`) and figures (`results`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

import aiohttp

from router.bench.about import About, Counted, counted
from router.bench.driver import Answer, Ask, driven
from router.bench.groups import Group, Made, mark_of
from router.errors import RouterError

DEFAULT_RATE = 2.0

Name = Literal["cold", "warm"]


@dataclass(frozen=True, slots=True)
class Side:
    """One set-up that is measured."""

    name: str
    """A, B, …: the mark of its rows."""
    about: About
    groups: tuple[Group, ...]
    metrics_urls: tuple[str, ...]
    """Where its engines' counters are."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What all sides go through."""

    run: str
    """What no other run has."""
    rates: tuple[float, ...]
    """Requests per second, one after the other; with none, groups come at their own times, others at the default."""
    requests: int | None
    duration_s: float | None
    seed: int
    in_flight: int | None
    interleaved: bool = False
    """Whether sides take turns, A B B A, instead of one after the other."""
    shared_prompts: bool = False
    """Whether sides get the very same prompts; else each has marks of its own, so that none warms up another."""


@dataclass(frozen=True, slots=True)
class Part:
    """One phase before it is run."""

    side: Side
    turn: int
    rate: float | None
    group: Group
    name: Name
    due_s: tuple[float, ...]
    mark: str

    @property
    def label(self) -> str:
        pace = "own times" if self.rate is None else f"{self.rate:g}/s"
        return f"{self.side.name} {self.group.name} {pace} {self.name}"


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase that was run. `counted` is what the engines' counters said of it, whoever asked."""

    part: Part
    answers: tuple[Answer, ...]
    counted: Counted | None
    complete: bool = True


Watch = Callable[[Part], Callable[[Answer], None]]
"""Is told of every phase that begins, and gives what is told of its answers."""


def parts(sides: Sequence[Side], plan: Plan) -> Iterator[Part]:
    """Every phase in the order they are run."""
    if not plan.interleaved:
        for side in sides:
            for group in side.groups:
                for rate in _paces(group, plan):
                    yield from _cold_and_warm(side, 0, rate, group, plan)
        return
    for place, group in enumerate(sides[0].groups):
        for rate in _paces(group, plan):
            for turn in range(2):
                for side in sides if turn == 0 else tuple(reversed(sides)):
                    yield from _cold_and_warm(side, turn, rate, side.groups[place], plan)


async def run(
    client: aiohttp.ClientSession,
    planned: Sequence[Part],
    plan: Plan,
    watch: Watch,
    done: list[Phase],
    *,
    counting: aiohttp.ClientSession,
) -> None:
    """Run them, adding each to `done`; cancelled, what there is of the phase under way is added too.

    `counting` reads the engines' counters: where these are elsewhere, it carries no key of the server's.
    """
    for part in planned:
        answers: list[Answer] = []
        heard = watch(part)

        def told(answer: Answer, answers: list[Answer] = answers, heard: Callable[[Answer], None] = heard) -> None:
            answers.append(answer)
            heard(answer)

        before = await counted(counting, part.side.metrics_urls)
        difference = None
        complete = False
        try:
            await driven(client, part.side.about.url, asks(part), told, in_flight=plan.in_flight)
            complete = True
            after = await counted(counting, part.side.metrics_urls)
            difference = after.since(before) if after is not None and before is not None else None
        finally:
            if answers:
                done.append(Phase(part, tuple(sorted(answers, key=_number)), difference, complete))


async def tried(client: aiohttp.ClientSession, side: Side, plan: Plan) -> None:
    """Ask once, unmeasured, on every path, so that a server's first request is none of the figures.

    Raises `RouterError` when the server understands the request and does not take it: then none would be taken. Its
    words are only told of made prompts, since it may repeat what it was sent.
    """
    seen: set[str] = set()
    for group in side.groups:
        prompt = group.prompt(0, mark_of(plan.run, "tried", side.name))
        if prompt.path in seen:
            continue
        seen.add(prompt.path)
        headers = {"Content-Type": "application/json", **prompt.headers}
        try:
            url = side.about.url + prompt.path
            async with client.post(url, data=prompt.body, headers=headers, allow_redirects=False) as answer:
                told = (await answer.read()).decode("utf-8", "replace")
        except (aiohttp.ClientError, TimeoutError, OSError):
            continue  # the phases tell of it, by kind
        if 400 <= answer.status < 500 and answer.status not in (408, 425, 429):
            words = f": {told.strip()[:300]}" if isinstance(group, Made) else ""
            raise RouterError(f"{side.about.url} answers {answer.status} to {prompt.path}{words}")


def asks(part: Part) -> Iterator[Ask]:
    """The requests of a phase; a body is made when it is needed."""
    for number, due_s in enumerate(part.due_s):
        prompt = part.group.prompt(number, part.mark)
        yield Ask(due_s, prompt.path, prompt.body, prompt.headers)


def due_times(rate: float, most: int | None, duration_s: float | None, seed: str) -> tuple[float, ...]:
    """Seconds of a Poisson process from its first request at 0, to the earlier of both ends."""
    draw = Random(seed)
    found: list[float] = []
    now_s = 0.0
    while (most is None or len(found) < most) and (duration_s is None or now_s < duration_s):
        found.append(now_s)
        now_s += draw.expovariate(rate)
    return tuple(found)


def _paces(group: Group, plan: Plan) -> Sequence[float | None]:
    return plan.rates or ((DEFAULT_RATE,) if group.times_s is None else (None,))


def _cold_and_warm(side: Side, turn: int, rate: float | None, group: Group, plan: Plan) -> Iterator[Part]:
    """Both phases, of the same requests at the same times."""
    due_s = _due(turn, rate, group, plan)
    words = (group.name, f"{rate}", f"{turn}", *(() if plan.shared_prompts else (side.name,)))
    mark = mark_of(plan.run, *words)
    yield Part(side, turn, rate, group, "cold", due_s, mark)
    yield Part(side, turn, rate, group, "warm", due_s, mark)


def _due(turn: int, rate: float | None, group: Group, plan: Plan) -> tuple[float, ...]:
    limits = [limit for limit in (plan.requests, group.requests) if limit is not None]
    most = min(limits) if limits else None
    if rate is not None:
        return due_times(rate, most, plan.duration_s, f"{plan.seed} {group.name} {rate} {turn}")
    times = list(group.times_s or ())[:most]
    return tuple(time_s for time_s in times if plan.duration_s is None or time_s < plan.duration_s)


def _number(answer: Answer) -> int:
    return answer.number
