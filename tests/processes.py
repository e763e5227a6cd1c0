"""The router as a process of its own, what it said, and what it holds."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent


@contextmanager
def served(*words: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """`router serve` in a process of its own, on free ports."""
    command = [sys.executable, "-m", "router", "serve", "--set", "listen.port=0", "--set", "admin.port=0", *words]
    out = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, env=env, cwd=ROOT, **out) as process:  # noqa: S603
        try:
            yield process
        finally:
            process.kill()


def addresses(process: subprocess.Popen[str]) -> tuple[str, str, str]:
    """The public and the admin URL of a router that has started, and what it said until then."""
    said = ""
    for line in process.stderr or ():
        said += line
        if found := re.search(r"serving (http://127\.0\.0\.1:\d+) .* admin on (http://127\.0\.0\.1:\d+)", line):
            return found[1], found[2], said
    raise AssertionError(f"the router did not start: {said}")


def address(process: subprocess.Popen[str]) -> str:
    return addresses(process)[0]


def peak_bytes(process: subprocess.Popen[str]) -> int:
    """The most memory the process ever had resident."""
    return _kilobytes(process, "VmHWM") * 1024


def resident_bytes(process: subprocess.Popen[str]) -> int:
    return _kilobytes(process, "VmRSS") * 1024


def open_files(process: subprocess.Popen[str]) -> int:
    return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


def thread_count(process: subprocess.Popen[str]) -> int:
    return len(list(Path(f"/proc/{process.pid}/task").iterdir()))


def _kilobytes(process: subprocess.Popen[str], name: str) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text("utf-8")
    (found,) = re.findall(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)
    return int(found)
