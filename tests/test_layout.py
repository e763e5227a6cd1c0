"""The house rules a reader relies on: a test for every module, short files and functions, commands that start fast."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("policies", "router", "sim")
MOST_LINES = 330
MOST_FUNCTION_LINES = 70

TESTED_ELSEWHERE = {
    "policies/errors.py": "test_plugins.py",  # names only; raised there and in test_fleet
    "policies/flights.py": "test_entries.py",  # values only
    "sim/errors.py": "test_replica.py",  # names only
    "sim/arrivals.py": "test_run.py",  # values only
    "sim/cache_events.py": "test_kv_cache.py",  # values only
    "sim/outcome.py": "test_rows.py",  # values only, made there
    "sim/setup.py": "test_run.py",  # values only
    "sim/jobs.py": "test_replica.py",  # the values a replica takes and gives
    "sim/live.py": "test_emulator.py",  # the emulator's clock, seen through its answers
    "sim/emulator_*.py": "test_emulator.py",  # parts of one server, tested as its clients see it
    "router/heard_events.py": "test_heard.py",  # values only
    "router/prompt_*.py": "test_prompts.py",  # parts of one reader, tested as the gateway calls it
    "router/kv_*.py": "test_kv_events.py",  # parts of one listener, tested over real sockets
    "router/accounts.py": "test_gateway.py",  # parts of one request's line, tested as clients see it
    "router/outcome.py": "test_metrics.py",  # values only
    "router/forwarding.py": "test_gateway.py",
    "router/member_wiring.py": "test_membership.py",
    "router/ports.py": "test_web.py",  # opened by every test that asks a router
    "router/side_connection.py": "test_web.py",
    "router/http/listener.py": "test_server.py",  # values only
    "router/tenant_wiring.py": "test_tenants.py",  # wiring, seen by what a whole router does
    "router/tenant_file.py": "test_tenants_cli.py",  # seen by what the command does to a file
    "router/tenant_metrics.py": "test_tenants.py",
    "router/placing.py": "test_gateway.py",
    "router/insight.py": "test_tracing.py",  # wiring, seen by what is on and what is off
    "router/sim_arguments.py": "test_sim_cli.py",  # one command's options, seen by what they do
    "router/bench_arguments.py": "test_bench_cli.py",
    "router/sections.py": "test_config.py",  # values only
    "router/http/exchange.py": "test_upstream.py",  # values only
    "router/http/heads.py": "test_messages.py",  # what goes on and what does not, with the rest of a call
    "router/http/reading.py": "test_connection.py",  # how a connection is read
}
"""Modules without a test file of their own: where they are tested, and why there."""

OF_SEVERAL_MODULES = {
    "test_fuzz.py",  # every parser that is ours
    "test_hostile.py",  # the whole router, as those who mean harm use it
    "test_refused_requests.py",  # both readers of requests, on bytes that are no HTTP
    "test_reported.py",  # the whole router, against faults of other routers
    "test_soak.py",  # the whole router, while everything around it fails
    "test_clients.py",  # the whole router, as client libraries use it
    "test_backpressure.py",  # the whole router as a process, with clients that stop reading
    "test_cancellation.py",  # clients that leave, in every phase of a request
    "test_uvloop.py",  # clients that leave, on the faster loop
    "test_failover.py",  # the whole router over replicas that are killed, stopped and started again
    "test_published.py",  # the whole simulator, against what others published
}
"""Test files that are named after no module, and what they test."""

SOURCES = [
    path.relative_to(ROOT)
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if path.name not in ("__init__.py", "__main__.py")
]


def files_testing(package: str) -> set[str]:
    return {path.name for path in (ROOT / "tests" / package).rglob("test_*.py")}


def named(paths):
    return [pytest.param(path, id=path.as_posix()) for path in paths]


@pytest.mark.parametrize("source", named(SOURCES))
def test_module_has_a_test_file(source):
    wanted = {f"test_{source.name}"} | {test for pattern, test in TESTED_ELSEWHERE.items() if source.match(pattern)}
    assert wanted & files_testing(source.parts[0]), f"write {' or '.join(sorted(wanted))}"


@pytest.mark.parametrize("pattern", TESTED_ELSEWHERE)
def test_exception_is_needed(pattern):
    excused = [source for source in SOURCES if source.match(pattern)]
    without = [source for source in excused if f"test_{source.name}" not in files_testing(source.parts[0])]
    assert without, f"{pattern} excuses nothing; take it out"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_test_file_is_named_after_a_module(package):
    subjects = {f"test_{source.name}" for source in SOURCES if source.parts[0] == package}
    assert files_testing(package) - subjects - OF_SEVERAL_MODULES == set()


@pytest.mark.parametrize("source", named(SOURCES))
def test_files_and_functions_are_short(source):
    text = (ROOT / source).read_text("utf-8")
    lines = len(text.splitlines())
    assert lines <= MOST_LINES, f"{source} has {lines} lines; split it"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MOST_FUNCTION_LINES, f"{source}: {node.name} has {length} lines; split it"


@pytest.mark.parametrize("source", named(SOURCES))
def test_module_says_what_it_is(source):
    told = ast.get_docstring(ast.parse((ROOT / source).read_text("utf-8"))) or ""
    assert len(told.splitlines()) >= 1, f"{source} has no docstring"
    assert len(told.splitlines()) <= 16, f"{source} tells too much before it begins"


def test_tests_are_no_packages():
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_the_command_line_loads_nothing_heavy():
    code = "import sys, router.cli; print(*sys.modules, sep='\\n')"
    loaded = subprocess.run(  # noqa: S603 -- our own program
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert "router.cli" in loaded
    assert {"aiohttp", "jinja2", "numpy", "pydantic", "tokenizers", "uvloop"}.isdisjoint(loaded)
