"""The same count as `simulator.py` for the peer that runs offline: Dynamo's mocker, whose engines are Rust.

    python -m venv PEER && PEER/bin/pip install --no-deps ai-dynamo-runtime==1.6.1
    PEER/bin/python bench/simulator_peer.py [--requests 6000] [--rate 2.0]

Its own synthetic sessions, as near to ours as its options allow: 5 turns of 2,200 tokens in and 400 out, half of the
prompt one of 20 shared heads, 15 s between turns. It draws ties at random, so its counts differ between runs.
"""

import argparse
import os
import time

TURNS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=6_000)
    parser.add_argument("--rate", type=float, default=2.0, help="requests per second and replica")
    options = parser.parse_args()
    os.environ.setdefault("DYN_LOG", "error")  # else its router prints a line per decision
    from dynamo._core import run_mocker_synthetic_trace_replay

    for replicas in (16, 64):
        for mode in ("round_robin", "kv_router"):
            start_s = time.process_time()
            result = run_mocker_synthetic_trace_replay(
                2200,
                400,
                options.requests // TURNS,
                num_workers=replicas,
                router_mode=mode,
                request_rate=options.rate * replicas / TURNS,
                turns_per_session=TURNS,
                shared_prefix_ratio=0.5,
                num_prefix_groups=20,
                inter_turn_delay_ms=15_000.0,
            )
            cpu_s = time.process_time() - start_s
            requests = result.summary["num_requests"]
            print(f"{replicas} replicas, {mode}: {requests} requests, {requests / cpu_s:.0f} per CPU-second")


if __name__ == "__main__":
    main()
