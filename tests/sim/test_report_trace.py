"""What is told of a trace on a terminal and in JSON."""

import io
import json

from rich.console import Console

from sim.report_trace import as_json, table
from sim.traces.opening import read
from sim.traces.statistics import Statistics, statistics


def told(tmp_path, rows: list[dict[str, object]]) -> Statistics:
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return statistics(read(path))


def printed(found: Statistics) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(table(found))
    return console.export_text()


def test_what_is_known_stands_in_the_table(tmp_path):
    rows = [
        {"timestamp": 1000 * place, "input_length": 1200, "output_length": 5, "hash_ids": [1, 2, place + 3]}
        for place in range(4)
    ]
    text = printed(told(tmp_path, rows))
    assert "log.jsonl: mooncake" in text
    assert "4,800; of each mean 1,200" in text
    assert "64.0% of prompt tokens in one cache that forgets nothing" in text
    assert "tenants" not in text


def test_json_is_one_object(tmp_path):
    rows = [{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}]
    found = json.loads(as_json(told(tmp_path, rows)))
    assert found["prefixes"]["unique_ids"] == 2
    assert found["times"] is None
    assert found["skipped"] == {}
