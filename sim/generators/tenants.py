"""The fully specified loads of llm-d: many tenants, each with a long system prompt and a few fixed questions.

    73 %    150 groups of 5 prompts: 6,000 tokens of system prompt, 1,200 of question
    37 %     83 groups of 3 prompts: 8,000 and 1,000

As inference-perf's `shared_prefix` does, all prompts are put in one seeded order and asked again and again in it (llm-d
kv-cache benchmarking, 73-capacity and 37-capacity). The one rule: the load is as published; the rate is the user's.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sim.arrivals import Arrival
from sim.generators.draws import poisson, stream
from sim.sessions import Opening, Options, Turn, paced

STAGES_73 = (
    (15, 50), (3, 20), (10, 20), (15, 20), (20, 38), (22, 34), (25, 30), (30, 25), (35, 21), (40, 38), (43, 36),
    (46, 33), (49, 30), (52, 29), (55, 27), (57, 26), (60, 25),
)  # fmt: skip
"""Requests per second and seconds of each stage of the published run, the first to warm up: 17,084 requests."""

DRAIN_S = 900.0
"""A pause after each stage, in which all of its requests end."""


@dataclass(frozen=True, slots=True)
class _Load:
    groups: int
    prompts: int
    system_tokens: int
    question_tokens: int
    answer_tokens: int

    def openings(self, options: Options) -> Iterator[Opening]:
        """Every prompt again and again, in the same order."""
        order = [(group, prompt) for group in range(self.groups) for prompt in range(self.prompts)]
        stream(options.seed, "order of prompts").shuffle(order)
        for group, prompt in itertools.cycle(order):
            question = (1_000_000 + group * self.prompts + prompt, self.question_tokens)
            turn = Turn((question,), self.answer_tokens)
            user = group * self.prompts + prompt
            yield Opening(((1 + group, self.system_tokens),), (turn,), user, "", f"t{group}")


ANSWER_TOKENS = 450
"""The load asks for 1,000 at most; the throughput published for its stages of 3 to 20 requests per second is that of
380 to 460 tokens a request."""

_LOAD_73 = _Load(150, 5, 6_000, 1_200, ANSWER_TOKENS)
_LOAD_37 = _Load(83, 3, 8_000, 1_000, ANSWER_TOKENS)


def tenants(options: Options) -> Iterator[Arrival]:
    """llm-d's 73 % load as Poisson arrivals of one rate."""
    return paced(_LOAD_73.openings(options), poisson(stream(options.seed, "arrivals"), options.rate), options)


def tenants_37(options: Options) -> Iterator[Arrival]:
    """llm-d's 37 % load: a constant rate."""
    return paced(_LOAD_37.openings(options), (place / options.rate for place in itertools.count()), options)


def tenants_stages(options: Options) -> Iterator[Arrival]:
    """llm-d's 73 % load in its published stages. The rate scales them; 20 is as published."""
    return paced(_LOAD_73.openings(options), staged(options), options)


def staged(options: Options) -> Iterable[float]:
    """Poisson times of the stages, as many in each as it has seconds times its rate."""
    draw = stream(options.seed, "arrivals")
    start_s = 0.0
    for rate, seconds in STAGES_73:
        times = itertools.islice(poisson(draw, rate * options.rate / PUBLISHED_RATE), rate * seconds)
        last_s = start_s
        for time_s in times:
            last_s = start_s + time_s
            yield last_s
        start_s = last_s + DRAIN_S


PUBLISHED_RATE = 20.0
"""The rate of a staged workload at which its stages are those that were published."""
