"""EXACT is said only when a replica gave the very ids, and a difference names its probe."""

from pathlib import Path
from typing import Any

import pytest

from router.parity import PROBES, Parity, parity
from router.prompts import LocalReader, ReplicaReader, TextReader
from router.readers import TINY, local_reader
from router.templates import ChatTemplate


class Replica:
    """Answers `/tokenize` as a reader of its own does; refuses what it is told to refuse."""

    def __init__(self, reader: LocalReader, refused: tuple[str, ...] = ()) -> None:
        self._reader = reader
        self._refused = [PROBES[name] for name in refused]
        self.asked: list[dict[str, Any]] = []

    async def __call__(self, path: str, body: dict[str, Any]) -> Any:
        assert path == "/tokenize"
        self.asked.append(body)
        if {name: value for name, value in body.items() if name != "model"} in self._refused:
            raise OSError("400 Bad Request")
        ids = self._reader.token_ids("/v1/chat/completions" if "messages" in body else "/v1/completions", body)
        return {"tokens": ids, "count": len(ids)}


@pytest.fixture
def reader() -> LocalReader:
    return local_reader(TINY, block_tokens=16)


def changed(reader: LocalReader, old: str, new: str) -> LocalReader:
    """A reader whose template differs in one place."""
    assert reader.template is not None
    assert old in reader.template.source
    template = ChatTemplate(reader.template.source.replace(old, new))
    return LocalReader(reader.tokenizer, template, block_tokens=16)


async def test_equal_ids_are_exact(reader: LocalReader) -> None:
    replica = Replica(local_reader(TINY, block_tokens=16))
    told = await parity(reader, replica, "m")
    assert told == Parity(True, f"{len(PROBES)} of {len(PROBES)} probe prompts gave equal ids", len(PROBES), ())
    assert told.word == "EXACT"
    assert [body["model"] for body in replica.asked] == ["m"] * len(PROBES)
    assert all("prompt" in body or body["messages"] for body in replica.asked)


@pytest.mark.parametrize(
    ("old", "new", "different"),
    [
        ("Tools:", "Functions:", ("tools", "tool results")),
        ("message.tool_calls", "message.no_calls", ("tool results",)),
    ],
)
async def test_a_difference_names_its_probes(
    reader: LocalReader, old: str, new: str, different: tuple[str, ...]
) -> None:
    told = await parity(reader, Replica(changed(reader, old, new)), "m")
    assert (told.word, told.different) == ("APPROXIMATE", different)
    assert told.reason == f"different ids for: {', '.join(different)}"


async def test_what_the_replica_refuses_is_no_difference(reader: LocalReader) -> None:
    told = await parity(reader, Replica(reader, refused=("tools", "tool results")), "m")
    assert (told.exact, told.compared) == (True, len(PROBES) - 2)
    assert told.reason.endswith("the replica refused the rest")


@pytest.mark.parametrize("answer", [None, [], {}, {"tokens": None}, {"error": {}}])
async def test_no_answer_is_no_proof(reader: LocalReader, answer: Any) -> None:
    async def ask(path: str, body: Any) -> Any:
        return answer

    told = await parity(reader, ask, "m")
    assert told == Parity(False, "the replica's /tokenize did not answer", 0, ())


async def test_what_only_the_replica_can_read_is_a_difference(reader: LocalReader) -> None:
    without_template = LocalReader(reader.tokenizer, None, block_tokens=16)
    told = await parity(without_template, Replica(reader), "m")
    assert told.different == tuple(name for name, body in PROBES.items() if "messages" in body)


async def test_a_template_that_prints_the_date_is_told(reader: LocalReader) -> None:
    dated = changed(reader, "Tools:", "Tools{{ strftime_now('') }}:")
    told = await parity(dated, Replica(dated), "m")
    assert told.exact
    assert "midnight" in told.reason


async def test_text_needs_no_question() -> None:
    async def ask(path: str, body: Any) -> Any:
        raise AssertionError("asked")

    assert (await parity(TextReader(block_tokens=16), ask, "m")).word == "APPROXIMATE"


async def test_a_replica_that_is_to_tokenize_is_asked_whether_it_does(reader: LocalReader) -> None:
    replica = Replica(reader)
    told = await parity(ReplicaReader(replica, block_tokens=16), replica, "m")
    assert (told.word, told.reason) == ("EXACT", "a replica tokenizes")
    assert [asked["model"] for asked in replica.asked] == ["m"]

    async def refuses(path: str, body: Any) -> Any:
        raise ConnectionError("404")

    told = await parity(ReplicaReader(refuses, block_tokens=16), refuses, "m")
    assert told.word == "APPROXIMATE"
    assert "/tokenize did not answer" in told.reason


def test_probes_hold_nothing_of_this_machine() -> None:
    assert str(Path.home()) not in repr(PROBES)
