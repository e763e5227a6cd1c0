"""What `deploy/` says is true of the router: its metrics and their labels, its options and its settings."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import promql_parser as promql
import pytest
import yaml

from router.arguments import parsed
from router.cli import COMMANDS
from router.families import FAMILIES
from router.settings import settings

DEPLOY = Path(__file__).parent.parent / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "prefix-router.json").read_text("utf-8"))
RULES = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
SYSTEMD_ANALYZE = shutil.which("systemd-analyze")
OF_PROMETHEUS = {"job", "instance"}
ENDS = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
LABELS = {
    family.name + end: {*family.labels, *(("le",) if end == "_bucket" else ())} | OF_PROMETHEUS
    for family in FAMILIES
    for end in ENDS[family.kind]
}


def panels():
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> list[tuple[str, str]]:
    """Title and expression of everything that is asked of Prometheus."""
    found = [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]
    found += [(note["name"], note["expr"]) for note in DASHBOARD["annotations"]["list"]]
    return found + [(rule["alert"], rule["expr"]) for rule in RULES]


def parts(expression: promql.Expr):
    """The expression and everything within it."""
    yield expression
    for name in ("lhs", "rhs", "expr", "param", "vector_selector"):
        inside = getattr(expression, name, None)
        if isinstance(inside, promql.Expr):
            yield from parts(inside)
    for inside in getattr(expression, "args", None) or ():
        yield from parts(inside)


def selectors(expression: promql.Expr):
    return [part for part in parts(expression) if isinstance(part, promql.VectorSelector)]


def read(expression: str) -> promql.Expr:
    """Grafana fills in its variables before Prometheus sees the query."""
    return promql.parse(expression.replace("$__rate_interval", "1m").replace("$job", ".+"))


@pytest.mark.parametrize(("title", "expression"), [pytest.param(*pair, id=pair[0]) for pair in queries()])
def test_metrics_and_labels_exist(title, expression):
    read_ = read(expression)
    found = selectors(read_)
    assert found, title
    assert {one.name for one in found} == set(re.findall(r"router_\w+", expression))
    for one in found:
        assert one.name in LABELS, f"{title}: there is no metric {one.name}"
        named = {matcher.name for matcher in one.matchers.matchers}
        assert named <= LABELS[one.name], f"{title}: {one.name} has no label {named - LABELS[one.name]}"
    for part in parts(read_):
        if isinstance(part, promql.AggregateExpr) and part.modifier is not None:
            for one in selectors(part):
                assert set(part.modifier.labels) <= LABELS[one.name], f"{title}: {one.name}, {part.modifier.labels}"


@pytest.mark.parametrize(("title", "expression"), [pytest.param(*pair, id=pair[0]) for pair in queries()])
def test_counters_are_read_as_rates(title, expression):
    counters = {family.name for family in FAMILIES if family.kind == "counter"}
    for part in parts(read(expression)):
        inside = selectors(part)
        if isinstance(part, promql.AggregateExpr | promql.BinaryExpr) and any(one.name in counters for one in inside):
            assert re.search(r"\b(rate|increase)\(", expression), title


def test_values_of_labels_are_ones_the_router_gives():
    text = json.dumps(DASHBOARD).replace('\\"', '"') + "".join(rule["expr"] for rule in RULES)
    assert set(re.findall(r'reported="(\w+)"', text)) == {"yes"}
    assert set(re.findall(r'agrees="(\w+)"', text)) == {"yes"}
    outcomes = {word for words in re.findall(r'outcome=~?"([^"]+)"', text) for word in words.split("|")}
    said = "".join((DEPLOY.parent / "router" / name).read_text("utf-8") for name in ("accounts.py", "metrics.py"))
    assert {word for word in outcomes if f'"{word}"' not in said} == set()
    assert set(re.findall(r'kind="(\w+)"', text)) <= {
        "prompt",
        "available",
        "predicted",
        "delivered",
        "reported",
        "output",
    }


def test_the_dashboard_names_no_data_source_of_ours():
    assert {panel["datasource"]["uid"] for panel in panels()} == {"${datasource}"}
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "job"]
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


def test_panels_do_not_overlap():
    taken = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("rule", [pytest.param(rule, id=rule["alert"]) for rule in RULES])
def test_alerts_say_what_to_do(rule):
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"].keys() == {"summary", "description"}
    labels = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    used = set.union(*(LABELS[one.name] for one in selectors(read(rule["expr"]))))
    assert labels <= used
    if "for" in rule:
        assert re.fullmatch(r"\d+[smh]", rule["for"])


def test_command_lines_of_image_and_unit_parse():
    image, unit, readme = (
        (DEPLOY / name).read_text("utf-8") for name in ("Dockerfile", "prefix-router.service", "README.md")
    )
    assert json.loads(re.search(r"^ENTRYPOINT (.*)$", image, re.MULTILINE)[1]) == ["router", "serve"]
    (run,) = re.findall(r"^docker run .* prefix-router (--.*)$", readme, re.MULTILINE)
    assert parsed(["serve", *shlex.split(run)], COMMANDS)
    (started,) = re.findall(r"^ExecStart=\S+/router (.*)$", unit, re.MULTILINE)
    assert parsed(shlex.split(started), COMMANDS)
    known = {setting.variable for setting in settings()}
    assert set(re.findall(r"\bROUTER_\w+", image)) <= known
    for copied in re.findall(r"^COPY (?!--)(.+) \S+$", image, re.MULTILINE):
        assert all((DEPLOY.parent / name).exists() for name in copied.split())


@pytest.mark.skipif(SYSTEMD_ANALYZE is None, reason="needs systemd-analyze")
def test_systemd_takes_the_unit(tmp_path):
    text = (DEPLOY / "prefix-router.service").read_text("utf-8")
    unit = tmp_path / "prefix-router.service"
    unit.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", text, flags=re.MULTILINE), "utf-8")
    checked = subprocess.run(  # noqa: S603 -- our own unit
        [str(SYSTEMD_ANALYZE), "verify", str(unit)], check=False, capture_output=True, text=True, timeout=60
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_readme_names_every_file():
    text = (DEPLOY / "README.md").read_text("utf-8")
    files = {path.relative_to(DEPLOY).as_posix() for path in DEPLOY.rglob("*") if path.is_file()}
    assert set(re.findall(r"\]\(([^)]+)\)", text)) == files - {"README.md"}
