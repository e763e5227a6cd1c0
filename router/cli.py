"""The `router` command: reads the command line, loads what one command needs, and turns its end into an exit code.

Exit codes: 0 done, 1 failed, 2 can't be used as asked, 130 interrupted. The one rule: nothing heavy is imported before
the command is known, so that help is fast. Not here: what the commands do, except the emulated replica, which is the
one place where the router starts something of `sim`.
"""

import argparse
import errno
import os
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

from router import guard
from router.arguments import (
    Arguments,
    Command,
    Unusable,
    configuration,
    configuration_arguments,
    count,
    event_port,
    json_argument,
    parsed,
    positive,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    hidden = guard.conflicts()
    if hidden:
        return _told("\n  ".join(["another package hides one of ours:", *hidden]), 2)
    try:
        arguments = parsed(words, COMMANDS)
        command: Command = arguments.command
        return command.run(arguments)
    except SystemExit as ended:  # argparse, after --help and --version
        return int(ended.code or 0)
    except Unusable as error:
        return _told(str(error), 2)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that the interpreter's last flush has somewhere to go
        return 1
    except ImportError as error:
        return _told("\n".join([f"{error.name or 'a package'} can't be imported: {error}", *guard.other_owners()]), 1)
    except Exception as error:
        return _failed(error)


def _failed(error: Exception) -> int:
    """Errors that have a text for the user end with it; anything else is a bug and keeps its traceback."""
    from policies.errors import PolicyError
    from router.errors import RouterError, UsageError

    if isinstance(error, UsageError | PolicyError):
        return _told(str(error), 2)
    if isinstance(error, RouterError):
        return _told(str(error), 1)
    if isinstance(error, OSError):
        told = error.strerror or str(error) or type(error).__name__
        if error.errno == errno.EADDRINUSE:
            told += "; choose another port with --port or --admin-port"
        return _told(f"{error.filename}: {told}" if error.filename else told, 1)
    raise error


def _told(message: str, code: int) -> int:
    sys.stderr.write(f"router: {message}\n")
    return code


# -- commands ----------------------------------------------------------------------------------------------------------


def _serve(arguments: Arguments) -> int:
    from router import log
    from router.errors import UsageError
    from router.serving import serve

    config, _ = configuration(arguments)
    if not (config.replicas or config.replicas_file):
        raise UsageError("no replicas; name them: router serve --replicas http://127.0.0.1:8001,http://127.0.0.1:8002")
    log.configure(config.log.level, config.log.format)
    return serve(config, lambda: configuration(arguments)[0], arguments.config)


def _replica_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to serve on (%(default)s)")
    add("--port", type=count(0), default=8001, help="port to serve on; 0 takes any free one (%(default)s)")
    add("--name", default="replica", help="its name in its own log lines (%(default)s)")
    add("--model", default="tiny", help="the model name it serves (%(default)s)")
    add("--adapter", action="append", default=[], metavar="NAME", help="a LoRA adapter it serves too; may be repeated")
    folder = "folder with tokenizer.json (the one that ships with the router)"
    add("--tokenizer", type=Path, metavar="FOLDER", help=folder)
    add("--profile", default="", metavar="NAME", help="how fast it is: a model on a GPU (llama-3.1-8b-h100)")
    add("--speed", type=positive, default=1.0, help="times as fast as the profile (%(default)s)")
    add("--blocks", type=count(2), default=4096, help="KV blocks, one of them the null block (%(default)s)")
    add("--block-size", type=count(1), default=16, help="tokens in a block (%(default)s)")
    add("--max-num-seqs", type=count(1), default=256, help="requests in one batch (%(default)s)")
    add("--max-num-batched-tokens", type=count(1), default=8192, help="tokens in one step (%(default)s)")
    add("--max-model-len", type=count(2), default=32_768, help="longest prompt and answer together (%(default)s)")
    add("--max-num-queued-reqs", type=count(1), metavar="COUNT", help="answer 503 beyond so many requests (no limit)")
    add("--data-parallel-size", type=count(1), default=1, help="engines behind its port (%(default)s)")
    add("--shutdown-timeout", type=float, default=0.0, metavar="S", help="on SIGTERM, drain so long (%(default)s)")
    add("--faults", action="store_true", help="let POST /faults make it hang, slow, fail or cut answers")
    told = "publish KV cache events there and replay them from the next port; auto takes free ones (%(default)s)"
    add("--kv-events", type=event_port, default="off", metavar="PORT|auto|off", help=told)


def _replica(arguments: Arguments) -> int:
    """An emulated vLLM server, until SIGTERM or Ctrl-C."""
    import asyncio
    import signal

    from router.errors import UsageError
    from router.readers import TINY
    from sim.cost import DEFAULT_PROFILE, PROFILES
    from sim.emulator import start
    from sim.emulator_faults import Faults

    profile = PROFILES.get(arguments.profile or DEFAULT_PROFILE)
    if profile is None:
        close = get_close_matches(arguments.profile, PROFILES, n=1) or [", ".join(PROFILES)]
        raise UsageError(f"no profile is named {arguments.profile!r}; did you mean {close[0]}?")
    folder = arguments.tokenizer or TINY
    tokenize, detokenize, size = _words(folder)
    sizes: dict[str, Any] = {
        "blocks": arguments.blocks,
        "block_tokens": arguments.block_size,
        "max_num_seqs": arguments.max_num_seqs,
        "max_batched_tokens": arguments.max_num_batched_tokens,
        "max_model_len": arguments.max_model_len,
        "max_queued": arguments.max_num_queued_reqs,
        "faults": Faults() if arguments.faults else None,
        "kv_events": arguments.kv_events,
        "ranks": arguments.data_parallel_size,
    }

    async def life() -> int:
        loop = asyncio.get_running_loop()
        stopping: asyncio.Queue[int] = asyncio.Queue()
        for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
            loop.add_signal_handler(number, stopping.put_nowait, code)
        emulator = await start(
            arguments.host,
            arguments.port,
            name=arguments.name,
            model=arguments.model,
            adapters=arguments.adapter,
            root=str(folder),
            profile=profile,
            speed=arguments.speed,
            tokenize=tokenize,
            detokenize=detokenize,
            vocabulary_tokens=min(size, 4096),
            **sizes,
        )
        try:
            sys.stderr.write(
                f"{arguments.name}: {arguments.model} on {emulator.url}, {arguments.blocks} blocks of"
                f" {arguments.block_size} tokens, as {profile.name}\n"
            )
            code = await stopping.get()
            if code == 0 and arguments.shutdown_timeout > 0:
                emulator.drain()
                await asyncio.wait([asyncio.ensure_future(stopping.get())], timeout=arguments.shutdown_timeout)
            return code
        finally:
            await emulator.close()

    return asyncio.run(life())


def _words(folder: Path) -> tuple[Callable[[str, dict[str, Any]], list[int]], Callable[[list[int]], str], int]:
    """The tokenizer of a folder as the emulator wants it: ids of a body, text of ids, size of the vocabulary."""
    from router.chat import NotText
    from router.errors import UsageError
    from router.readers import local_reader
    from router.templates import TemplateError
    from router.tokenizers import TokenizerError

    try:
        reader = local_reader(folder, block_tokens=16)
    except (TokenizerError, TemplateError) as error:
        raise UsageError(f"--tokenizer {error}") from error

    def tokenize(route: str, body: dict[str, Any]) -> list[int]:
        try:
            return reader.token_ids(route, body)
        except (NotText, TemplateError, TokenizerError) as error:
            raise ValueError(str(error)) from error

    return tokenize, reader.tokenizer.decode, reader.tokenizer.vocabulary_size


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--policy", action="append", metavar="NAME", help="a policy to run; may be repeated (three that teach)")
    add("--requests", type=count(1), metavar="COUNT", help="how many requests of the lesson (all 1200)")
    add("--rate", type=positive, default=60.0, metavar="PER_S", help="requests per second (%(default)s)")
    add("--blocks", type=count(2), default=5000, metavar="COUNT", help="KV blocks of each replica (%(default)s)")
    add("--seed", type=int, default=1, help="seed of the traffic (%(default)s)")
    add("--approximate", action="store_true", help="each policy once more, without the replicas' KV events")
    json_argument(parser)


def _demo(arguments: Arguments) -> int:
    from policies.plugins import load
    from router import log
    from router.demo import POLICIES, run
    from sim.workload import lesson_turns

    policies = arguments.policy or POLICIES
    list(map(load, policies))  # a policy that can't be used is said before anything starts
    log.configure("warning")
    turns = lesson_turns(arguments.seed, arguments.rate)[: arguments.requests]
    more = {"approximate": arguments.approximate, "as_json": arguments.json}
    return run(turns, blocks=arguments.blocks, policies=policies, **more)


def _policies(arguments: Arguments) -> int:
    from router.tables import print_policies

    return print_policies(as_json=arguments.json)


def _config(arguments: Arguments) -> int:
    from router.tables import print_config

    config, origins = configuration(arguments)
    return print_config(config, origins, as_json=arguments.json)


def _explain_arguments(parser: argparse.ArgumentParser) -> None:
    from router.openai import CHAT

    add = parser.add_argument
    add("body", metavar="BODY.json", help="a request body; - reads standard input")
    add("--url", default="http://127.0.0.1:9090", help="admin address of a running router (%(default)s)")
    add("--path", default=CHAT, help="the path the body would be posted to (%(default)s)")
    add("--tokenizer", type=Path, metavar="FOLDER", help="ask no router: show tokens and blocks by this tokenizer")
    add("--block-tokens", type=count(1), default=16, help="with --tokenizer: tokens in a block (%(default)s)")
    add("--tenant", default="", metavar="NAME", help="the tenant that would send it, where tenants are on")
    json_argument(parser)


def _explain(arguments: Arguments) -> int:
    from router.explain import explain, offline

    if arguments.tokenizer is not None:
        told = offline(arguments.body, arguments.path, arguments.tokenizer, arguments.block_tokens)
    else:
        told = explain(arguments.body, arguments.path, arguments.url, arguments.tenant)
    from router.tables import print_explained

    return print_explained(told, as_json=arguments.json)


def _check(arguments: Arguments) -> int:
    from router import log
    from router.check import check
    from router.errors import UsageError
    from router.tables import print_check

    config, _ = configuration(arguments)
    if not (config.replicas or config.replicas_file):
        raise UsageError("no replicas to check; name them with --replicas or --config")
    log.configure("error")
    checkup = check(config, os.environ, probe=arguments.probe)
    if arguments.isolation:
        from router.isolation import examined

        examined(checkup.replicas, config.replica_key(os.environ))
    return print_check(checkup, as_json=arguments.json)


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    _with_json(parser)
    parser.add_argument(
        "--probe", action="store_true", help="send each replica a fresh 2,000-token prompt twice, to prove it caches"
    )
    told = "send each replica a fresh prompt as two tenants and twice as one, to prove that it keeps them apart"
    parser.add_argument("--isolation", action="store_true", help=told)


def _of_module(summary: str, name: str, arguments_name: str = "") -> Command:
    """A command with a module of its own (or two), imported when somebody asks for it."""

    def arguments(parser: argparse.ArgumentParser) -> None:
        import_module(arguments_name or name).arguments(parser)

    def run(given: Arguments) -> int:
        return int(import_module(name).run(given))

    return Command(summary, arguments, run)


def _with_json(parser: argparse.ArgumentParser) -> None:
    configuration_arguments(parser)
    json_argument(parser)


COMMANDS = {
    "serve": Command("serve clients over a fleet of vLLM replicas", configuration_arguments, _serve),
    "check": Command("ask the replicas what would go wrong", _check_arguments, _check),
    "explain": Command("say where one request would go, and why", _explain_arguments, _explain),
    "doctor": _of_module("say what breaks the prefix in prompts, and what mending it saves", "router.doctor_cli"),
    "policies": Command("list the installed policies and their settings", json_argument, _policies),
    "config": Command("print every setting, its value and where that came from", _with_json, _config),
    "demo": Command("compare policies on emulated replicas; needs no GPU", _demo_arguments, _demo),
    "tenants": _of_module("add, list, rotate and remove tenants and their keys", "router.tenants_cli"),
    "sim": _of_module(
        "compare policies on a workload or a trace, in virtual time", "router.sim_cli", "router.sim_arguments"
    ),
    "bench": _of_module(
        "measure any OpenAI-compatible server under an open load", "router.bench_cli", "router.bench_arguments"
    ),
    "replica": Command("run one emulated vLLM replica", _replica_arguments, _replica),
}
