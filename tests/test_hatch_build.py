"""When the core is compiled, and what happens where it can't be."""

import importlib.util
import sysconfig
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
_SPEC = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
hatch_build = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(hatch_build)


class Told:
    """What hatch would show to whoever builds."""

    def __init__(self):
        self.warnings = []

    def display_warning(self, text):
        self.warnings.append(text)


def built(modules, root, version="standard"):
    """What the wheel gets beside the sources, and what was said."""
    told, data = Told(), {"force_include": {}}
    hook = hatch_build.CompiledCore(str(root), {"modules": modules}, None, None, str(root), "wheel", told)
    hook.initialize(version, data)
    return hook, data, told.warnings


@pytest.fixture
def source(tmp_path):
    (tmp_path / "adding.py").write_text("def added(a: int, b: int) -> int:\n    return a + b\n", "utf-8")
    twice = "from adding import added\n\ndef twice(a: int) -> int:\n    return added(a, a)\n"
    (tmp_path / "doubling.py").write_text(twice, "utf-8")
    return tmp_path


@pytest.fixture(autouse=True)
def as_a_stranger_builds(monkeypatch):
    monkeypatch.delenv("PREFIX_ROUTER_COMPILE", raising=False)


def test_what_is_listed_is_compiled_and_does_what_its_source_does(source, monkeypatch):
    monkeypatch.setenv("PREFIX_ROUTER_COMPILE", "1")
    hook, data, warnings = built(["adding.py", "doubling.py"], source)
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    names = sorted(data["force_include"].values())
    assert names == [f"{name}{suffix}" for name in ("adding", "doubling", "prefix_router__mypyc")]
    assert data["infer_tag"]
    assert not data["pure_python"]
    assert not warnings
    made = Path(next(iter(data["force_include"])))
    monkeypatch.syspath_prepend(str(made.parent))
    doubling = importlib.import_module("doubling")
    assert doubling.__file__.endswith(suffix)
    assert doubling.twice(3) == 6
    hook.finalize("standard", data, "")
    assert not made.exists()


def test_an_editable_install_is_plain_python(source):
    _, data, warnings = built(["adding.py"], source, version="editable")
    assert data == {"force_include": {}}
    assert not warnings


def test_without_a_compiler_the_wheel_is_plain_python_and_says_so(source, monkeypatch):
    monkeypatch.setenv("PATH", str(source))
    _, data, warnings = built(["adding.py"], source)
    assert data == {"force_include": {}}
    assert "no C compiler" in warnings[0]


def test_what_can_not_be_compiled_stays_plain_python_unless_it_was_asked_for(source, monkeypatch):
    (source / "adding.py").write_text("def added(a: int) -> int:\n    return str(a)\n", "utf-8")
    _, data, (warning,) = built(["adding.py"], source)
    assert data == {"force_include": {}}
    assert "PREFIX_ROUTER_COMPILE=1 shows why" in warning
    monkeypatch.setenv("PREFIX_ROUTER_COMPILE", "1")
    made = source / "made"
    monkeypatch.setattr(hatch_build.tempfile, "mkdtemp", lambda prefix: made.mkdir() or str(made))
    with pytest.raises(RuntimeError, match='got "str", expected "int"'):
        built(["adding.py"], source)
    assert not made.exists()


def test_a_build_on_its_own_gets_the_packages_whose_types_are_read(monkeypatch):
    import tomllib

    from hatchling.build import get_requires_for_build_wheel

    monkeypatch.chdir(ROOT)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    needed = {Requirement(text) for text in settings["project"]["dependencies"]}
    assert needed <= {Requirement(text) for text in get_requires_for_build_wheel()}


def test_every_listed_module_is_there():
    import tomllib

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    modules = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["modules"]
    assert modules == sorted(set(modules))
    assert not [module for module in modules if not (ROOT / module).is_file()]
