"""Traffic by name: what `router sim --preset` offers, where its numbers come from, and a fleet it is interesting on.

The one rule: a workload is a function of its name and options, and gone through again it is the same to the byte; no
preset keeps its requests in memory, except the lesson's 1,200. Not here: how the traffic is made (`generators`).
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, get_args, get_type_hints

from sim.arrivals import Arrival, Workload
from sim.errors import OptionError
from sim.generators.agents import agents
from sim.generators.chats import chat, docs, tools
from sim.generators.lesson import lesson
from sim.generators.services import api, bursts
from sim.generators.tenants import PUBLISHED_RATE, tenants, tenants_37, tenants_stages
from sim.sessions import Options
from sim.workload import TURNS_PER_USER, USERS

LESSON_REQUESTS = USERS * TURNS_PER_USER


class PresetError(OptionError):
    """No such preset, or an option that it can't take."""


@dataclass(frozen=True, slots=True)
class PresetDefaults:
    """A fleet on which the choice of a policy matters. `blocks` of one replica, of 16 tokens, the null block too."""

    replicas: int
    blocks: int
    profile: str


@dataclass(frozen=True, slots=True)
class Preset:
    """One kind of traffic."""

    summary: str
    source: str
    """Where its statistics come from."""
    generate: Callable[[Options], Iterator[Arrival]]
    options: Options
    """What holds when nothing is asked."""
    defaults: PresetDefaults
    has_turns: bool = True
    most_requests: int | None = None
    notes: tuple[str, ...] = ()


_8B = "llama-3.1-8b-h100"
_32B = "qwen3-32b-h100-x2"
_70B = "llama-3.1-70b-h100-x4"
_ANSWERS = "answers have 450 tokens, which the published throughput tells, not the 1,000 that were allowed"
_8B_BLOCKS = 28_000  # what fits beside the weights of an 8B model on 80 GB

PRESETS: dict[str, Preset] = {
    "lesson": Preset(
        "200 users of 6 turns behind one system prompt of 1,200 tokens",
        "the teaching program's own traffic, token for token",
        lesson,
        Options(LESSON_REQUESTS, 20.0),
        PresetDefaults(4, 5_000, _8B),
        has_turns=False,
        most_requests=LESSON_REQUESTS,
    ),
    "chat": Preset(
        "long multi-turn chat; one short head for all, three of four conversations have one turn",
        "statistics of the Mooncake conversation trace (FAST'25 release)",
        chat,
        Options(10_000, 8.0),
        PresetDefaults(8, _8B_BLOCKS, _8B),
    ),
    "docs": Preset(
        "several questions on long documents, some documents shown to several users",
        "statistics of the Mooncake synthetic trace (FAST'25 release)",
        docs,
        Options(10_000, 8.0),
        PresetDefaults(8, _8B_BLOCKS, _8B),
    ),
    "tools": Preset(
        "two tools with long heads and short questions beside chat",
        "published statistics of the Mooncake tool and agent trace (FAST'25 release)",
        tools,
        Options(10_000, 14.0),
        PresetDefaults(8, _8B_BLOCKS, _8B),
    ),
    "agents": Preset(
        "sessions of coding agents with thinking in between, nearly all of a prompt is history",
        "statistics of the WEKA Claude Code sessions (kv-cache-tester), 128 k tokens of context, pauses up to 60 s",
        agents,
        Options(5_000, 1.05, replay="think"),
        PresetDefaults(8, 19_208, _32B),
        notes=("how many tools of an agent's head are everybody's is not in the source: 75 % of it is assumed",),
    ),
    "tenants": Preset(
        "150 tenants of 5 fixed prompts behind 6,000 tokens each, caches 73 % full of them",
        "llm-d kv-cache benchmarking, 73-capacity",
        tenants,
        Options(10_000, 20.0),
        PresetDefaults(8, 19_208, _32B),
        has_turns=False,
        notes=(_ANSWERS,),
    ),
    "tenants-37": Preset(
        "83 tenants of 3 fixed prompts behind 8,000 tokens each, caches 37 % full of them, at a constant rate",
        "llm-d kv-cache benchmarking, 37-capacity",
        tenants_37,
        Options(5_000, 10.0),
        PresetDefaults(4, 28_836, _70B),
        has_turns=False,
        notes=(_ANSWERS,),
    ),
    "tenants-stages": Preset(
        "the load of `tenants` in the 17 stages of 3 to 60 requests per second of the published run",
        "llm-d kv-cache benchmarking, 73-capacity",
        tenants_stages,
        Options(17_084, PUBLISHED_RATE),
        PresetDefaults(8, 19_208, _32B),
        has_turns=False,
        most_requests=17_084,
        notes=(
            _ANSWERS,
            "15 minutes pass after each stage, so throughput over the whole run says nothing",
        ),
    ),
    "api": Preset(
        "short single prompts of 400 programs; a few hot heads",
        "published statistics of the Qwen-Bailian business trace (KVCache in the wild, ATC'25)",
        api,
        Options(20_000, 120.0),
        PresetDefaults(4, 5_000, _8B),
        has_turns=False,
    ),
    "bursts": Preset(
        "code completion that comes in floods and pauses",
        "arrivals and lengths of Azure's code trace of 2023 (Splitwise, ISCA 2024)",
        bursts,
        Options(20_000, 40.0),
        PresetDefaults(4, 5_000, _8B),
        has_turns=False,
        notes=("the source tells nothing of prefixes: a file that stays open for three requests is assumed",),
    ),
}


def preset(name: str, **options: object) -> Workload:
    """The traffic called `name`; options are the fields of `sim.sessions.Options`, as values or as text.

    Raises `PresetError` for a name or an option that is not there, and for a value that an option can't take.
    """
    found = preset_of(name)
    chosen = _checked(name, found, options)
    arrivals: Iterable[Arrival] = _Anew(found.generate, chosen)
    if found.generate is lesson:
        arrivals = tuple(arrivals)
    return Workload(name, chosen.block_tokens, arrivals, chosen.requests, notes=found.notes)


def preset_of(name: str) -> Preset:
    """What is known of a preset. Raises `PresetError` when there is none of this name."""
    found = PRESETS.get(name)
    if found is None:
        raise PresetError(f"no preset is named {name!r}{_meant(name, PRESETS)} There are: {', '.join(PRESETS)}")
    return found


@dataclass(frozen=True, slots=True)
class _Anew:
    """Requests that are made again by whoever goes through them."""

    generate: Callable[[Options], Iterator[Arrival]]
    options: Options

    def __iter__(self) -> Iterator[Arrival]:
        return self.generate(self.options)


_TYPES = get_type_hints(Options)
_WORDS = {"on": True, "off": False, "true": True, "false": False}


def _checked(name: str, found: Preset, given: Mapping[str, object]) -> Options:
    known = [field.name for field in fields(Options)]
    for option in given:
        if option not in known:
            raise PresetError(
                f"preset {name!r} has no option {option!r}{_meant(option, known)} It has: {', '.join(known)}"
            )
    chosen = replace(found.options, **{option: _value(option, value) for option, value in given.items()})
    if found.most_requests is not None and chosen.requests > found.most_requests:
        raise PresetError(
            f"preset {name!r} has {found.most_requests} requests, not {chosen.requests}: ask for fewer or none"
        )
    if chosen.replay == "think" and not found.has_turns:
        raise PresetError(f"preset {name!r} knows of no thinking between requests: leave replay at timestamps")
    return chosen


def _value(option: str, given: object) -> Any:
    wanted = _TYPES[option]
    if choices := get_args(wanted):
        if given not in choices:
            raise PresetError(
                f"{option} can't be {given!r}{_meant(str(given), choices)} It is one of: {', '.join(choices)}"
            )
        return given
    if wanted is bool:
        value = given if isinstance(given, bool) else _WORDS.get(str(given).lower())
        if value is None:
            raise PresetError(f"{option} can't be {given!r}: say on or off")
        return value
    least = 0 if option in ("rate", "seed") else 1
    try:
        number = wanted(given)
    except (TypeError, ValueError):
        number = None
    if number is None or not least <= number < float("inf") or (option == "rate" and not number):
        kind = "a number above 0" if option == "rate" else f"a whole number from {least} on"
        raise PresetError(f"{option} can't be {given!r}: give {kind}")
    return number


def _meant(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.4)
    return f"; did you mean {close[0]!r}?" if close else "."
