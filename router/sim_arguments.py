"""What may be said after `router sim`.

The one rule: a default here is the simulator's own; what a preset may decide has none. Not here: the commands.
"""

import argparse
from pathlib import Path
from typing import Any

from router.arguments import count, json_argument, positive

DEFAULT_PRESET = "lesson"
DEFAULT_POLICIES = "round-robin,user-hash,prefix-aware"
_EPILOG = """exit codes: 0 done; 1 failed, such as a trace with a bad row; 2 the command line can't be used as asked;
130 interrupted."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Everything after `router sim`."""
    parser.epilog = _EPILOG
    _traffic_arguments(parser.add_argument_group("traffic"))
    _fleet_arguments(parser.add_argument_group("replicas"))
    _router_arguments(parser.add_argument_group("router"))
    _result_arguments(parser.add_argument_group("results"))
    _more_commands(parser)


def _traffic_arguments(parser: Any) -> None:
    add = parser.add_argument
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--preset", metavar="NAME", help=f"made-up traffic ({DEFAULT_PRESET}); any wrong name lists them"
    )
    source.add_argument(
        "--trace", type=Path, metavar="FILE", help="a log of requests, plain or .gz; its format is detected"
    )
    add("--requests", type=count(1), metavar="COUNT", help="how many requests")
    add("--rate", type=positive, metavar="PER_S", help="requests per second")
    add("--seed", type=int, default=1, help="seed of the traffic and the policies (%(default)s)")
    add(
        "--seeds", type=count(1), default=1, metavar="COUNT", help="run so many seeds and show the spread (%(default)s)"
    )
    add("--tenants", type=count(1), metavar="COUNT", help="how many tenants")
    add("--salt", choices=("none", "tenant", "user"), help="who shares cached blocks with whom")
    add(
        "--volatile",
        choices=("none", "head", "before-message"),
        help="where prompts carry something that always changes",
    )
    add("--cache-outputs", choices=("on", "off"), help="whether later turns hit the blocks of earlier answers")
    add(
        "--replay",
        choices=("timestamps", "think"),
        help="send by the clock, or when the user has read the answer before",
    )
    add("--describe", action="store_true", help="tell what a trace holds, and simulate nothing")
    add("--tokenizer", type=Path, metavar="FOLDER", help="tokenizer for the text of a trace")
    add("--skip-bad", action="store_true", default=None, help="leave bad rows of a trace out and count them")
    add(
        "--trace-block-size",
        dest="trace_block_tokens",
        type=count(1),
        metavar="TOKENS",
        help="tokens in a trace's block",
    )
    add("--time-unit", choices=("s", "ms", "us", "ns"), help="unit of a trace's times, where it is not the usual one")
    add("--answers", type=Path, metavar="FILE", help="output file of an OpenAI batch trace")


def _fleet_arguments(parser: Any) -> None:
    add = parser.add_argument
    add("--replicas", type=count(1), metavar="COUNT", help="how many replicas (the preset's, 4 for a trace)")
    add(
        "--blocks",
        type=count(2),
        metavar="COUNT",
        help="KV blocks of each, one of them the null block (the preset's, for a trace the profile's)",
    )
    add("--block-size", type=count(1), metavar="TOKENS", help="tokens in a block (16)")
    add(
        "--profile",
        metavar="NAME",
        help="a model on a GPU (the preset's, for a trace llama-3.1-8b-h100)",
    )
    add("--max-num-seqs", type=count(1), default=256, metavar="COUNT", help="requests in one batch (%(default)s)")
    add(
        "--max-num-batched-tokens",
        type=count(1),
        default=8192,
        metavar="COUNT",
        help="tokens in one step (%(default)s)",
    )
    add("--sync-scheduling", action="store_true", help="as vLLM with --no-async-scheduling")


def _router_arguments(parser: Any) -> None:
    add = parser.add_argument
    add(
        "--policy",
        action="append",
        metavar="NAME[,NAME]",
        help=f"names of `router policies`, module:Class, or all ({DEFAULT_POLICIES}; for the lesson all)",
    )
    add("--index", choices=("sent", "events"), default="sent", help="what the router's index follows (%(default)s)")
    add(
        "--event-lag",
        type=_lags,
        default=0.0,
        metavar="S[,S]",
        help="until the router knows of an event, by replica (0)",
    )
    add("--event-loss", type=_fraction, default=0.0, metavar="FRACTION", help="share of event messages that get lost")
    add("--index-capacity", type=_capacity, default=1.0, metavar="FACTOR", help="of the caches', or unknown (1)")
    add("--no-speculative", action="store_true", help="enter blocks when they are computed, not when they are sent")
    add("--knows-answers", action="store_true", help="enter the blocks of answers too")
    add("--no-correction", action="store_true", help="replicas don't tell how many tokens they found cached")
    add(
        "--report-every",
        type=_not_negative,
        default=2.0,
        metavar="S",
        help="age of replicas' own numbers; 0 is fresh (2)",
    )


def _result_arguments(parser: Any) -> None:
    add = parser.add_argument
    add("--slo-ttft", type=positive, default=1.0, metavar="S", help="latest good first token, in seconds (%(default)s)")
    add("--slo-tpot", type=positive, default=0.1, metavar="S", help="longest good time per further token (%(default)s)")
    add("--no-bounds", action="store_true", help="leave out no cache, one infinite cache, and the oracle")
    form = parser.add_mutually_exclusive_group()
    json_argument(form)
    form.add_argument("--csv", action="store_true", help="print CSV, a line for every policy and seed")
    add("--html", type=Path, metavar="FILE", help="write one page with charts too")


def _more_commands(parser: argparse.ArgumentParser) -> None:
    from sim import calibrate, sweep

    added = parser.add_subparsers(metavar="[sweep | calibrate]", required=False, parser_class=type(parser))
    sub = _command(added, "sweep", "over rates, replicas, cache sizes and policies; finds each curve's knee")
    sweep.add_arguments(sub)
    sub.set_defaults(sim_main=sweep.main)
    sub = _command(added, "calibrate", "fit a profile's engine overhead to a log of real requests")
    calibrate.add_arguments(sub)
    sub.set_defaults(sim_main=calibrate.main)


def _command(added: Any, name: str, summary: str) -> argparse.ArgumentParser:
    description = summary[:1].upper() + summary[1:] + "."
    parser: argparse.ArgumentParser = added.add_parser(
        name, help=summary, description=description, epilog=_EPILOG, allow_abbrev=False
    )
    return parser


def _not_negative(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return value


def _lags(text: str) -> float | tuple[float, ...]:
    lags = tuple(_not_negative(part) for part in text.split(","))
    return lags if len(lags) > 1 else lags[0]


def _capacity(text: str) -> float | str:
    return text if text == "unknown" else positive(text)


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no fraction between 0 and 1")
    return value
