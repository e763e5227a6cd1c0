"""Traffic for the simulator and the demo: open-loop arrivals, and the `lesson` preset of prefix caching.

The one rule: everything follows from the seed. The lesson is 200 users of 6 turns behind one system prompt; its table
is scored on a plain LRU store of 16-token blocks that serves one request at a time, without a scheduler, so that the
numbers can be checked by hand. The same turns can be sent to the real engine model; that is not done here.
"""

import random
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from policies.blocks import Chain, block_keys, hittable_blocks, packed

BLOCK_TOKENS = 16
USERS, TURNS_PER_USER, TENANTS = 200, 6, 10
SYSTEM_TOKENS = 1200
VOCABULARY = 50_000

Salt = Literal["none", "user", "tenant"]
Stamp = Literal["none", "first", "last"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a conversation: its prompt ends with `message_tokens` new ones."""

    time_s: float
    user: int
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    message_tokens: int

    @property
    def answer_tokens(self) -> int:
        return len(self.answer_ids)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the lesson's table. `blocks` is the capacity of each replica."""

    name: str
    blocks: int
    replicas: int = 1
    route: Literal["turn", "user"] = "turn"
    salt: Salt = "none"
    stamp: Stamp = "none"


@dataclass(frozen=True, slots=True)
class Score:
    """Prompt tokens in all, and those no cache had."""

    total_tokens: int
    computed_tokens: int

    @property
    def hit_fraction(self) -> float:
        return 1 - self.computed_tokens / self.total_tokens


LESSON = (
    Scenario("no cache", 0),
    Scenario("shared system prompt, stable prefix", 20_000),
    Scenario("same, cache 4x smaller", 5_000),
    Scenario("same, too small for the sessions", 1_000),
    Scenario("a timestamp before the system prompt", 20_000, stamp="first"),
    Scenario("a salt per user", 20_000, salt="user"),
    Scenario("the timestamp just before the new message", 20_000, stamp="last"),
    Scenario("a salt per tenant, 10 tenants of 20 users", 20_000, salt="tenant"),
    Scenario("4 replicas, every turn to the next one", 5_000, replicas=4),
    Scenario("4 replicas, every user to their own", 5_000, replicas=4, route="user"),
)


def arrivals(rate_per_s: float, seed: int) -> Iterator[float]:
    """Seconds of a Poisson process, without end; clients do not wait for answers."""
    if rate_per_s <= 0:
        raise ValueError(f"a rate must be more than 0 per second, not {rate_per_s}")
    draw = random.Random(seed)
    now_s = 0.0
    while True:
        now_s += draw.expovariate(rate_per_s)
        yield now_s


def lesson_turns(seed: int = 1, rate_per_s: float = 10.0) -> list[Turn]:
    """The lesson's 1,200 requests in the order they arrive."""
    draw = random.Random(seed)
    histories = [_tokens(draw, SYSTEM_TOKENS)] * USERS
    order = [user for user in range(USERS) for _ in range(TURNS_PER_USER)]
    draw.shuffle(order)
    turns = []
    for user, time_s in zip(order, arrivals(rate_per_s, seed), strict=False):
        message = _tokens(draw, draw.randint(20, 200))
        answer = _tokens(draw, draw.randint(50, 400))
        prompt = histories[user] + message
        histories[user] = prompt + answer
        turns.append(Turn(time_s, user, prompt, answer, len(message)))
    return turns


def scored(scenario: Scenario, turns: Sequence[Turn]) -> Score:
    """Send the turns through plain LRU stores, one after the other."""
    stores = [LruStore(scenario.blocks) for _ in range(scenario.replicas)]
    total = computed = 0
    for number, turn in enumerate(turns):
        prompt = stamped(turn, number, scenario.stamp)
        place = turn.user if scenario.route == "user" else number
        root = Chain.root("lesson", salt=salt_of(turn, scenario.salt))
        hit = stores[place % scenario.replicas].served(root, prompt, turn.answer_ids, BLOCK_TOKENS)
        total += len(prompt)
        computed += len(prompt) - hit
    return Score(total, computed)


class LruStore:
    """Blocks by key, the least recently hit one forgotten first. No pins, no copies, no order within a chain."""

    def __init__(self, blocks: int) -> None:
        self._capacity = blocks
        self._held: OrderedDict[bytes, None] = OrderedDict()

    def served(self, root: Chain, prompt: Sequence[int], answer: Sequence[int], block_tokens: int) -> int:
        """Serve one request; the prompt tokens that were here."""
        keys = block_keys(root, packed(prompt) + packed(answer), block_tokens)
        return block_tokens * self.hit(keys, hittable_blocks(len(prompt), block_tokens))

    def hit(self, keys: Sequence[bytes], hittable: int) -> int:
        """Serve one request of these blocks; how many of the hittable ones were here."""
        hits = 0
        for key in keys[:hittable]:
            if key not in self._held:
                break
            self._held.move_to_end(key)
            hits += 1
        for key in keys[hits:]:
            self._held.setdefault(key)
            if len(self._held) > self._capacity:
                self._held.popitem(last=False)
        return hits


def _tokens(draw: random.Random, count: int) -> tuple[int, ...]:
    return tuple(draw.randrange(VOCABULARY) for _ in range(count))


def stamped(turn: Turn, number: int, stamp: Stamp) -> tuple[int, ...]:
    """The prompt of the `number`-th request with its two tokens of timestamp, which no history keeps."""
    time = (number % 997, number // 997)
    if stamp == "first":
        return time + turn.prompt_ids
    if stamp == "last":
        kept = len(turn.prompt_ids) - turn.message_tokens
        return turn.prompt_ids[:kept] + time + turn.prompt_ids[kept:]
    return turn.prompt_ids


def salt_of(turn: Turn, salt: Salt, tenants: int = TENANTS) -> str:
    """What keeps the turn's blocks apart from others'."""
    if salt == "user":
        return f"user {turn.user}"
    if salt == "tenant":
        return f"tenant {turn.user % tenants}"
    return ""
