"""Which models are served, and where their chains start."""

import pytest

from router.errors import UnknownModel
from router.models import Card, Models, cards
from router.openai import Ask
from router.prompt_bodies import Prompt
from router.readers import TINY, local_reader

_ENTRIES = [
    {"id": "big", "root": "org/Big", "parent": None, "max_model_len": 4096},
    {"id": "alias", "root": "org/Big", "parent": None},
    {"id": "sql", "root": "/adapters/sql", "parent": "big"},
    {"object": "no id"},
]


def _models(entries: list[dict[str, object]]) -> Models:
    models = Models(lambda root: None)
    models.learnt(cards(entries))
    return models


def test_cards_tell_adapters_from_bases() -> None:
    assert cards(_ENTRIES) == [
        Card("big", "org/Big", "", 4096),
        Card("alias", "org/Big", "", None),
        Card("sql", "org/Big", "sql", None),
    ]


def test_two_names_of_one_model_share_a_cache_and_an_adapter_does_not() -> None:
    models = _models(_ENTRIES)
    big, alias, sql = (models.served(name).chain.identity() for name in ("big", "alias", "sql"))

    assert big == alias
    assert sql != big


def test_an_unknown_model_is_told_what_is_served() -> None:
    with pytest.raises(UnknownModel, match="no replica serves 'bigg'; served: big, alias, sql") as caught:
        _models(_ENTRIES).served("bigg")

    assert (caught.value.status, caught.value.param, caught.value.code) == (404, "model", "model_not_found")


def test_without_a_name_the_only_model_is_meant() -> None:
    assert _models(_ENTRIES).served(None).name == "big"
    assert _models([{"id": "a"}, {"id": "b"}]).served(None).name == ""


def test_while_no_replica_has_answered_any_name_passes() -> None:
    assert _models([]).served("anything").name == "anything"


async def test_a_model_without_a_reader_yet_is_served_by_load() -> None:
    prompt = await _models(_ENTRIES).served("big").read(Ask("/v1/completions", {"prompt": "x"}, "big", None, False))

    assert (prompt.blocks, prompt.basis) == ((), "none")


async def _read(route: str, body: dict[str, object]) -> Prompt:
    models = Models(lambda root: reader)
    reader = local_reader(TINY, block_tokens=4)
    models.learnt(cards(_ENTRIES))
    return await models.served("big").read(Ask(route, body, "big", None, False))


async def test_a_batch_counts_all_its_prompts_and_is_looked_up_by_its_longest() -> None:
    short, long = list(range(8)), list(range(100, 121))
    alone = await _read("/v1/completions", {"prompt": long})
    batch = await _read("/v1/completions", {"prompt": [short, long]})

    assert (batch.tokens, batch.blocks) == (29, alone.blocks)
    assert (batch.alone, alone.alone) == (False, True)
    assert len(alone.blocks) == 5


async def test_what_a_prompt_fills_but_cannot_read_is_told_apart() -> None:
    ids = list(range(16))
    plain = await _read("/v1/completions", {"prompt": ids})
    scored = await _read("/v1/completions", {"prompt": ids, "prompt_logprobs": 1})

    assert [len(plain.blocks), len(plain.stored)] == [3, 1]
    assert (scored.tokens, scored.blocks, scored.basis) == (16, (), "none")
    assert scored.stored == plain.blocks + plain.stored
    assert scored.reason == "prompt log probabilities are computed past the cache"
