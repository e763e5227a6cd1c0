"""Which models the fleet serves, and what their prompts are made of.

Learnt from the replicas' `/v1/models` (vLLM 0.32: a base model has `parent: null`, a LoRA adapter names its base). Two
served names of one model share its cache, so a chain is seeded by the model's `root`, an adapter's by its own name too.
The one rule: a request goes only to replicas that serve its model; an unknown model is an error that lists what is.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from policies.blocks import Chain
from policies.keys import continued
from policies.values import Value
from router.errors import UnknownModel
from router.openai import CHAT, Ask, batched, reads_cache, samples
from router.prompt_bodies import PLAIN
from router.prompts import Prompt, PromptReader


@dataclass(frozen=True, slots=True)
class Card:
    """What `/v1/models` says of one name."""

    id: str
    root: str
    adapter: str
    """The adapter's name; empty for a base model."""
    max_model_tokens: int | None


def cards(models: Iterable[Mapping[str, Any]]) -> list[Card]:
    """The cards in the `data` of one `/v1/models` answer; entries without an id are passed over."""
    entries = [entry for entry in models if isinstance(entry, Mapping) and isinstance(entry.get("id"), str)]
    roots = {entry["id"]: str(entry.get("root") or entry["id"]) for entry in entries}
    found = []
    for entry in entries:
        parent = entry.get("parent")
        adapter = entry["id"] if isinstance(parent, str) and parent else ""
        root = roots.get(parent, parent) if adapter else roots[entry["id"]]
        length = entry.get("max_model_len")
        found.append(Card(entry["id"], str(root), adapter, length if isinstance(length, int) else None))
    return found


_NO_OBJECT: Final = Prompt(0, (), "none", "the body is not a JSON object")
_NO_TOKENIZER: Final = Prompt(0, (), "none", "no tokenizer is ready for this model yet")


class Served(Value, frozen=True):
    """One model name a request may ask for: how its prompt is read and where its chains start."""

    name: str
    reader: PromptReader | None
    chain: Chain

    def at_once(self, ask: Ask) -> Prompt | None:
        """The prompt of a chat that is read in a few microseconds, or none to read; None of what `read` takes."""
        if ask.body is None:
            return _NO_OBJECT
        if self.reader is None:
            return _NO_TOKENIZER
        if ask.route != CHAT or not PLAIN.issuperset(ask.body):
            return None
        return self.reader.at_once(ask.body, self.chain)

    async def read(self, ask: Ask) -> Prompt:
        if ask.body is None:
            return _NO_OBJECT
        if self.reader is None:
            return _NO_TOKENIZER
        batch = batched(ask.route, ask.body)
        if batch is not None:
            prompt = await self.reader.read(ask.route, batch.body, self.chain)
            return replace(prompt, tokens=batch.tokens(prompt.tokens), alone=False, answers=0)
        prompt = await self.reader.read(ask.route, ask.body, self.chain)
        if prompt.blocks and not reads_cache(ask.route, ask.body):
            reason = "prompt log probabilities are computed past the cache"
            return Prompt(prompt.tokens, (), "none", reason, continued(prompt.blocks, prompt.stored))
        answers = samples(ask.body)
        return prompt if answers == 1 else replace(prompt, alone=False, answers=answers)


class Models:
    """The names served at the moment, each with its reader."""

    def __init__(self, reader_of: Callable[[str], PromptReader | None]) -> None:
        self._reader_of = reader_of
        self._cards: dict[str, Card] = {}
        self._chains: dict[str, Chain] = {}

    def __repr__(self) -> str:
        return f"<Models {', '.join(sorted(self._cards)) or 'none yet'}>"

    def learnt(self, found: Iterable[Card]) -> None:
        """Replace what is known by what the replicas say now."""
        self._cards = {card.id: card for card in found}
        self._chains = {card.id: Chain.root(card.root, adapter=card.adapter) for card in self._cards.values()}

    @property
    def roots(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(card.root for card in self._cards.values()))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._cards)

    def served(self, name: str | None, salt: str = "") -> Served:
        """The model a request asks for. Without a name: any replica will do, and if there is one model, it is that.

        A tenant's `salt` starts chains of its own: no prediction is ever made from another tenant's prompts.

        Raises `UnknownModel` when the replicas are known and none serves `name`.
        """
        if name is None:
            bases = [card for card in self._cards.values() if not card.adapter]
            if not bases or len({card.root for card in bases}) > 1:
                return Served("", None, Chain.root("", salt=salt))
            name = bases[0].id
        card = self._cards.get(name)
        if card is None:
            if not self._cards:  # no replica has answered yet
                return Served(name, None, Chain.root(name, salt=salt))
            raise UnknownModel(f"no replica serves {name[:200]!r}; served: {', '.join(self._cards)}", param="model")
        chain = Chain.root(card.root, card.adapter, salt) if salt else self._chains[name]
        return Served(name, self._reader_of(card.root), chain)
