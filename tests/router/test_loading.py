"""Prompts are read by whom the operator wants, and by nobody where nobody needs them."""

import json
import threading

import pytest

from policies.plugins import load as policy_named
from router.config import load
from router.loading import tokenized_where
from router.readers import TINY
from tests.fakes import client_of, fake_replica, posted, router_over


@pytest.mark.parametrize(
    ("policy", "where", "path", "expected"),
    [
        ("prefix-aware", "auto", None, "auto"),
        ("round-robin", "auto", None, "none"),
        ("round-robin", "auto", "a folder", "auto"),
        ("round-robin", "text", None, "text"),
        ("prefix-aware", "none", None, "none"),
    ],
)
def test_prompts_are_left_unread_only_where_that_was_left_open(policy, where, path, expected):
    wanted = {"replicas": "http://127.0.0.1:1", "tokenizer.where": where, "tokenizer.path": path}
    config, _ = load(flags={name: ("test", value) for name, value in wanted.items() if value is not None})
    assert tokenized_where(config, policy_named(policy, {})) == expected


async def test_a_request_is_served_without_its_prompt_being_read():
    body = json.dumps({"model": "m", "prompt": "Once upon a time"}).encode()
    async with fake_replica() as replica, router_over(replica, tokenizer__where="auto") as up:
        assert up.readers.of("m").describe() == "prompts are not read"
        assert (await posted(up.url, body, path=b"/v1/completions")).status == 200
        exposed = up.metrics.exposition().decode()
    assert 'router_predicted_tokens_total{basis="none"' in exposed
    assert up.fleet.index_runs == 0


async def test_a_tokenizer_that_cannot_be_used_leaves_it_to_the_replica(tmp_path, caplog):
    (tmp_path / "tokenizer.json").write_text("{}")
    settings = {"tokenizer__where": "auto", "tokenizer__path": str(tmp_path)}
    async with fake_replica() as replica, router_over(replica, **settings) as up, client_of(up.url):
        assert up.readers.of("m").describe() != "prompts are not read"
    assert "can't be loaded" in caplog.text


async def test_a_reader_is_compared_with_the_replica_before_it_is_used(caplog):
    caplog.set_level("INFO", logger="router.loading")
    settings = {"tokenizer__where": "local", "tokenizer__path": str(TINY)}
    async with fake_replica() as replica, router_over(replica, **settings):
        pass
    assert "tokens APPROXIMATE" in caplog.text
    assert "the replica's /tokenize did not answer" in caplog.text


async def test_the_loops_own_thread_is_made_ready_for_new_words(monkeypatch):
    met = []
    monkeypatch.setattr(
        "router.tokenizers.Tokenizer.at_home", lambda _: met.append(threading.get_ident()) or iter("ab")
    )
    settings = {"tokenizer__where": "local", "tokenizer__path": str(TINY)}
    async with fake_replica() as replica, router_over(replica, **settings):
        assert met == [threading.get_ident()]
