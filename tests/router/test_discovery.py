"""Replicas behind names, and in a file that changes."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from router.addresses import normalised
from router.discovery import Discovery, looked_up, replicas_in
from router.errors import ConfigError
from router.sections import ReplicaAddress, ReplicaTls
from tests.fakes import fake_replica, posted, router_over, until


class Told:
    """Stands for the membership."""

    def __init__(self) -> None:
        self.wants: list[tuple[str, list[str]]] = []

    async def wanted(self, source, replicas) -> None:
        self.wants.append((source, [f"{one.name}={one.url}" for one in replicas]))


class Names:
    """A resolver whose answers a test sets."""

    def __init__(self, **answers: list[str]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append((host, port))
        if host not in self.answers:
            raise OSError(-2, "Name or service not known")
        return self.answers[host]


def entry(url: str, **more: object) -> ReplicaAddress:
    return ReplicaAddress(name="r1", url=normalised(url), **more)


async def test_every_address_of_a_name_is_a_replica():
    names = Names(vllm=["10.0.0.2", "10.0.0.1", "fd00::1", "10.0.0.1"])
    found = await Discovery([entry("dns:vllm:8000", weight=2.0)], resolve=names).found()
    assert [(one.name, one.url, one.weight) for one in found["configuration"]] == [
        ("10.0.0.1:8000", "http://10.0.0.1:8000", 2.0),
        ("10.0.0.2:8000", "http://10.0.0.2:8000", 2.0),
        ("fd00::1:8000", "http://[fd00::1]:8000", 2.0),
    ]
    assert names.asked == [("vllm", 8000)]


async def test_a_certificate_shows_the_name_not_the_address():
    own = ReplicaTls(ca_file="ca.pem")
    for given, name, ca in ((None, "vllm", None), (own, "vllm", "ca.pem"), (ReplicaTls(name="x"), "x", None)):
        discovery = Discovery([entry("dns:https://vllm:8000", tls=given)], resolve=Names(vllm=["10.0.0.1"]))
        [one] = (await discovery.found())["configuration"]
        assert one.url == "https://10.0.0.1:8000"
        assert (one.tls.name, one.tls.ca_file) == (name, ca)


async def test_only_a_change_is_told():
    names, told = Names(vllm=["10.0.0.1"]), Told()
    discovery = Discovery([entry("dns:vllm:8000")], resolve=names)
    await discovery.found()
    await discovery.looked(told, names=True)
    assert told.wants == []
    names.answers["vllm"] = ["10.0.0.1", "10.0.0.2"]
    await discovery.looked(told, names=False)
    assert told.wants == []
    await discovery.looked(told, names=True)
    expected = ["10.0.0.1:8000=http://10.0.0.1:8000", "10.0.0.2:8000=http://10.0.0.2:8000"]
    assert told.wants == [("configuration", expected)]


async def test_no_answer_is_no_news_and_said_once(caplog):
    names, told = Names(vllm=["10.0.0.1"]), Told()
    discovery = Discovery([entry("dns:vllm:8000"), ReplicaAddress(name="r2", url="http://b:1")], resolve=names)
    await discovery.found()
    del names.answers["vllm"]
    await discovery.looked(told, names=True)
    await discovery.looked(told, names=True)
    assert told.wants == []
    assert [record.message for record in caplog.records] == [
        "vllm can't be resolved (Name or service not known); 1 replicas known from before stay"
    ]
    names.answers["vllm"] = ["10.0.0.9"]
    await discovery.looked(told, names=True)
    assert told.wants == [("configuration", ["10.0.0.9:8000=http://10.0.0.9:8000", "r2=http://b:1"])]


async def test_the_systems_resolver_knows_this_machine():
    assert await looked_up("127.0.0.1", 80) == ["127.0.0.1"]


def written(file: Path, text: str) -> Path:
    file.write_text(text, "utf-8")
    os.utime(file, ns=(file.stat().st_mtime_ns + 10**9,) * 2)  # two writes within one tick of the clock differ
    return file


@pytest.mark.parametrize(
    "text",
    [
        "http://a:1\nx=http://b:2\n",
        "# ours\nhttp://a:1  # first\n\n x=b:2\n",
        json.dumps(["http://a:1", "x=b:2"]),
        json.dumps([{"url": "http://a:1"}, {"name": "x", "url": "http://b:2"}]),
    ],
)
def test_a_file_is_lines_or_a_list(tmp_path, text):
    found = replicas_in(written(tmp_path / "replicas", text))
    assert [(one.name, one.url) for one in found] == [("r1", "http://a:1"), ("x", "http://b:2")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ftp://a:1", "the scheme is 'ftp'"),
        ("[1", "is not JSON"),
        ('[{"url": "http://a:1", "wait": 1}]', "0.wait: Extra inputs are not permitted"),
        ("[7]", "a replica is a text"),
    ],
)
def test_a_file_that_can_not_be_used_is_named(tmp_path, text, message):
    with pytest.raises(ConfigError, match=r"replicas_file '.*replicas'") as raised:
        replicas_in(written(tmp_path / "replicas", text))
    assert message in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        Discovery([], tmp_path / "none")


async def test_a_file_that_changes_is_read_and_a_bad_one_changes_nothing(tmp_path, caplog):
    file, told = written(tmp_path / "replicas", "http://a:1"), Told()
    discovery = Discovery([], file)
    assert [one.url for one in (await discovery.found())["file"]] == ["http://a:1"]

    async def looked_twice() -> None:  # a file counts once it has rested
        await discovery.looked(told, names=False)
        await discovery.looked(told, names=False)

    written(file, "http://a:1\nhttp://b:2")
    await looked_twice()
    assert told.wants == [("file", ["r1=http://a:1", "r2=http://b:2"])]
    written(file, "nonsense without a port")
    await looked_twice()
    file.unlink()
    await looked_twice()
    assert len(told.wants) == 1
    assert "what it said before stays in force" in caplog.text


async def test_a_router_follows_its_file(tmp_path):
    async with fake_replica() as first, fake_replica() as second:
        file = written(tmp_path / "replicas", first.url)
        async with router_over(replicas_file=str(file)) as up:
            assert (await posted(up.url)).status == 200
            written(file, second.url)
            await until(lambda: [one.url for one in up.reload.membership.members()] == [second.url])
            await until(lambda: up.fleet.is_open(up.fleet.replicas()[0]))
            assert (await posted(up.url)).status == 200
            assert (len(first.seen), len(second.seen)) == (1, 1)


async def test_looking_ends_with_the_router():
    async with fake_replica() as replica, router_over(replica):
        assert [task.get_name() for task in asyncio.all_tasks()].count("discovery") == 1
    await until(lambda: "discovery" not in [task.get_name() for task in asyncio.all_tasks()])
