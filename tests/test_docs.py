"""README, docs/ and code say the same: tables, command lines, settings files and the plug-in example.

`python tests/test_docs.py` writes the tables that are made from code into README.md.
"""

import os
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from policies import conformance, plugins
from router import __version__, errors, salts
from router.arguments import configuration, parsed
from router.cli import COMMANDS
from router.config import load
from router.families import FAMILIES
from router.settings import settings, shown

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
TEXT = README.read_text("utf-8")
PAGES = {path: path.read_text("utf-8") for path in (README, *sorted((ROOT / "docs").glob("*.md")))}
WHOLE = "\n".join(PAGES.values())
CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf-8")


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def table(*rows: tuple[str, ...]) -> list[str]:
    head, *rest = rows
    return [row(*head), "|" + " --- |" * len(head), *(row(*cells) for cells in rest)]


def refusals(base: type = errors.RequestError) -> Iterator[type[errors.RequestError]]:
    for error in base.__subclasses__():
        yield error
        yield from refusals(error)


def written_policies() -> list[str]:
    found = [policy for policy in plugins.installed() if policy.distribution == "prefix-router"]
    rows = [
        (
            f"`{policy.name}`",
            policy.summary,
            ", ".join(f"`{setting.name}={shown(setting.default)}`" for setting in policy.settings) or "none",
        )
        for policy in found
    ]
    return table(("policy", "what it does", "settings"), *rows)


TABLES = {
    "commands": table(
        ("command", "what it does"), *((f"`router {name}`", command.summary) for name, command in COMMANDS.items())
    ),
    "policies": written_policies(),
    "settings": table(
        ("setting", "type", "default", "what it is"),
        *((f"`{one.name}`", one.type, f"`{one.default}`", one.description) for one in settings()),
    ),
    "metrics": table(
        ("metric", "kind", "labels", "what it counts"),
        *(
            (f"`{one.name}`", one.kind, ", ".join(f"`{label}`" for label in one.labels) or "none", one.help)
            for one in FAMILIES
        ),
    ),
    "errors": table(
        ("status", "code", "when"),
        *(
            (str(error.status), f"`{error.code or error.status}`", (error.__doc__ or "").partition("\n")[0])
            for error in sorted(refusals(), key=lambda error: (error.status, error.code or ""))
        ),
    ),
}


def section(name: str) -> re.Match[str]:
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", TEXT, re.DOTALL)
    assert found, f"README.md has no place for {name}: <!-- {name} --> … <!-- /{name} -->"
    return found


@pytest.mark.parametrize("name", TABLES)
def test_table_equals_the_code(name):
    lines = [line for line in section(name)[1].splitlines() if line]
    assert lines == TABLES[name], "write it anew with: python tests/test_docs.py"


def fences(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", WHOLE, re.DOTALL | re.MULTILINE)


def command_lines() -> list[list[str]]:
    """Every `router …` in README and docs/ as words: in shell blocks, and in code within a sentence."""
    lines = [line for block in fences("sh") for line in block.replace("\\\n", " ").splitlines()]
    outside = re.sub(r"^```.*?^```", "", WHOLE, flags=re.DOTALL | re.MULTILINE)
    lines += [span for span in re.findall(r"`([^`\n]+)`", outside) if span.startswith("router ")]
    found = []
    for line in lines:
        words = shlex.split(line, comments=True)
        while words and re.match(r"[A-Z_]+=", words[0]):
            words.pop(0)
        if words[-1:] == ["&"]:
            words.pop()
        if words and words[0] == "router":
            found.append(words[1:])
    return found


def settings_file() -> str:
    return next(block for block in fences("toml") if plugins.GROUP not in block)


def test_readme_shows_every_command():
    assert {words[0] for words in command_lines()} >= set(COMMANDS)


@pytest.mark.parametrize("words", [pytest.param(words, id=" ".join(words)) for words in command_lines()])
def test_command_line_parses(words, tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("ROUTER_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    Path("router.toml").write_text(settings_file(), "utf-8")
    named = words[0] in COMMANDS and (words[1:] == [] or "--help" in words)
    if named or words in (["--help"], ["--version"]):
        with pytest.raises(SystemExit) as ended:
            parsed([*words, "--help"], COMMANDS)
        assert ended.value.code == 0
        return
    arguments = parsed(words, COMMANDS)
    if hasattr(arguments, "config"):
        config, _ = configuration(arguments)
        if ":" not in config.policy.name:
            assert plugins.load(config.policy.name, config.policy.settings)


def test_variables_in_readme_are_settings():
    known = {setting.variable for setting in settings()} | {salts.VARIABLE}  # a secret, so no setting
    named = set(re.findall(r"\bROUTER_[A-Z_]+\b", WHOLE))
    assert named
    assert named <= known


def test_configuration_file_loads(tmp_path):
    file = tmp_path / "router.toml"
    file.write_text(settings_file(), "utf-8")
    config, origins = load(file)
    assert len(config.replicas) == 2
    assert "policy.settings" in origins
    assert plugins.load(config.policy.name, config.policy.settings)


def test_plug_in_passes_the_conformance_checks(tmp_path, monkeypatch):
    code = next(block for block in fences("python") if "def choose" in block)
    name = re.match(r"# (\w+)\.py\n", code)[1]
    assert len([line for line in code.splitlines()[1:] if line.strip()]) <= 12
    (tmp_path / f"{name}.py").write_text(code, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        module = import_module(name)
        kind = next(value for value in vars(module).values() if isinstance(value, type))
        reference = f"{name}:{kind.__name__}"
        conformance.check(lambda: plugins.load(reference, {}, seed=1))
        assert f"--policy {reference}" in TEXT
        entry = next(tomllib.loads(block) for block in fences("toml") if plugins.GROUP in block)
        assert reference in entry["project"]["entry-points"][plugins.GROUP].values()
    finally:
        sys.modules.pop(name, None)


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z]+)`|^make ([a-z]+)", WHOLE, re.MULTILINE))
    assert {"demo", "test"} <= {one or other for one, other in named} <= targets


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PAGES])
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path.read_text("utf-8")), target


def anchors(text: str) -> list[str]:
    """What a page's headings are called in links."""
    heads = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads]


def test_readme_leads_to_every_page():
    assert {f"docs/{page.name}" for page in PAGES if page != README} <= set(re.findall(r"\]\(([^)#]+)", TEXT))


def test_changelog_tells_of_this_version():
    heads = re.findall(r"^## \[([^\]]+)\]", CHANGELOG, re.MULTILINE)
    assert heads[:1] == ["Unreleased"] or heads[0] == __version__
    assert __version__ in heads


def write() -> None:
    text = TEXT
    for name, lines in TABLES.items():
        inside = "\n" + "\n".join(lines) + "\n\n"
        text = text.replace(section(name)[0], f"<!-- {name} -->\n{inside}<!-- /{name} -->")
    README.write_text(text, "utf-8")


if __name__ == "__main__":
    write()
