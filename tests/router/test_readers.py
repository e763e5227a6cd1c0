"""Which reader is picked from what is at hand, and what is said about it."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from router.prompts import LocalReader, ReplicaReader, TextReader
from router.readers import TINY, Picked, hub_cache, local_reader, reader_for
from router.templates import TemplateError
from router.tokenizers import TokenizerError


async def ask(path: str, body: Any) -> Any:
    raise AssertionError("nothing is asked while picking")


def picked(root: str = "some/model", tokenizer: str | None = None, where: str = "auto", ask: Any = ask) -> Picked:
    return reader_for(root, tokenizer=tokenizer, where=where, ask=ask, block_tokens=16, cache_bytes=1_000_000)


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Hugging Face cache that holds one model in two revisions."""
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    model = tmp_path / "hub" / "models--some--cached" / "snapshots"
    for revision in ("aaa", "bbb"):
        shutil.copytree(TINY, model / revision)
    (model.parent / "refs").mkdir()
    (model.parent / "refs" / "main").write_text("aaa\n")
    return tmp_path / "hub"


@pytest.mark.parametrize(
    ("given", "kind", "reason"),
    [
        ({"tokenizer": str(TINY)}, LocalReader, f"tokenizer of {TINY}"),
        ({"tokenizer": str(TINY / "tokenizer.json")}, LocalReader, f"tokenizer of {TINY / 'tokenizer.json'}"),
        ({"tokenizer": "some/cached"}, LocalReader, "tokenizer of some/cached"),
        ({"root": str(TINY)}, LocalReader, f"tokenizer of {TINY}"),
        ({"root": "some/cached"}, LocalReader, "tokenizer of some/cached"),
        ({"root": "some/cached", "where": "replica"}, ReplicaReader, "tokenizer.where is replica"),
        ({}, ReplicaReader, "no tokenizer.json for 'some/model' on this machine"),
        ({"ask": None}, TextReader, "no tokenizer.json for 'some/model' on this machine"),
        ({"where": "local"}, TextReader, "no tokenizer.json for 'some/model' on this machine"),
        ({"where": "text", "tokenizer": str(TINY)}, TextReader, "tokenizer.where is text"),
    ],
)
def test_the_best_reader_at_hand_is_picked(given: dict[str, Any], kind: type, reason: str) -> None:
    found = picked(**given)
    assert type(found.reader) is kind
    assert found.reason == reason


def test_a_cached_model_is_read_in_its_current_revision() -> None:
    assert picked("some/cached").reader.describe().startswith("aaa (")


def test_a_named_tokenizer_that_is_missing_is_an_error() -> None:
    with pytest.raises(TokenizerError, match="'no/where' on this machine; give a folder"):
        picked(tokenizer="no/where")


def broken(tmp_path: Path, name: str, text: str) -> Path:
    folder = tmp_path / "broken"
    shutil.copytree(TINY, folder)
    (folder / name).write_text(text)
    return folder


def test_a_named_tokenizer_that_is_broken_is_an_error_that_names_it(tmp_path: Path) -> None:
    folder = broken(tmp_path, "tokenizer.json", "{}")
    with pytest.raises(TokenizerError, match=r"broken/tokenizer\.json"):
        picked(tokenizer=str(folder))
    found = picked(root=str(folder))
    assert type(found.reader) is ReplicaReader
    assert "broken/tokenizer.json" in found.reason


def test_a_broken_template_names_its_folder(tmp_path: Path) -> None:
    folder = broken(tmp_path, "chat_template.jinja", "{% if %}")
    with pytest.raises(TemplateError, match="broken: the chat template can't be compiled"):
        local_reader(folder, block_tokens=16)


def test_a_model_without_a_template_still_reads_texts(tmp_path: Path) -> None:
    folder = broken(tmp_path, "tokenizer_config.json", "{}")
    reader = local_reader(folder, block_tokens=16)
    assert reader.template is None
    assert len(reader.token_ids("/v1/completions", {"prompt": "Once upon a time"})) > 1


def test_the_cache_is_where_hugging_face_keeps_it(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub_cache() == hub
    monkeypatch.setenv("HF_HUB_CACHE", "~/elsewhere")
    assert hub_cache() == Path.home() / "elsewhere"
