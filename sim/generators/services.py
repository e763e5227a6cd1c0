"""Single prompts from programs: an API behind a few hot heads, and code completion that comes in bursts.

`api` is made after the Qwen-Bailian business trace (KVCache in the wild, ATC'25), `bursts` after arrivals and lengths
of Azure's code trace of 2023 (Splitwise, ISCA 2024), which tell nothing of prefixes: there, they are our assumption.
The one rule: no session goes on; what repeats is what programs put before every prompt.
"""

import itertools
import math
import random
from collections.abc import Iterator
from statistics import NormalDist

from sim.arrivals import Arrival
from sim.generators.draws import Lengths, Zipf, poisson, stream
from sim.prompts_of_runs import Segment
from sim.sessions import Opening, Options, Turn, paced

APPS = 400
CALLERS = 5_000
DEVELOPERS = 200

_FRESH = 1_000_000
_HEAD = NormalDist(math.log(405), 0.85)  # of the logarithm of tokens
_INPUT = Lengths(88, 1.8, 1, 12_000)
_OUTPUT = Lengths(55, 1.0, 1, 2_000)
_POPULARITY = 1.2
_GOLDEN = (math.sqrt(5) - 1) / 2


def api(options: Options) -> Iterator[Arrival]:
    """Short prompts of many programs, a few of which ask nearly everything."""
    lengths, who = stream(options.seed, "api lengths"), stream(options.seed, "api programs")
    contents = itertools.count(_FRESH)
    heads = [round(math.exp(_HEAD.inv_cdf((0.5 + place * _GOLDEN) % 1))) for place in range(1, APPS + 1)]
    popular = Zipf(APPS, _POPULARITY)
    openings = (_call(popular.of(who), who.randrange(CALLERS), heads, contents, lengths) for _ in itertools.count())
    return paced(openings, poisson(stream(options.seed, "arrivals"), options.rate), options)


def _call(app: int, user: int, heads: list[int], contents: Iterator[int], lengths: random.Random) -> Opening:
    turn = Turn(((next(contents), _INPUT.of(lengths)),), _OUTPUT.of(lengths))
    return Opening(((1 + app, heads[app]),), (turn,), user, f"app-{app}")


# -- bursts ------------------------------------------------------------------------------------------------------------

_GUIDE = (1, 256)
_FILE = Lengths(880, 0.85, 32, 6_000)
_CURSOR = Lengths(260, 1.0, 8, 4_000)
_COMPLETION = Lengths(13, 1.22, 1, 900)
_STAYS = 0.7  # of requests, come from the file of the developer's request before
_PHASE_S = 60.0
_QUIET = 0.35  # of phases bring nothing


def bursts(options: Options) -> Iterator[Arrival]:
    """Code completion: a few minutes with a flood of short answers, then nothing for a while."""
    lengths, who = stream(options.seed, "completion lengths"), stream(options.seed, "developers")
    contents = itertools.count(_FRESH)
    files: dict[int, Segment] = {}
    openings = (_completion(files, who, contents, lengths) for _ in itertools.count())
    return paced(openings, bursty(stream(options.seed, "arrivals"), options.rate), options)


def bursty(draw: random.Random, rate: float) -> Iterator[float]:
    """Times of a Poisson process whose rate is drawn anew every minute: often none at all, sometimes several times."""
    shape, start_s = 1.6, 0.0
    scale = rate / (1 - _QUIET) / shape
    while True:
        now_s, end_s = start_s, start_s + _PHASE_S
        busy = draw.random() >= _QUIET
        minute_rate = max(draw.gammavariate(shape, scale), 1e-9) if busy else 0.0
        while minute_rate and (now_s := now_s + draw.expovariate(minute_rate)) < end_s:
            yield now_s
        start_s = end_s


def _completion(
    files: dict[int, Segment], who: random.Random, contents: Iterator[int], lengths: random.Random
) -> Opening:
    user = who.randrange(DEVELOPERS)
    if user not in files or who.random() >= _STAYS:
        files[user] = (next(contents), _FILE.of(lengths))
    turn = Turn((files[user], (next(contents), _CURSOR.of(lengths))), _COMPLETION.of(lengths))
    return Opening((_GUIDE,), (turn,), user, "completion")
