"""Files as rows: JSON lines, lists, documents and CSV, zipped or not, with a place for every row."""

import gzip
import json

import pytest

from sim.traces.files import items
from sim.traces.rows import BadRow, TraceError

ROWS = [{"a": 1, "b": 2}, {"a": 3, "b": "ü"}]


def read(path, data, name="t"):
    file = path / name
    file.write_bytes(data)
    return list(items(file))


def lines(rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


SHAPES = {
    "lines": lines(ROWS),
    "no last newline": lines(ROWS).rstrip(),
    "byte order mark": b"\xef\xbb\xbf" + lines(ROWS),
    "blank lines": b"\n\n" + lines(ROWS).replace(b"\n", b"\n\n"),
    "list": json.dumps(ROWS).encode(),
    "list over lines": json.dumps(ROWS, indent=2).encode(),
    "wrapped": json.dumps({"data": ROWS}).encode(),
    "wrapped over lines": json.dumps({"data": ROWS, "meta": {}}, indent=2).encode(),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_every_shape_gives_the_rows(tmp_path, shape, pack):
    assert [item for _, item in read(tmp_path, pack(SHAPES[shape]))] == ROWS


def test_a_document_is_one_row(tmp_path):
    whole = {"id": "s", "block_size": 64, "requests": [{"t": 0}]}
    assert read(tmp_path, json.dumps(whole, indent=1).encode()) == [(1, whole)]


def test_lines_are_counted_from_one_with_blank_ones(tmp_path):
    assert [line for line, _ in read(tmp_path, b"\n" + lines(ROWS) + b"\n\n" + lines(ROWS[:1]))] == [2, 3, 6]


def test_csv_by_its_header(tmp_path):
    found = read(tmp_path, b'x, y\r\n1,2\r\n\r\n3,"4,5"\r\n6\r\n')
    assert found[:2] == [(2, {"x": "1", "y": "2"}), (4, {"x": "3", "y": "4,5"})]
    assert found[2][0] == 5
    assert found[2][1].reason == "another number of columns than the header"


@pytest.mark.parametrize("broken", [b'{"a":', b"[1]", b"7", b"word", b'{"a": NaN}', b'"\xff"'])
def test_a_broken_line_keeps_its_place(tmp_path, broken):
    found = read(tmp_path, lines(ROWS) + broken + b"\n" + lines(ROWS))
    assert [line for line, _ in found] == [1, 2, 3, 4, 5]
    assert isinstance(found[2][1], BadRow)
    assert found[2][1].reason in ("not JSON", "no JSON object")


def test_a_broken_first_line_is_one_bad_row(tmp_path):
    found = read(tmp_path, b'{"a": oops}\n' + lines(ROWS))
    assert isinstance(found[0][1], BadRow)
    assert [item for _, item in found[1:]] == ROWS


def test_a_broken_list_ends_there(tmp_path):
    found = read(tmp_path, b'[{"a":1}, 5, {"a":2}, oops')
    assert found[0] == (1, {"a": 1})
    assert [item.reason for _, item in found if isinstance(item, BadRow)] == ["no JSON object", "not JSON"]


def test_what_is_no_trace_is_told(tmp_path):
    assert read(tmp_path, b"hello\nworld\n")[0][1].reason == "neither JSON nor CSV with a header"
    assert read(tmp_path, b"") == []
    with pytest.raises(TraceError, match="missing: can't be read: No such file"):
        list(items(tmp_path / "missing"))
    with pytest.raises(TraceError, match="can't be read"):
        read(tmp_path, gzip.compress(lines(ROWS) * 100)[:-20])


def test_progress_ends_at_the_size(tmp_path):
    file = tmp_path / "t"
    file.write_bytes(gzip.compress(lines(ROWS) * 3000))
    told = []
    assert len(list(items(file, lambda done, size: told.append((done, size))))) == 6000
    size = file.stat().st_size
    assert told[-1] == (size, size)
    assert len(told) == 7
    assert [done for done, _ in told] == sorted(done for done, _ in told)
