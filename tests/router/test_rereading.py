"""A file that changes: what is in force, and what is said, in every state it may be met in."""

import asyncio
import logging
import os
from pathlib import Path

import pytest

from router.errors import ConfigError
from router.rereading import Fixed, Reread


def number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        raise ConfigError(f"{path} holds no number") from None


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "number"
    path.write_text("1")
    return path


async def settled(one: Reread) -> bool:
    """Two looks: the first sees the change, the second takes it."""
    assert not await one.looked()
    return await one.looked()


async def test_a_change_is_taken_once_it_rests(file):
    one = Reread(file, number)
    assert not await one.looked()
    file.write_text("20")
    assert not await one.looked()
    file.write_text("300")  # the writer was not done
    assert not await one.looked()
    assert one.value == 1
    assert await one.looked()
    assert one.value == 300
    assert not await one.looked()


async def test_what_can_not_be_read_leaves_the_old_one_in_force_loudly_and_once(file, caplog):
    one = Reread(file, number)
    file.write_text("half a num")
    assert not await settled(one)
    assert (one.value, "holds no number" in one.fault) == (1, True)
    for _ in range(3):
        await one.looked()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "stays in force" in caplog.text
    file.unlink()
    assert not await settled(one)
    assert (one.value, len(caplog.records)) == (1, 2)
    file.write_text("22")
    assert await settled(one)
    assert (one.value, one.fault) == (22, "")


async def test_a_file_replaced_in_one_step_is_seen(file, tmp_path):
    one = Reread(file, number)
    told = file.stat()
    (tmp_path / "new").write_text("2")
    os.utime(tmp_path / "new", ns=(told.st_atime_ns, told.st_mtime_ns))  # same size, same time
    (tmp_path / "new").replace(file)
    assert await settled(one)
    assert one.value == 2


async def test_it_looks_by_itself_until_it_is_left(file):
    async with Reread(file, number, interval_s=0.001) as one:
        file.write_text("7")
        async with asyncio.timeout(5):
            while one.value != 7:  # noqa: ASYNC110 -- no event tells of it
                await asyncio.sleep(0.001)
    assert "7" in repr(one)


async def test_a_fault_of_the_reader_does_not_end_the_looking(file, caplog):
    wrong = [True]

    def read(path: Path) -> int:
        if wrong[0] and path.read_text() != "1":
            wrong[0] = False
            raise ZeroDivisionError
        return number(path)

    async with Reread(file, read, interval_s=0.001) as one:
        file.write_text("7")
        async with asyncio.timeout(5):
            while wrong[0]:  # noqa: ASYNC110 -- no event tells of it
                await asyncio.sleep(0.001)
            file.write_text("88")
            while one.value != 88:  # noqa: ASYNC110 -- no event tells of it
                await asyncio.sleep(0.001)
    assert "ZeroDivisionError" in caplog.text


def test_a_start_with_a_bad_file_is_no_start(tmp_path):
    with pytest.raises(ConfigError):
        Reread(tmp_path / "nowhere", number)


def test_what_never_changes():
    assert (Fixed(3).value, Fixed(3).fault) == (3, "")
