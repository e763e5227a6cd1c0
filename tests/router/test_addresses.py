"""How replicas are written down."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.addresses import normalised, parsed


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("127.0.0.1:8001", "http://127.0.0.1:8001"),
        ("LocalHost:8003", "http://localhost:8003"),
        ("http://host", "http://host:80"),
        ("https://host/", "https://host:443"),
        ("HTTP://h:08000", "http://h:8000"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("http://[0:0:0:0:0:0:0:1]:8000", "http://[::1]:8000"),
        ("vllm-0.vllm.default.svc.cluster.local:8000", "http://vllm-0.vllm.default.svc.cluster.local:8000"),
    ],
)
def test_normalised(written, url):
    assert normalised(written) == url


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("host", "has no port; write host:8000"),
        ("host:0", "ports go from 1 to 65535"),
        ("host:99999", "ports go from 1 to 65535"),
        ("ftp://host:1", "write http:// or https://"),
        ("http://h:1/v1", "write http://h:1 and let clients send the path"),
        ("http://h:1?x=y", "has a path, query or fragment"),
        ("http://u:p@h:1", "name the key with replica_key_env"),
        ("::1:8000", "in brackets"),
        ("http://[::g]:1", "no URL|no IPv6"),
        ("http://:8000", "no usable host"),
        ("http://h h:1", "space or control character"),
        ("http://h\n:1", "space or control character"),
        ("http://-x:1", "no usable host"),
    ],
)
def test_what_can_not_be_a_replica_is_told_with_the_remedy(written, told):
    with pytest.raises(ValueError, match=told):
        normalised(written)


@pytest.mark.parametrize(
    "written",
    [
        "http://user:hunter2@h:1",
        "http://user:hun/hunter2@h:1",
        "user:hunter2@h:1",
        "http://user:hunter2",
        "http://h:1?api_key=hunter2",
        "http://h:1/#hunter2",
        "ftp://user:hunter2@h:1/",
    ],
)
def test_errors_keep_passwords_to_themselves(written):
    with pytest.raises(ValueError) as error:
        parsed(written)
    assert "hunter2" not in str(error.value)


def rows(value: object) -> list[tuple[str, str]]:
    return [(table["name"], table["url"]) for table in parsed(value)]


def test_names_are_given_by_position():
    assert rows("127.0.0.1:8001, b=http://h:2 ,localhost:8003") == [
        ("r1", "http://127.0.0.1:8001"),
        ("b", "http://h:2"),
        ("r3", "http://localhost:8003"),
    ]


def test_a_name_that_is_taken_gives_way_to_the_address():
    assert rows(["r2=a:1", "b:2"]) == [("r2", "http://a:1"), ("b:2", "http://b:2")]


def test_tables_and_texts_may_be_mixed():
    assert rows([{"url": "http://a:1", "name": "left"}, "b:2"]) == [("left", "http://a:1"), ("r2", "http://b:2")]


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("x=a:1,x=b:1", "two replicas are named 'x' .*rename one"),
        ("a:1,http://A:1/", "http://a:1 is listed twice .entries 1 and 2"),
        ("a b=h:1", "use letters"),
        ([{"name": "x"}], "a table with a url"),
        ([7], "a table with a url"),
        ([{"url": "h:1", "name": 7}], "use letters"),
    ],
)
def test_lists_that_contradict_themselves(written, told):
    with pytest.raises(ValueError, match=told):
        parsed(written)


def test_no_replicas():
    assert parsed("") == []
    assert parsed([]) == []


@given(st.text(max_size=40) | st.from_regex(r"[a-z]*=?(https?://)?[a-z:\[\]@/?#0-9.]{0,20}", fullmatch=True))
def test_any_text_gives_unique_urls_that_are_their_own_normal_form_or_a_clear_error(text):
    try:
        urls = [table["url"] for table in parsed(text)]
    except ValueError as error:
        urls, told = [], str(error)
    else:
        told = "replica"
    assert told.startswith(("replica", "two replicas", "a replica"))
    assert len(set(urls)) == len(urls)
    assert [normalised(url) for url in urls] == urls
