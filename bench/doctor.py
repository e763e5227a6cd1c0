"""What reading prompts costs the doctor: an OpenAI batch of a given size, healthy and broken, without a tokenizer.

    python bench/doctor.py [--mb 100] [--json]

Each file is read by a process of its own, so that its peak memory is its own. Reported: CPU seconds for a GB, peak
resident memory, and what was found. Not here: the doctor of a running router, timed per request by `--live`.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import orjson

MB = 1024 * 1024
WORDS = [a + b for a in "bdfghklmnprst" for b in ("ank", "elt", "ing", "orm", "ust", "iver", "ation", "ent")]


def prose(draw: random.Random, characters: int) -> str:
    lines = []
    while characters > 0:
        lines.append(" ".join(draw.choices(WORDS, k=12)) + ".")
        characters -= len(lines[-1]) + 1
    return "\n".join(lines)


def bodies(draw: random.Random, *, broken: bool) -> Iterator[dict[str, object]]:
    """Endless chats of eight services: 8 KB of system prompt, ten turns of about 1 KB, twenty users at a time."""
    systems = [prose(draw, 8 * 1024) for _ in range(8)]
    tools = [
        {"type": "function", "function": {"name": f"tool_{n}", "description": prose(draw, 300), "parameters": {}}}
        for n in range(6)
    ]
    number = 0
    while True:
        chats: list[list[dict[str, str]]] = [[] for _ in range(20)]
        services = [draw.choice(systems) for _ in chats]
        for _ in range(10):
            for chat, system in zip(chats, services, strict=True):
                number += 1
                chat.append({"role": "user", "content": prose(draw, 400)})
                head = f"Current time: 2026-03-01T10:{number // 60 % 60:02}:{number % 60:02}Z\n" if broken else ""
                yield {
                    "model": "m",
                    "tools": tools,
                    "messages": [{"role": "system", "content": head + system}, *chat],
                }
                chat.append({"role": "assistant", "content": prose(draw, 600)})


def batch(file: Path, size: int, *, broken: bool) -> None:
    with file.open("wb") as out:
        for number, body in enumerate(bodies(random.Random(1), broken=broken)):
            row = {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}
            out.write(orjson.dumps(row) + b"\n")
            if out.tell() >= size:
                return


def read(file: Path) -> dict[str, object]:
    """In a process of its own: CPU, wall time and peak memory of one reading, and what it printed."""
    code = (
        "import json, resource, sys, time; from router.cli import main; began = time.monotonic()\n"
        "code = main(['doctor', sys.argv[1], '--json']); usage = resource.getrusage(resource.RUSAGE_SELF)\n"
        "told = [usage.ru_utime + usage.ru_stime, time.monotonic() - began, usage.ru_maxrss, code]\n"
        "sys.stderr.write(json.dumps(told))"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, check=True)
    cpu_s, wall_s, peak_kb, code_of_exit = json.loads(ended.stderr)
    told = json.loads(ended.stdout)
    gb = file.stat().st_size / 1e9
    return {
        "cpu_s_per_gb": round(cpu_s / gb, 1),
        "wall_s_per_gb": round(wall_s / gb, 1),
        "peak_mb": round(peak_kb * (1 if sys.platform != "darwin" else 1 / 1024) / 1024),
        "exit_code": code_of_exit,
        "requests": told["requests"],
        "findings": [one["kind"] for family in told["families"] for one in family["findings"] if one["breaks"]],
    }


def live(rounds: int = 20_000) -> dict[str, object]:
    """What one request of about 32 KB costs the doctor of a running router."""
    from itertools import islice

    from router.doctor.live import Live

    draw = random.Random(2)
    sent = []
    for body in islice(bodies(draw, broken=True), 200):
        padded = {**body, "messages": [*body["messages"], {"role": "user", "content": prose(draw, 16 * 1024)}]}  # type: ignore[misc] # a list
        sent.append(orjson.dumps(padded))
    doctor = Live(time.monotonic)
    slowest = 0.0
    began = time.thread_time()
    for number in range(rounds):
        at = time.thread_time()
        doctor.seen("r", "/v1/chat/completions", 8000, sent[number % len(sent)])
        slowest = max(slowest, time.thread_time() - at)
    spent = time.thread_time() - began
    routes = doctor.document()["routes"]
    return {
        "bytes": sum(map(len, sent)) // len(sent),
        "us_per_request": round(spent / rounds * 1e6, 2),
        "looked_at": routes[0]["looked_at"],
        "slowest_ms": round(slowest * 1e3, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mb", type=int, default=100, help="size of each file (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    told: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("healthy", "broken"):
            file = Path(folder) / f"{name}.jsonl"
            batch(file, given.mb * MB, broken=name == "broken")
            told[name] = read(file)
            file.unlink()
    told["live"] = live()
    told["self"] = {"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}
    if given.json:
        sys.stdout.write(json.dumps(told, indent=1) + "\n")
        return
    for name, values in told.items():
        sys.stdout.write(f"{name}: " + ", ".join(f"{key} {value}" for key, value in values.items()) + "\n")


if __name__ == "__main__":
    main()
