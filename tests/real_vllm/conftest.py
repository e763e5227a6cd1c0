"""The engines, once a session; all tests here are skipped where `ROUTER_TEST_VLLM` names no Python that has vllm."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real_vllm import engines as real
from tests.real_vllm.listener import Listener

HERE = Path(__file__).parent
_MEASURED = pytest.StashKey[list[str]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.real_vllm)
            item.add_marker(pytest.mark.timeout(600))
            if real.python() is None:
                item.add_marker(pytest.mark.skip(reason="needs a Python with vllm: make test-vllm"))


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[real.Engines]:
    python = real.python()
    assert python is not None, "tests without it are skipped"
    started = real.launched(python, real.tokenizer(), tmp_path_factory.mktemp("vllm"), count=real.COUNT)
    yield started
    started.close()


@pytest.fixture(scope="session")
def listeners(engines: real.Engines) -> Iterator[dict[str, Listener]]:
    """One for each replica, listening since before it was asked anything."""
    made = {one.name: Listener(f"tcp://127.0.0.1:{one.events}", str(engines.model)) for one in engines.all}
    yield made
    for listener in made.values():
        listener.close()


@pytest.fixture(scope="session")
def measured(pytestconfig: pytest.Config) -> list[str]:
    """Lines to be printed at the end, whether tests pass or not."""
    return pytestconfig.stash.setdefault(_MEASURED, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(_MEASURED, []):
        terminalreporter.write_line(line)
