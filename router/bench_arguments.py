"""What may be said after `router bench`.

The one rule: a default that depends on what is asked is told in the help and set where it is known. Not here: the run
(`bench_cli`).
"""

import argparse
from pathlib import Path
from typing import Any

from router.arguments import count, json_argument, positive

REQUESTS = 60
_EPILOG = """exit codes: 0 every request was answered well; 1 some were not, or the server can't be measured; 2 the
command line can't be used as asked; 130 interrupted, after printing what there was."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Everything after `router bench`."""
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("url", nargs="*", metavar="URL", help="a server to measure, with or without /v1; several one after the other")
    add("--compare", nargs=2, metavar=("URL_A", "URL_B"), help="measure two in turns, A B B A, half of the load a turn")
    told = "with --compare: the same prompts on both sides; for two that share no cache"
    add("--same-prompts", action="store_true", help=told)
    _server_arguments(parser.add_argument_group("server"))
    _traffic_arguments(parser.add_argument_group("traffic"))
    results = parser.add_argument_group("results")
    results.add_argument("--slo-ttft", type=positive, metavar="S", help="target: first token within so many seconds")
    results.add_argument("--slo-e2e", type=positive, metavar="S", help="target: whole answer within so many seconds")
    results.add_argument("--prompt-version", metavar="TEXT", help="recorded beside the figures")
    results.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page")
    json_argument(parser)


def _server_arguments(parser: Any) -> None:
    add = parser.add_argument
    add("--model", default="", metavar="NAME", help="model or adapter to ask for (the first that /v1/models names)")
    add("--api-key-env", metavar="NAME", help="environment variable that holds the API key")
    add("--header", action="append", default=[], metavar="NAME:VALUE", help="sent with every request; may be repeated")
    told = "an engine whose prefix-cache counters to read; may be repeated (the URL itself)"
    add("--metrics", action="append", metavar="URL", help=told)
    add("--timeout", type=positive, default=120.0, metavar="S", help="longest wait for one answer (%(default)g)")
    told = "requests under way at most; those beyond wait and are counted as late (%(default)s)"
    add("--concurrency-limit", type=count(1), default=512, metavar="COUNT", help=told)


def _traffic_arguments(parser: Any) -> None:
    add = parser.add_argument
    add("--rate", type=_rates, default=(), metavar="PER_S,…", help="requests per second, one after the other (2)")
    add("--requests", type=count(1), metavar="COUNT", help=f"requests of each phase ({REQUESTS})")
    add(
        "--duration",
        type=positive,
        metavar="S",
        help="length of each phase instead, or as well: the earlier end counts",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--file", type=Path, metavar="FILE", help="own prompts: JSONL of bodies, or an OpenAI batch")
    source.add_argument("--trace", type=Path, metavar="FILE", help="own trace, as `router sim` reads it; its own times")
    told = "what to ask: shared, unique, own (shared,unique, and own where given)"
    add("--groups", type=_names, metavar="NAME,…", help=told)
    add("--as-is", action="store_true", help="send own bodies without the mark that makes them cold")
    add("--endpoint", choices=("chat", "completions"), default="chat", help="completions counts tokens exactly")
    add("--prefix-tokens", type=count(0), default=2000, metavar="COUNT", help="tokens in a prefix (%(default)s)")
    add("--question-tokens", type=count(1), default=100, metavar="COUNT", help="tokens after the prefix (%(default)s)")
    add("--prefixes", type=count(1), default=4, metavar="COUNT", help="prefixes of the shared group (%(default)s)")
    add("--max-tokens", type=count(1), metavar="COUNT", help="tokens of an answer (32, or what own requests say)")
    add("--extra", type=_object, metavar="JSON", help='members added to every body, such as {"ignore_eos": true}')
    add("--seed", type=int, default=1, help="seed of prompts and times (%(default)s)")


def _rates(text: str) -> tuple[float, ...]:
    return tuple(positive(part) for part in text.split(","))


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in ("shared", "unique", "own"):
            raise argparse.ArgumentTypeError(f"there is no group {name!r}; use shared, unique, own")
    return names


def _object(text: str) -> dict[str, Any]:
    import orjson

    try:
        told = orjson.loads(text)
    except orjson.JSONDecodeError:
        told = None
    if not isinstance(told, dict):
        raise argparse.ArgumentTypeError("is no JSON object")
    return told
