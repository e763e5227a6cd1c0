"""Files of request bodies: batches with their usage, conversations turn by turn, texts with a tokenizer."""

import json
from pathlib import Path

import pytest

from sim.traces import TraceError, open_trace
from sim.traces.bodies import answer_of

SAMPLES = Path(__file__).parent / "samples"


def test_a_batch_takes_usage_from_its_output_file():
    told = list(open_trace(SAMPLES / "openai_batch.jsonl", answers=SAMPLES / "openai_batch_output.jsonl").arrivals)
    assert [(one.output_tokens, one.cached_tokens) for one in told] == [(12, 0), (7, 48)]
    assert {one.route for one in told} == {"/v1/chat/completions"}


def test_answers_without_a_length_are_as_long_as_may_be():
    workload = open_trace(SAMPLES / "openai_batch.jsonl")
    assert {one.output_tokens for one in workload.arrivals} == {40}
    assert any("2 requests have no length" in note for note in workload.notes)


def test_every_answer_of_a_conversation_is_a_request():
    told = list(open_trace(SAMPLES / "sharegpt.json").arrivals)
    assert [one.session for one in told] == ["c1", "c1"]
    assert [one.think_s for one in told] == [None, 0.0]
    shared = told[0].keys
    assert told[1].keys[: len(shared)] == shared


def test_an_answers_text_is_cached_only_where_answers_are():
    for outputs in (True, False):
        first, second = open_trace(SAMPLES / "conversations.jsonl", block_tokens=1, cache_outputs=outputs).arrivals
        common = sum(mine == theirs for mine, theirs in zip(first.keys, second.keys, strict=False))
        assert common == first.prompt_tokens + (first.output_tokens - 1 if outputs else 0)  # a partial last token


def test_a_tokenizer_counts_prompts_and_answers():
    seen = []

    def tokenize(route, body):
        seen.append((route, body.get("add_special_tokens")))
        return [ord(letter) for letter in json.dumps(body.get("messages", body.get("prompt")))]

    workload = open_trace(SAMPLES / "conversations.jsonl", tokenize=tokenize)
    assert not any("approximate" in note for note in workload.notes)
    assert seen[0] == ("/v1/chat/completions", None)
    assert seen[1] == ("/v1/completions", False)
    assert next(iter(workload.arrivals)).output_tokens == len('"A sheet that sends light back."')


def test_what_can_not_be_tokenized_is_a_bad_row():
    def tokenize(route, body):
        raise KeyError("role")

    with pytest.raises(TraceError, match=r"vllm_custom\.jsonl, line 1: can't be tokenized \(KeyError"):
        open_trace(SAMPLES / "vllm_custom.jsonl", tokenize=tokenize)


def test_token_ids_are_tokens(tmp_path):
    file = tmp_path / "t.jsonl"
    row = {"model": "m", "prompt": list(range(40)), "max_tokens": 1}
    file.write_text(json.dumps(row) + "\n" + json.dumps({**row, "prompt": [7] * 40}) + "\n", "utf-8")
    told = list(open_trace(file).arrivals)
    assert [one.prompt_tokens for one in told] == [40, 40]
    assert told[0].keys[0] != told[1].keys[0]


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({"choices": [{"message": {"content": "a"}}]}, "a"),
        ({"choices": [{"text": "b"}]}, "b"),
        ({"choices": [{"message": {"content": [{"type": "text", "text": "c"}]}}]}, "c"),
        ({"choices": [{"message": {"content": None}}]}, None),
        ({"choices": []}, None),
        ({}, None),
    ],
)
def test_the_answer_in_a_reply(body, wanted):
    assert answer_of(body) == wanted


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"custom_id": "1", "body": []}, "body is no object"),
        ({"custom_id": "1", "body": {"messages": "hi"}}, "messages is no list"),
        ({"custom_id": "1", "body": {"messages": ["hi"]}}, "a message is no object"),
        ({"id": 1, "messages": ["hi"]}, "a message is no object"),
        ({"session_id": "s", "payloads": [3]}, "payloads holds something that is no object"),
        ({"prompt": ""}, "the prompt is empty"),
    ],
)
def test_what_is_wrong_is_told(tmp_path, row, reason):
    file = tmp_path / "t.jsonl"
    file.write_text(json.dumps(row) + "\n", "utf-8")
    with pytest.raises(TraceError, match=reason):
        open_trace(file)
