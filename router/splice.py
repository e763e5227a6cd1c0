"""The one edit of a client's body: the tenant's `cache_salt`, spliced in before its last brace.

Whatever the client calls its own salt is cut out first (also twice, or spelt with escapes), so that exactly one is
left, whichever of two equal members a parser takes; everything else stays byte for byte. Members that can select
cached state past the salt can't be made safe and are refused. The one rule: what a member is called is settled on the
parsed body, never on its bytes. Not here: which salt (`salts`), and which paths take one (`salted_paths`).
"""

import re
from collections.abc import Mapping
from json.decoder import JSONDecodeError, JSONDecoder, scanstring  # type: ignore[attr-defined]  # not in the stubs
from typing import Any

from router.errors import BadRequest

SALT = "cache_salt"

_SPACE = " \t\n\r"
_SPACE_BYTES = _SPACE.encode()
_BACKSLASH, _COMMA = b"\\,"
_QUOTED = b'"cache_salt"'
_AHEAD = _QUOTED.index(b"_")
_HOPS = 64
_ESCAPED_LETTER = re.compile(rb"\\u00(?:6[1358cC]|5[fF]|7[34])")
"""How a letter of that name may be spelt instead."""
_PLAIN_MEMBER = re.compile(rb'"cache_salt"[ \t\n\r]*:[ \t\n\r]*(?:"[^"\\]*"|null)[ \t\n\r]*,[ \t\n\r]*')
_SELECTING = ("kv_transfer_params", "ec_transfer_params", "previous_response_id", "features")
"""Top-level members of vLLM 0.32 that name state by something else than the prompt: ids or blocks held elsewhere,
encoder outputs, a stored conversation, the hashes of images."""
_WITHIN = (("vllm_xargs",), ("sampling_params", "extra_args"))
"""Where the first two may stand as well: vLLM merges these into the same arguments of the engine."""
_PARTED = ("messages", "input", "documents", "query", "queries", "text_1", "text_2")
_DEEPEST = 10
_decode = JSONDecoder().raw_decode


def safe(body: Mapping[str, Any]) -> None:
    """Raise `BadRequest` when the body selects cached state in a way that no salt keeps apart."""
    for name in _SELECTING:
        if body.get(name):
            raise _refused(name)
    for path in _WITHIN:
        value: Any = body
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, Mapping):
            for name in _SELECTING[:2]:
                if value.get(name):
                    raise _refused(".".join((*path, name)))
    for name in _PARTED:
        value = body.get(name)
        if type(value) is not str and value and _names_a_part(value, within=False, depth=0):
            raise _refused("uuid of a part of a message")


def salted(raw: bytes, body: Mapping[str, Any], salt: str) -> bytes:
    """The body with `salt` as its only `cache_salt`. `body` is `raw` parsed; `salt` needs no escaping."""
    kept = len(body)
    if SALT in body:
        raw = _without(raw)
        kept -= 1
    end = raw.rindex(b"}")
    comma = b"," if kept else b""
    return b'%b%b"cache_salt":"%b"%b' % (raw[:end], comma, salt.encode("ascii"), raw[end:])


def unsalted(raw: bytes, body: Mapping[str, Any]) -> bytes:
    """The body without any `cache_salt`."""
    return _without(raw) if SALT in body else raw


def _refused(name: str) -> BadRequest:
    return BadRequest(
        f"{name} selects cached state that tenants are kept apart by; it is not allowed here, take it out", param=name
    )


def _names_a_part(value: Any, *, within: bool, depth: int) -> bool:
    """Whether a part of a message brings a `uuid`: vLLM takes it for the hash of an image that need not be sent.

    `within` a message's content, where parts are. No engine reads parts deeper than `_DEEPEST`.
    """
    if depth > _DEEPEST:
        return False
    kind = type(value)
    if kind is list:
        for item in value:
            if type(item) is not str and _names_a_part(item, within=within, depth=depth + 1):
                return True
    elif kind is dict:
        if within and value.get("uuid") and value.get("type") != "text":
            return True
        content = value.get("content")
        if content and type(content) is not str:
            return _names_a_part(content, within=True, depth=depth + 1)
    return False


def _without(raw: bytes) -> bytes:
    """The object with no `cache_salt`, whatever its spelling; a cut member takes one comma with it."""
    at = _only(raw)
    if at is not None:
        cut = _cut_before(raw, at) if at > len(raw) // 2 else _cut_after(raw, at)
        if cut is not None:
            return cut
    return _cut_anywhere(raw)


def _only(raw: bytes) -> int | None:
    """Where the one key stands that can be a `cache_salt` at any depth; None where that takes a closer look.

    In valid JSON a quote before a letter begins a string, or is part of one and has a backslash before it.
    """
    places = _places(raw)
    if len(places) != 1 or raw[places[0] - 1] == _BACKSLASH:
        return None
    if b"\\" in raw and b"\\u00" in raw and _ESCAPED_LETTER.search(raw) is not None:
        return None
    return places[0]


def _places(raw: bytes) -> list[int]:
    """Where that key may stand. One byte is found ten times as fast as several are, and underscores are few."""
    places: list[int] = []
    at = -1
    for _ in range(_HOPS):
        at = raw.find(b"_", at + 1)
        if at < 0:
            return places
        if raw[at - _AHEAD : at - _AHEAD + len(_QUOTED)] == _QUOTED:
            places.append(at - _AHEAD)
    while (at := raw.find(_QUOTED, at + 1 - _AHEAD)) >= 0:
        places.append(at)
        at += len(_QUOTED)
    return places


def _cut_before(raw: bytes, at: int) -> bytes | None:
    """Without the member at `at`, by what follows: its object must end where the body does. Else None."""
    try:
        text = "{" + raw[at:].decode("utf-8")
        members = _members(text)
    except (JSONDecodeError, RecursionError, IndexError):
        return None
    end = text[members[-1][2] :]
    if end.strip(_SPACE) != "}":
        return None
    if len(members) > 1:
        return raw[:at] + text[members[1][1] :].encode("utf-8")
    comma = _behind_space(raw, at) - 1
    return raw[: _behind_space(raw, comma) if raw[comma] == _COMMA else at] + end.encode("utf-8")


def _cut_after(raw: bytes, at: int) -> bytes | None:
    """Without the member at `at`, by what precedes: whole members of the outermost object alone. Else None."""
    member = _PLAIN_MEMBER.match(raw, at)
    if member is None:
        return None
    try:
        head = raw[:at].decode("utf-8")
        members = _members(f'{head}"":0}}')
    except (JSONDecodeError, RecursionError, IndexError):
        return None
    return raw[:at] + raw[member.end() :] if members[-1][1] == len(head) else None


def _cut_anywhere(raw: bytes) -> bytes:
    """Without any of them, by reading all members."""
    text = raw.decode("utf-8")
    try:
        members = _members(text)
    except (JSONDecodeError, RecursionError, IndexError):  # orjson read it, so only its depth can be the matter
        raise BadRequest("the body is nested too deeply to set its cache_salt") from None
    kept: list[str] = []
    start = members[0][1]
    head = text[:start]
    for place, (key, begin, end) in enumerate(members):
        if key != SALT:
            after = members[place + 1][1] if place + 1 < len(members) else end
            kept += (text[begin:end], text[end:after])
    if kept:
        kept.pop()  # what stood between the last member that stays and one that was cut
    return (head + "".join(kept) + text[members[-1][2] :]).encode("utf-8")


def _members(text: str) -> list[tuple[str, int, int]]:
    """The members of the object `text` is: name, where its key begins, where its value ends."""
    found = []
    at = _past_space(text, text.index("{") + 1)
    while text[at] == '"':
        begin = at
        name, at = scanstring(text, at + 1, True)
        at = _past_space(text, _past_space(text, at) + 1)
        _, at = _decode(text, at)
        found.append((name, begin, at))
        at = _past_space(text, at)
        if text[at] == "}":
            break
        at = _past_space(text, at + 1)
    return found


def _behind_space(raw: bytes, at: int) -> int:
    while raw[at - 1] in _SPACE_BYTES:
        at -= 1
    return at


def _past_space(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at
