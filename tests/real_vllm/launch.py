"""Starts real vLLM servers on the CPU, for tests: one process that has imported everything forks each of them.

Run by the engine's own Python. It reads lines, each a JSON list, and answers each with a line:

    ["start", PORT, LOG, [ARGUMENTS of the API server ...]]    the number of the new process group
    ["kill", GROUP]                                            0, once every process of the group has ended

The one rule: when its input ends, whatever was started is killed. vLLM's own way (a fresh interpreter for each of three
processes a server) takes twice the CPU and four times the time.
"""

import contextlib
import ctypes
import json
import multiprocessing
import os
import signal
import sys
import warnings

warnings.simplefilter("ignore")
for name, value in {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
}.items():
    os.environ.setdefault(name, value)
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # what libraries print is no answer

import vllm.utils.system_utils  # noqa: E402 -- the environment comes first

vllm.utils.system_utils.get_mp_context = lambda: multiprocessing.get_context("fork")

import transformers.models.qwen3  # noqa: E402, F401
import vllm.entrypoints.openai.chat_completion.serving  # noqa: E402
import vllm.entrypoints.openai.completion.serving  # noqa: E402
import vllm.model_executor.models.qwen3  # noqa: E402
import vllm.v1.engine.coordinator  # noqa: E402
import vllm.v1.engine.core  # noqa: E402
import vllm.v1.engine.utils  # noqa: E402
import vllm.v1.executor.multiproc_executor  # noqa: E402
import vllm.v1.worker.cpu_worker  # noqa: E402
from vllm.entrypoints.launchers.api_server import entry  # noqa: E402


def started(port: int, log: str, arguments: list[str]) -> int:
    """Fork a server that leads a process group of its own."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    os.nice(10)
    nothing = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    for source, target in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    os.close(answers.fileno())
    sys.argv = ["api_server", "--host", "127.0.0.1", "--port", str(port), *arguments]
    try:
        entry.main()
    finally:
        os._exit(0)


def ended(group: int) -> None:
    """Kill a group and wait until nothing of it is left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-group, 0)


_BECOME_SUBREAPER = 36  # linux/prctl.h: a dead server's own children are ours to wait for
ctypes.CDLL(None).prctl(_BECOME_SUBREAPER, 1, 0, 0, 0)
groups: list[int] = []
answers.write('"ready"\n')
for line in sys.stdin:
    what, *details = json.loads(line)
    if what == "start":
        groups.append(started(*details))
        answers.write(f"{groups[-1]}\n")
    else:
        groups.remove(details[0])
        ended(details[0])
        answers.write("0\n")
for group in groups:
    ended(group)
