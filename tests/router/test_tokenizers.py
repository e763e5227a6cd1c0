"""Both engines give the same ids, and a text is cut only where that changes nothing."""

import json
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.blocks import packed
from router.readers import TINY
from router.tokenizers import Tokenizer, TokenizerError, found_folder, load, pieces

DEFINITION = (TINY / "tokenizer.json").read_text("utf-8")
REFERENCE = tokenizers.Tokenizer.from_str(DEFINITION)
SPECIALS = [token["content"] for token in json.loads(DEFINITION)["added_tokens"]]
TEXTS = st.lists(st.one_of(st.text(max_size=30), st.sampled_from([*SPECIALS, " ", "\n\n", "<|im_st"])), max_size=8).map(
    "".join
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(DEFINITION)


@pytest.fixture(scope="module")
def slow() -> Tokenizer:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "fastokens", None)
        return Tokenizer(DEFINITION)


def added(content: str, **changed: Any) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"content": content, **flags, **changed}


def invented(*tokens: dict[str, Any], normalizer: Any = None) -> Tokenizer:
    """A byte-level tokenizer of single characters with these added tokens."""
    return _invented(json.dumps([tokens, normalizer]))


@cache
def _invented(described_json: str) -> Tokenizer:
    tokens, normalizer = json.loads(described_json)
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.train_from_iterator(
        ["a b"],
        tokenizers.trainers.BpeTrainer(
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        ),
    )
    described = json.loads(made.to_str())
    size = len(described["model"]["vocab"])
    described["added_tokens"] = [{"id": size + place, **token} for place, token in enumerate(tokens)]
    described["normalizer"] = normalizer
    return Tokenizer(json.dumps(described))


def test_the_fast_engine_is_in_use_where_it_is_installed(tokenizer: Tokenizer, slow: Tokenizer) -> None:
    pytest.importorskip("fastokens")
    assert (tokenizer.engine, slow.engine) == ("fastokens", "tokenizers")
    assert tokenizer.inline_bytes > slow.inline_bytes


@given(st.lists(TEXTS, max_size=4))
def test_both_engines_give_the_ids_of_the_reference(tokenizer: Tokenizer, slow: Tokenizer, texts: list[str]) -> None:
    wanted = [packed(REFERENCE.encode(text, add_special_tokens=False).ids) for text in texts]
    assert tokenizer.encode(texts) == wanted
    assert slow.encode(texts) == wanted


def test_a_fast_engine_that_differs_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    fastokens = pytest.importorskip("fastokens")

    class Wrong:
        @staticmethod
        def from_json_str(definition: str) -> "Wrong":
            return Wrong()

        def encode_batch_flat(self, texts: list[str]) -> tuple[bytes, bytes]:
            return packed([1]), b"".join(n.to_bytes(8, "little") for n in (0, 1))

    monkeypatch.setattr(fastokens, "Tokenizer", Wrong)
    assert Tokenizer(DEFINITION).engine == "tokenizers"


def test_a_fast_engine_that_panics_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    fastokens = pytest.importorskip("fastokens")

    class Panic(BaseException):
        pass

    class Broken:
        @staticmethod
        def from_json_str(definition: str) -> None:
            raise Panic

    monkeypatch.setattr(fastokens, "Tokenizer", Broken)
    assert Tokenizer(DEFINITION).engine == "tokenizers"


@pytest.mark.parametrize("engine", ["tokenizer", "slow"])
def test_lone_surrogates_are_refused_in_words(engine: str, request: pytest.FixtureRequest) -> None:
    with pytest.raises(TokenizerError, match="lone surrogates"):
        request.getfixturevalue(engine).encode(["a \ud800"])


CUTS = [
    pytest.param([added("<c>")], None, True, id="plain"),
    pytest.param([added("<c>", lstrip=True)], None, False, id="strips on the left"),
    pytest.param([added("<c>", rstrip=True)], None, False, id="strips on the right"),
    pytest.param([added("<c>", single_word=True)], None, False, id="single word"),
    pytest.param([added("<c>", normalized=True)], None, True, id="normalized, but nothing normalizes"),
    pytest.param([added("<c>", normalized=True)], {"type": "NFC"}, False, id="normalized"),
    pytest.param([added("<c>")], {"type": "NFC"}, True, id="a normalizer that leaves it alone"),
    pytest.param(
        [added("<c>", normalized=True)], {"type": "Sequence", "normalizers": []}, True, id="an empty sequence"
    ),
    pytest.param(
        [added("<c>", normalized=True)], {"type": "Sequence", "normalizers": [{"type": "NFC"}]}, False, id="a sequence"
    ),
    pytest.param([added("<c>"), added("x<c>y")], None, False, id="inside another"),
    pytest.param([added("<c>"), added("end<")], None, False, id="another ends with its beginning"),
    pytest.param([added("<c>"), added("end<c")], None, False, id="another ends with most of it"),
    pytest.param([added("<c>"), added("c>d")], None, True, id="another begins with its end"),
    pytest.param([added("<d>")], None, False, id="not a token"),
]


@pytest.mark.parametrize(("tokens", "normalizer", "safe"), CUTS)
def test_a_cut_is_safe_only_by_the_rules(tokens: list[dict[str, Any]], normalizer: Any, safe: bool) -> None:
    assert invented(*tokens, normalizer=normalizer).is_safe_cut("<c>") is safe


@pytest.mark.parametrize("content", [" <c>", "<c> ", "\n<c>"])
def test_a_token_with_white_space_around_is_no_cut(content: str) -> None:
    assert not invented(added(content)).is_safe_cut(content)


@pytest.mark.parametrize(("tokens", "normalizer"), [case.values[:2] for case in CUTS if case.values[2]])
@settings(max_examples=30)
@given(text=st.lists(st.sampled_from(["<c>", "x", " ", "é", "<", "c>d", "\n"]), max_size=12).map("".join))
def test_safe_cuts_change_no_id(tokens: list[dict[str, Any]], normalizer: Any, text: str) -> None:
    tokenizer = invented(*tokens, normalizer=normalizer)
    assert b"".join(tokenizer.encode(pieces(text, "<c>"))) == tokenizer.encode([text])[0]


def test_the_rule_matters() -> None:
    tokenizer = invented(added("<c>", lstrip=True))
    assert b"".join(tokenizer.encode(pieces("x <c>", "<c>"))) != tokenizer.encode(["x <c>"])[0]


def test_the_most_frequent_safe_token_is_chosen() -> None:
    tokenizer = invented(added("<c>"), added("<d>"), added("<e>", rstrip=True))
    assert tokenizer.best_cut("<e> <e> <e> <d> <d> <c>") == "<d>"
    assert tokenizer.best_cut("<e> <e> <e>") == ""
    assert tokenizer.best_cut("no tokens") == ""


@given(TEXTS, st.sampled_from([*SPECIALS, ""]))
def test_pieces_are_the_text(text: str, cut: str) -> None:
    found = pieces(text, cut)
    assert "".join(found) == text
    assert found
    if cut:
        assert all(piece.startswith(cut) for piece in found[1:])
        assert all(piece.count(cut) <= 1 for piece in found)


def test_specials_around_a_text_are_found() -> None:
    made = json.loads(DEFINITION)
    head, tail = made["added_tokens"][0], made["added_tokens"][1]
    names = {
        token["content"]: {"id": token["content"], "ids": [token["id"]], "tokens": [token["content"]]}
        for token in (head, tail)
    }
    single = [
        {"SpecialToken": {"id": head["content"], "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": tail["content"], "type_id": 0}},
    ]
    made["post_processor"] = {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": names}
    tokenizer = Tokenizer(json.dumps(made))
    assert (tokenizer.special_prefix, tokenizer.special_suffix) == ((head["id"],), (tail["id"],))
    assert tokenizer.encode([""]) == [b""]


def test_decoding_gives_the_text_back(tokenizer: Tokenizer) -> None:
    ids = memoryview(tokenizer.encode(["Grüße, 你好 🙂"])[0]).cast("I").tolist()
    assert tokenizer.decode(ids) == "Grüße, 你好 🙂"


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"model": {}}'])
def test_a_broken_definition_names_its_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja", "tokenizer_config.json"])
def test_a_file_that_is_not_utf8_names_itself(tmp_path: Path, name: str) -> None:
    (folder(tmp_path, {}) / name).write_bytes(b"\xff\xfe{")
    with pytest.raises(TokenizerError, match=name.replace(".", r"\.")):
        load(tmp_path)


def test_a_folder_without_tokenizer_is_told(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="No such file"):
        load(tmp_path)


def folder(tmp_path: Path, files: dict[str, str]) -> Path:
    (tmp_path / "tokenizer.json").write_text(DEFINITION)
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    return tmp_path


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({}, None),
        ({"tokenizer_config.json": '{"chat_template": "a"}'}, "a"),
        ({"tokenizer_config.json": '{"chat_template": "a"}', "chat_template.jinja": "b"}, "b"),
        ({"chat_template.json": '{"chat_template": "c"}'}, "c"),
        ({"tokenizer_config.json": '{"chat_template": [{"name": "rag", "template": "x"}]}'}, None),
        ({"tokenizer_config.json": '{"chat_template": [{"name": "default", "template": "d"}]}'}, "d"),
        ({"tokenizer_config.json": "[]"}, None),
    ],
)
def test_the_template_is_found(tmp_path: Path, files: dict[str, str], template: str | None) -> None:
    assert load(folder(tmp_path, files))[2] == template


@pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.json"])
def test_a_broken_side_file_names_itself(tmp_path: Path, name: str) -> None:
    with pytest.raises(TokenizerError, match=name.replace(".", r"\.")):
        load(folder(tmp_path, {name: "{"}))


def test_a_tokenizer_is_found_by_folder_file_or_cached_name(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--some--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    assert found_folder("some/model", tmp_path) is None
    folder(snapshot, {})
    assert found_folder("some/model", tmp_path) == snapshot
    assert found_folder(str(snapshot), tmp_path) == snapshot
    assert found_folder(str(snapshot / "tokenizer.json"), tmp_path) == snapshot
    assert found_folder("some/other", tmp_path) is None


class Listening:
    """A fast engine that notes what it is given, and by whom."""

    def __init__(self, fast: Any) -> None:
        self.fast = fast
        self.told: list[tuple[int, str]] = []

    def encode_batch_flat(self, texts: list[str]) -> Any:
        self.told += [(threading.get_ident(), text) for text in texts]
        return self.fast.encode_batch_flat(texts)


def test_a_thread_that_is_at_home_has_met_as_many_words_as_the_engine_remembers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("fastokens")
    monkeypatch.setattr("router.tokenizers._TOY_TOKENS", 0)
    tokenizer = Tokenizer(DEFINITION)
    tokenizer._fast = heard = Listening(tokenizer._fast)
    for _ in tokenizer.at_home():
        pass
    words = [word for _, text in heard.told for word in text.split(" ")]
    places = 2**21  # of fastokens 0.3.5: the last doubling is at three quarters of half of them
    assert places // 2 * 3 // 4 < len(set(words)) == len(words) < places * 3 // 4
    assert max(map(len, words)) < 15  # longer ones are kept elsewhere
    assert max(len(text) for _, text in heard.told) < 10_000
    assert {thread for thread, _ in heard.told} == {threading.get_ident()}


def test_nothing_is_done_for_a_toy_or_where_the_reference_works(tokenizer: Tokenizer, slow: Tokenizer) -> None:
    assert (list(tokenizer.at_home()), list(slow.at_home())) == ([], [])
