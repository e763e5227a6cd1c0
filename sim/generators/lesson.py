"""The lesson's turns as requests: the same token ids as in its table, hashed into blocks of any size.

The one rule: nothing is drawn here; everything is `workload.lesson_turns`.
"""

from collections.abc import Iterator

from policies.blocks import Chain, block_keys, packed
from sim.arrivals import Arrival
from sim.sessions import Options
from sim.workload import Stamp, lesson_turns, salt_of, stamped

_STAMP: dict[str, Stamp] = {"none": "none", "head": "first", "before-message": "last"}


def lesson(options: Options) -> Iterator[Arrival]:
    """200 users of 6 turns behind one system prompt, in a shuffled order, as Poisson arrivals."""
    stamp, block_tokens = _STAMP[options.volatile], options.block_tokens
    for number, turn in enumerate(lesson_turns(options.seed, options.rate)[: options.requests]):
        prompt = stamped(turn, number, stamp)
        root = Chain.root("lesson", salt=salt_of(turn, options.salt, options.tenants))
        said = prompt + turn.answer_ids if options.cache_outputs else prompt
        yield Arrival(
            number,
            turn.time_s,
            len(prompt),
            turn.answer_tokens,
            block_keys(root, packed(said), block_tokens),
            f"s{turn.user}",
            f"u{turn.user}",
            f"t{turn.user % options.tenants}",
        )
