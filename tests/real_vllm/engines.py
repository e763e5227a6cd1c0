"""Four real vLLM replicas on this machine's CPU, started once, each of which can be killed and started anew.

The one rule: whatever was started ends with the test session, also when that is killed: the launcher ends with its
input, and kills what it started. Not here: the router, and what its tests look at.
"""

import json
import os
import random
import socket
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ADAPTERS = ("sql", "poems")
BLOCK_TOKENS = 32
"""The smallest that vLLM's CPU backend takes."""
BLOCKS = 96
MAX_MODEL_TOKENS = 2048
COUNT = 4
_START_S = 400.0


@dataclass(slots=True)
class Engine:
    """One replica: where it is, and its process group while it runs."""

    name: str
    port: int
    events: int
    replay: int
    more: tuple[str, ...] = ()
    """Arguments beyond everybody's."""
    group: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def arguments(self) -> list[str]:
        events: dict[str, Any] = {"enable_kv_cache_events": True, "publisher": "zmq"}
        events |= {"endpoint": f"tcp://*:{self.events}", "replay_endpoint": f"tcp://*:{self.replay}"}
        return ["--kv-events-config", json.dumps(events), *self.more]

    def runs(self) -> bool:
        """Whether its first process has not ended; only its launcher can take note of an end, so it stays a zombie."""
        return Path(f"/proc/{self.group}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=1) as answer:  # noqa: S310 -- our own http
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False


@dataclass(slots=True)
class Engines:
    """All replicas, and the process that starts them."""

    folder: Path
    launcher: "subprocess.Popen[str]"
    all: list[Engine] = field(default_factory=list)

    @property
    def model(self) -> Path:
        return self.folder / "tiny"

    def start(self, *engines: Engine) -> None:
        """Start these and wait until each answers."""
        for engine in engines:
            log = self.folder / f"{engine.name}.log"
            engine.group = self._told("start", engine.port, str(log), [*self._common(), *engine.arguments])
        until_s = time.monotonic() + _START_S
        for engine in engines:
            while not engine.healthy():
                if time.monotonic() > until_s or not engine.runs():
                    told = (self.folder / f"{engine.name}.log").read_text("utf-8", "replace")[-3000:]
                    raise TimeoutError(f"{engine.name} did not start:\n{told}")
                time.sleep(0.1)

    def kill(self, engine: Engine) -> None:
        """End every process of a replica at once, as the kernel does when memory is short."""
        self._told("kill", engine.group)
        engine.group = 0

    def close(self) -> None:
        assert self.launcher.stdin is not None
        self.launcher.stdin.close()
        self.launcher.wait(timeout=300)  # the kernel takes its time to end some dozen processes on a busy machine
        assert self.launcher.stdout is not None
        self.launcher.stdout.close()

    def _common(self) -> list[str]:
        adapters = [f"{name}={self.folder / name}" for name in ADAPTERS]
        words = f"""--model {self.model} --served-model-name tiny --enforce-eager --enable-prompt-tokens-details
            --max-model-len {MAX_MODEL_TOKENS} --block-size {BLOCK_TOKENS} --num-gpu-blocks-override {BLOCKS}
            --kv-cache-memory-bytes 16777216 --max-num-seqs 8 --enable-lora --max-lora-rank 8 --max-loras 2
            --lora-modules"""
        return [*words.split(), *adapters]

    def _told(self, *line: Any) -> int:
        assert self.launcher.stdin is not None
        self.launcher.stdin.write(json.dumps(line) + "\n")
        self.launcher.stdin.flush()
        return int(self._answer())

    def _answer(self) -> Any:
        assert self.launcher.stdout is not None
        line = self.launcher.stdout.readline()
        if not line:
            raise RuntimeError(f"the launcher ended with {self.launcher.wait()}; see {self.folder / 'launcher.log'}")
        return json.loads(line)


def launched(python: str, tokenizer: Path, folder: Path, count: int) -> Engines:
    """Make the model, start the launcher and `count` replicas. `python` is the one that has vllm."""
    run = [python, str(HERE / "make_model.py"), str(folder), str(tokenizer)]
    subprocess.run(run, check=True, capture_output=True)  # noqa: S603 -- our own program
    with (folder / "launcher.log").open("w") as log:
        launcher = subprocess.Popen(  # noqa: S603
            [python, str(HERE / "launch.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    engines = Engines(folder, launcher)
    assert engines._answer() == "ready"
    for number in range(1, count + 1):
        engines.all.append(Engine(f"r{number}", *free_ports(3)))
    try:
        engines.start(*engines.all)
    except BaseException:
        engines.close()
        raise
    return engines


def free_ports(count: int, *, ranks: int = 1) -> list[int]:
    """Ports that nobody listens on, of those that no system gives away by itself: replicas take theirs much later.

    Of a server with several ranks, those behind each port are free as well.
    """
    found: list[int] = []
    for port in random.sample(range(20_000, 32_000, ranks), 12_000 // ranks):
        try:
            for rank in range(ranks):
                socket.create_server(("", port + rank)).close()
        except OSError:
            continue
        found.append(port)
        if len(found) == count:
            break
    return found


def python() -> str | None:
    """The Python that has vllm, when these tests are wanted."""
    return os.environ.get("ROUTER_TEST_VLLM")


def tokenizer() -> Path:
    """The folder with the tokenizer to give the model."""
    return Path(os.environ["ROUTER_TEST_TOKENIZER"])
