"""The one edit of a body: whatever JSON it is, one salt, and everything else byte for byte."""

import json
import sys

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from router.errors import BadRequest
from router.splice import SALT, _cut_anywhere, safe, salted, unsalted

OURS = "o-ur_S" * 7


class Members(list):
    """Members of an object in order, names twice if they come twice."""


TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
NAMES = st.one_of(TEXT, st.sampled_from([SALT, "cache_salt ", "CACHE_SALT", "model", "}", '"', "\\u0063ache_salt"]))
NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(NAMES, inner), max_size=3).map(Members),
    max_leaves=8,
)
SPACE = st.text(" \t\r\n", max_size=3)


def quoted(text: str, escaped: bool) -> str:
    if escaped:
        return '"' + "".join(f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else letter for letter in text) + '"'
    return json.dumps(text, ensure_ascii=False)


def written(value, space: str, escaped: bool) -> str:
    if isinstance(value, Members):
        parts = [
            f"{space}{quoted(name, escaped)}{space}:{space}{written(one, space, escaped)}{space}" for name, one in value
        ]
        return "{" + (",".join(parts) or space) + "}"
    if isinstance(value, list):
        return "[" + ",".join(space + written(one, space, escaped) + space for one in value) + "]"
    return quoted(value, escaped) if isinstance(value, str) else json.dumps(value)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=6).map(Members), SPACE, st.booleans())
@example(Members(), "", False)
@example(Members([(SALT, None)]), " ", False)
@example(Members([(SALT, "a"), (SALT, "b")]), "", True)
@example(Members([("a", 1), (SALT, "a"), ("b", 2), (SALT, [])]), "\n", False)
@settings(deadline=None)
def test_any_body_keeps_all_but_its_salt(members, space, escaped):
    raw = (space + written(members, space, escaped) + space).encode()
    body = orjson.loads(raw)
    after = salted(raw, body, OURS)
    assert json.loads(after) == {**json.loads(raw), SALT: OURS}
    pairs = json.loads(after, object_pairs_hook=Members)
    before = json.loads(raw, object_pairs_hook=Members)
    assert pairs[-1] == (SALT, OURS)
    assert pairs[:-1] == [pair for pair in before if pair[0] != SALT]
    if SALT not in body:
        assert raw.startswith(after[: after.rindex(b'"cache_salt"')].rstrip(b","))
        assert unsalted(raw, body) is raw
    else:
        assert json.loads(unsalted(raw, body), object_pairs_hook=Members) == pairs[:-1]


@pytest.mark.parametrize(
    ("raw", "after"),
    [
        (b"{}", b'{"cache_salt":"S"}'),
        (b" { } \n", b' { "cache_salt":"S"} \n'),
        (b'{"a":1.0e2,"b":12345678901234567890123}', b'{"a":1.0e2,"b":12345678901234567890123,"cache_salt":"S"}'),
        (b'{"a" : "}" }\r\n', b'{"a" : "}" ,"cache_salt":"S"}\r\n'),
        (b'{"cache_salt":"x","a":1}', b'{"a":1,"cache_salt":"S"}'),
        (b'{"a":1, "cache_salt" : {"cache_salt":[1,2]} , "b":2}', b'{"a":1, "b":2,"cache_salt":"S"}'),
        (b'{"a":1,"cache\\u005Fsalt":null}', b'{"a":1,"cache_salt":"S"}'),
        (b'{"x":{"cache_salt":"inner"}}', b'{"x":{"cache_salt":"inner"},"cache_salt":"S"}'),
        ('{"é":"北","cache_salt":"ü","ß":1}'.encode(), '{"é":"北","ß":1,"cache_salt":"S"}'.encode()),
    ],
)
def test_bytes_stay_as_they_are(raw, after):
    assert salted(raw, orjson.loads(raw), "S") == after


LONG = "x_" * 100 + "北 \\n"
"""More underscores than are looked at one by one, and an escape that is nobody's letter."""


@pytest.mark.parametrize(
    ("raw", "after"),
    [
        # with the only key of that name in the second half, by what follows it
        ('{"m":"%s" , "cache_salt" : "a" }\n', '{"m":"%s" }\n'),
        ('{"m":"%s", "cache_salt":{"b":[1]} , "n":2}', '{"m":"%s", "n":2}'),
        ('{"m":"%s",\t"cache_salt":1.5e3}', '{"m":"%s"}'),
        ('{"m":"%s","x":{"cache_salt":"kept"},"cache\\u005fsalt":"a"}', '{"m":"%s","x":{"cache_salt":"kept"}}'),
        ('{"cache\\u005fsalt":"a","m":"%s","x":{"cache_salt":"kept"}}', '{"m":"%s","x":{"cache_salt":"kept"}}'),
        ('{"m":"%s","x":{"cache_salt":"kept"},"cache_salt":"a"}', '{"m":"%s","x":{"cache_salt":"kept"}}'),
        ('{"m":"%s","cache_salt":"a","cache_salt":"b"}', '{"m":"%s"}'),
        # in the first half, by what stands before it
        ('{ "cache_salt":"a" , "m":"%s"}', '{ "m":"%s"}'),
        ('{"a":{"b":[1,{}]}, "cache_salt":null,"m":"%s"}', '{"a":{"b":[1,{}]}, "m":"%s"}'),
        ('{"cache_salt":"\\"a\\",","m":"%s"}', '{"m":"%s"}'),
        ('{"cache_salt":[{"cache_salt":"a"}],"m":"%s"}', '{"m":"%s"}'),
        (
            '{"x":{"cache_salt":"kept","m":1},"cache_\\u0073alt":1,"m":"%s"}',
            '{"x":{"cache_salt":"kept","m":1},"m":"%s"}',
        ),
        (
            '{"x":{"y":1,"cache_salt":"kept","z":"%s"},"cache_s\\u0061lt":1}',
            '{"x":{"y":1,"cache_salt":"kept","z":"%s"}}',
        ),
        ('{"cache_\\u0073alt":1,"x":{"cache_salt":"kept"},"m":"%s"}', '{"x":{"cache_salt":"kept"},"m":"%s"}'),
        # that name as a value, and within text
        ('{"m":"cache_salt","n":"%s","cache_salt":"a"}', '{"m":"cache_salt","n":"%s"}'),
        ('{"m":"\\"cache_salt\\":1 %s","cache_salt":"a"}', '{"m":"\\"cache_salt\\":1 %s"}'),
        ('{"m":"say \\"cache_salt","n":"%s","cache_sal\\u0074":"a"}', '{"m":"say \\"cache_salt","n":"%s"}'),
        ('{"x\\"cache_salt":"kept","n":"%s","\\u0063ache_salt":"a"}', '{"x\\"cache_salt":"kept","n":"%s"}'),
    ],
)
def test_long_bodies_too_lose_their_own_salt_and_nothing_else(raw, after):
    raw, after = (text.replace("%s", LONG).encode() for text in (raw, after))
    assert unsalted(raw, orjson.loads(raw)) == after
    assert json.loads(salted(raw, orjson.loads(raw), "S")) == {**json.loads(after), SALT: "S"}


@given(st.lists(st.tuples(NAMES, VALUES), max_size=6).map(Members), SPACE, st.booleans(), st.integers(0, 80))
@settings(deadline=None)
def test_reading_a_part_cuts_what_reading_all_members_cuts(members, space, escaped, underscores):
    padded = Members([*members, (SALT, "a"), ("_" * underscores, 1)])
    raw = written(padded, space, escaped).encode()
    assert unsalted(raw, orjson.loads(raw)) == _cut_anywhere(raw)


def test_a_body_too_deep_to_cut_is_refused():
    """Python 3.12 and later cut as deep as is read at all."""
    raw = b'{"cache_salt":1,"a":' + b"[" * 1000 + b"]" * 1000 + b"}"
    if sys.version_info < (3, 12):
        with pytest.raises(BadRequest, match="nested too deeply"):
            salted(raw, orjson.loads(raw), "S")
    else:
        assert orjson.loads(salted(raw, orjson.loads(raw), "S"))["cache_salt"] == "S"


SELECTING = {
    "token ids beside the messages": {"kv_transfer_params": {"prompt_token_ids": [1, 2]}},
    "blocks of another engine": {"kv_transfer_params": {"remote_block_ids": [7], "remote_engine_id": "e"}},
    "an encoder's outputs": {"ec_transfer_params": {"a": 1}},
    "through extra arguments": {"vllm_xargs": {"kv_transfer_params": {"prompt_token_ids": [1]}}},
    "through sampling": {"sampling_params": {"extra_args": {"kv_transfer_params": {"remote_block_ids": [7]}}}},
    "a stored conversation": {"previous_response_id": "resp_1"},
    "hashes of images": {"features": {"mm_hashes": {"image": ["h"]}}},
    "an image by name": {"messages": [{"role": "user", "content": [{"type": "image_url", "uuid": "u"}]}]},
    "an image by name, untyped": {"messages": [{"content": [{"image_url": None, "uuid": "u"}]}]},
    "an image within a tool's answer": {"input": [{"content": [{"content": [{"type": "image_url", "uuid": "u"}]}]}]},
}


@pytest.mark.parametrize("name", SELECTING)
@pytest.mark.parametrize("escaped", [False, True])
def test_what_selects_cached_state_is_refused(name, escaped):
    raw = json.dumps(SELECTING[name]).encode()
    if escaped:
        raw = raw.replace(b"kv_", b"k\\u0076_").replace(b'"uuid"', b'"u\\u0075id"').replace(b"ec_", b"\\u0065c_")
    with pytest.raises(BadRequest) as refused:
        safe(orjson.loads(raw))
    assert refused.value.status == 400
    assert "take it out" in str(refused.value)
    assert refused.value.param


@pytest.mark.parametrize(
    "body",
    [
        {"kv_transfer_params": None, "vllm_xargs": {"a": 1}, "sampling_params": {"extra_args": None}},
        {"kv_transfer_params": {}, "vllm_xargs": None, "sampling_params": 7, "previous_response_id": None},
        {"messages": [{"role": "user", "content": "a uuid", "uuid": "message"}], "metadata": {"uuid": "x"}},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 'the "uuid" of', "uuid": "t"}]}]},
        {"messages": 7, "input": [[1, 2], "x", None]},
        {"messages": orjson.loads(b"[" * 1000 + b"]" * 1000)},
    ],
    ids=range(6),
)
def test_what_selects_nothing_is_let_through(body):
    safe(body)
