"""Where engines publish: as they tell it, and as an operator writes it."""

import gzip
import json
from pathlib import Path

import pytest

from router.kv_sources import Source, configured, told

CASES = json.loads(gzip.decompress((Path(__file__).parents[1] / "recordings" / "kv_event_cases.json.gz").read_bytes()))


def test_what_a_running_engine_tells():
    found = told(CASES["sources"].encode(), "http://10.0.0.7:8000")
    assert found == (Source(0, "tcp://10.0.0.7:18111", "tcp://10.0.0.7:18112", "kv@r1", 10_000),)


def test_ranks_in_order():
    body = json.dumps(CASES["data_parallel"][0]["kv_event_sources"]).encode()
    found = told(body, "http://[fd00::7]:8000")
    assert [(source.rank, source.endpoint) for source in found] == [
        (0, "tcp://[fd00::7]:18161"),
        (1, "tcp://[fd00::7]:18162"),
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"0": null}',
        b'{"0": {}}',
        b'{"x": {"endpoint": "tcp://*:1"}}',
        b'{"0": {"endpoint": "http://*:1"}}',
        b'{"0": {"endpoint": 7}}',
        b'{"0": {"endpoint": "tcp://*:1", "enable_kv_cache_events": false}}',
        b'{"0": {"endpoint": "tcp://*:1", "publisher": "null"}}',
    ],
)
def test_answers_that_name_no_publisher(body):
    assert told(body, "http://a:1") == ()


def test_what_an_operator_writes():
    assert configured("tcp://*:5557", "http://a:8000") == (Source(0, "tcp://a:5557", None),)
    assert configured("tcp://0.0.0.0:1,tcp://[::]:2", "https://a:1") == (Source(0, "tcp://a:1", "tcp://a:2"),)
    assert configured("ipc:///run/kv", "http://a:1") == (Source(0, "ipc:///run/kv", None),)
    assert configured("tcp://other:1", "http://a:1")[0].endpoint == "tcp://other:1"
    assert configured("tcp://*:5557,tcp://*:5577", "http://a:1#2", 2) == (Source(2, "tcp://a:5559", "tcp://a:5579"),)
    assert configured("ipc:///run/kv", "http://a:1#1", 1) == (Source(1, "ipc:///run/kv", None),)


@pytest.mark.parametrize("text", ["", "on", "http://a:1", "tcp://", "tcp://a:1,tcp://a:2,tcp://a:3", "tcp://a:1,"])
def test_what_no_operator_means(text):
    with pytest.raises(ValueError, match="write auto, off, or tcp://HOST:PORT"):
        configured(text, "http://a:1")
