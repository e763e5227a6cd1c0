"""What any policy must do, ours or yours: `check(lambda: MyPolicy())` raises `AssertionError` naming what it broke.

For plug-in authors' tests: every check takes a factory of fresh policies and needs nothing but this package.
"""

import random
from collections.abc import Callable, Sequence
from copy import deepcopy

from msgspec.structs import replace

from policies.keys import Keys
from policies.types import Choice, Policy, Replica, Request

Factory = Callable[[], Policy]


def sample_request(number: int = 0, *, blocks: int = 20) -> Request:
    """A plausible request; two of the same number are equal."""
    draw = random.Random(number)
    keys = tuple(draw.randbytes(16) for _ in range(blocks))
    return Request(
        id=str(number),
        route="/v1/chat/completions",
        model="m",
        tenant="",
        user=f"u{number % 50}",
        session=None,
        prompt_tokens=blocks * 16 + 5,
        max_output_tokens=None,
        blocks=keys,
        block_tokens=16,
    )


def sample_replicas(number: int = 0, *, count: int = 4) -> tuple[Replica, ...]:
    """Replicas in a plausible state; two of the same number are equal."""
    draw = random.Random(number)
    return tuple(
        Replica(
            name=f"r{position}",
            in_flight=draw.randrange(20),
            pending_prefill_tokens=draw.randrange(10_000),
            matched_blocks=draw.choice([0, 0, draw.randrange(20)]),
            shared_blocks=4,
            held_blocks=draw.randrange(5_000),
            capacity_blocks=5_000,
            weight=draw.choice([1.0, 2.0]),
        )
        for position in range(count)
    )


def _name(choice: Choice | str) -> str:
    return choice if isinstance(choice, str) else choice.replica


def _chosen(policy: Policy, views: Sequence[tuple[Request, tuple[Replica, ...]]]) -> list[str]:
    return [_name(policy.choose(request, replicas)) for request, replicas in views]


def chooses_what_is_offered(factory: Factory) -> None:
    """The choice is one of the replicas given, also when the set changes from call to call."""
    policy = factory()
    draw = random.Random(1)
    for number in range(300):
        replicas = tuple(draw.sample(sample_replicas(number, count=8), draw.randrange(1, 9)))
        chosen = _name(policy.choose(sample_request(number), replicas))
        offered = [replica.name for replica in replicas]
        assert chosen in offered, f"chose {chosen!r}, which was not among {offered}"  # noqa: S101


def works_with_unknowns(factory: Factory) -> None:
    """Nothing optional is needed: no user, no session, no blocks, no capacity, no report of the engine."""
    policy = factory()
    bare = replace(sample_request(), user=None, session=None, blocks=(), prompt_tokens=0)
    replicas = tuple(replace(replica, capacity_blocks=None, matched_blocks=0) for replica in sample_replicas())
    chosen = _name(policy.choose(bare, replicas))
    assert chosen in [replica.name for replica in replicas], f"chose {chosen!r} for a bare request"  # noqa: S101


def works_with_one(factory: Factory) -> None:
    """A fleet of one is served by the one."""
    chosen = _name(factory().choose(sample_request(), sample_replicas(count=1)))
    assert chosen == "r0", f"chose {chosen!r} of one replica"  # noqa: S101


def repeats_itself(factory: Factory) -> None:
    """Same factory, same history, same choices: a decision can be explained and replayed."""
    views = [(sample_request(number), sample_replicas(number)) for number in range(300)]
    first, second = _chosen(factory(), views), _chosen(factory(), views)
    assert first == second, "two fresh policies chose differently from the same history"  # noqa: S101


def goes_on_in_a_copy(factory: Factory) -> None:
    """A deep copy chooses as the policy would and moves nothing of it: a dry run (`router explain`) asks a copy."""
    views = [(sample_request(number), sample_replicas(number)) for number in range(100)]
    policy = factory()
    _chosen(policy, views[:50])
    foretold = _chosen(deepcopy(policy), views[50:])
    assert foretold == _chosen(policy, views[50:]), "a copy chose differently, or its choices moved the policy"  # noqa: S101


def takes_packed_keys(factory: Factory) -> None:
    """A prompt's keys come as a tuple or packed (`policies.keys`): the choices are the same, those of a copy too."""
    views = [(sample_request(number, blocks=number % 40 + 1), sample_replicas(number)) for number in range(100)]
    packed = [(replace(request, blocks=Keys(b"".join(request.blocks))), replicas) for request, replicas in views]
    policy = factory()
    chosen = _chosen(policy, packed[:50]) + _chosen(deepcopy(policy), packed[50:])
    assert chosen == _chosen(factory(), views), "packed keys were chosen for differently than a tuple of them"  # noqa: S101


def uses_every_idle_replica(factory: Factory) -> None:
    """New users over equal idle replicas reach all of them: no favourite by list order."""
    policy = factory()
    idle = [replace(replica, in_flight=0, pending_prefill_tokens=0, matched_blocks=0, weight=1.0, held_blocks=0)
            for replica in sample_replicas(count=4)]  # fmt: skip
    counts = dict.fromkeys([replica.name for replica in idle], 0)
    for number in range(400):
        request = replace(sample_request(number), user=f"user-{number}")
        counts[_name(policy.choose(request, tuple(idle)))] += 1
    assert min(counts.values()) > 0, f"some equal idle replica was never chosen: {counts}"  # noqa: S101


CHECKS = (
    chooses_what_is_offered,
    works_with_unknowns,
    works_with_one,
    repeats_itself,
    goes_on_in_a_copy,
    takes_packed_keys,
    uses_every_idle_replica,
)


def check(factory: Factory) -> None:
    """Run every check on fresh policies of `factory`."""
    for one in CHECKS:
        one(factory)
