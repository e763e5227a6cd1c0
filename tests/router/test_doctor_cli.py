"""`router doctor` as a user types it: what it reads, what it prints, and how it ends."""

import asyncio
import gzip
import json
import os
from pathlib import Path

import pytest

from router.cli import main
from router.readers import TINY
from tests.fakes import fake_replica, ok
from tests.router.doctor.traffic import CHAT, broken, chats

RECORDED = json.loads((Path(__file__).parents[1] / "recordings/doctor_prefix_breakers.json").read_text("utf-8"))
TRACES = Path(os.environ.get("ROUTER_TEST_TRACES", Path(__file__).parents[3] / "shared")) / "traces"


def batch(bodies):
    return [
        {"custom_id": str(number), "method": "POST", "url": CHAT, "body": body} for number, body in enumerate(bodies)
    ]


def payloads(bodies):
    return bodies


def log(bodies):
    return [{"level": "info", "request": body} for body in bodies]


def litellm(bodies):
    return [
        {
            "id": str(number),
            "call_type": "acompletion",
            "startTime": 1000.0 + 30 * number,
            "endTime": 1001.0 + 30 * number,
            "prompt_tokens": 900,
            "completion_tokens": 3,
            "model": body["model"],
            "messages": body["messages"],
            "metadata": {},
        }
        for number, body in enumerate(bodies)
    ]


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)


def told(capsys, *words, code):
    assert main(["doctor", *map(str, words)]) == code
    return capsys.readouterr()


@pytest.mark.parametrize("form", [batch, payloads, log, litellm])
@pytest.mark.parametrize(("bodies", "code"), [(chats(), 0), (broken("clock"), 1)], ids=["healthy", "broken"])
def test_files_of_prompts(form, bodies, code, tmp_path, capsys):
    file = written(tmp_path / "rows.jsonl", form(bodies))
    out = json.loads(told(capsys, file, "--json", code=code).out)
    assert out["requests"] == len(bodies)
    assert out["breaks"] == bool(code)
    kinds = [one["kind"] for family in out["families"] for one in family["findings"]]
    assert kinds == (["timestamp"] if code else [])


@pytest.mark.parametrize("pair", RECORDED["pairs"], ids=lambda pair: pair["name"])
def test_two_bodies(pair, tmp_path, capsys):
    files = []
    for name in "ab":
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(pair[name], indent=1), "utf-8")
    where = pair.get("first_difference")
    out = told(capsys, *files, code=1 if where else 0).out
    if where:
        assert f"{where['path']} (system), character {where['char_offset']}, block 0" in out
        assert "every block from there on is lost" in out
    else:
        assert "0 places break the prefix" in out


def test_values_are_masked_unless_asked_for(tmp_path, capsys):
    file = written(tmp_path / "rows.jsonl", broken("user name"))
    assert "Alan" not in told(capsys, file, code=1).out
    assert "Alan" in told(capsys, file, "--show-text", code=1).out


def test_exact_tokens(tmp_path, capsys):
    file = written(tmp_path / "rows.jsonl", broken("clock"))
    out = json.loads(told(capsys, file, "--json", "--tokenizer", TINY, "--block-tokens", "8", code=1).out)
    (one,) = out["families"][0]["findings"]
    assert out["exact"]
    assert one["exact"]
    assert 0 < one["saved_tokens"] <= out["prompt_tokens"]


def test_recordings_without_text(tmp_path, capsys):
    rows = [
        {"timestamp": 50 * n, "input_length": 512 * 3, "output_length": 9, "hash_ids": [0, n // 2 + 1, n + 100]}
        for n in range(20)
    ]
    file = written(tmp_path / "mooncake.jsonl", rows)
    out = told(capsys, file, code=0).out
    assert "common head: 1 blocks" in out
    assert "without text" in out
    assert json.loads(told(capsys, file, "--json", code=0).out)["needs_text"]


def test_zipped_and_bounded(tmp_path, capsys):
    file = tmp_path / "rows.jsonl.gz"
    file.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in batch(broken("clock"))).encode()))
    assert json.loads(told(capsys, file, "--json", "--requests", "10", code=1).out)["requests"] == 10


def test_bad_rows(tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in batch(broken("clock"))) + "{broken Rule 1\n", "utf-8")
    err = told(capsys, file, code=2).err
    assert "line 25: not JSON" in err
    assert "Rule" not in err
    told(capsys, file, "--skip-bad", code=1)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no row"),
        ('{"a": 1}\n', "neither a request body nor a row"),
        ('{"TIMESTAMP": 1, "x": 2}\n', "neither a request body nor a row"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,4808,10\n", "lengths only"),
    ],
)
def test_files_without_prompts(content, said, tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text(content, "utf-8")
    assert said in told(capsys, file, code=2).err


def test_used_wrongly(tmp_path, capsys):
    assert "give files" in told(capsys, code=2).err
    assert "can't be read" in told(capsys, tmp_path / "none", code=2).err
    file = written(tmp_path / "rows.jsonl", chats())
    assert "--tokenizer" in told(capsys, file, "--tokenizer", tmp_path, code=2).err
    assert "give files" in told(capsys, file, "--url", "http://127.0.0.1:9", code=2).err


@pytest.mark.parametrize("name", ["lmcache_agent_miniswe_20", "lmcache_agent_taubench_25"])
def test_no_false_alarm_on_real_agents(name, capsys):
    file = TRACES / f"{name}_sessions.jsonl.gz"
    if not file.exists():
        pytest.skip(f"{file} is not there")
    assert "0 places break the prefix" in told(capsys, file, code=0).out


async def test_sketches_of_another_form_are_told(capsys):
    told = {"findings": [], "routes": [], "sketches": {"r": [{"lines": 7}]}, "breaks": False}
    async with fake_replica(ok(json.dumps(told).encode())) as admin:
        assert await asyncio.to_thread(main, ["doctor", "--url", admin.url]) == 2
    assert "another form" in capsys.readouterr().err
