"""A name becomes a policy, or an error that says what to do."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from policies import Replica, Request
from policies.conformance import check, sample_replicas, sample_request
from policies.errors import BadSettings, PolicyError, UnknownPolicy
from policies.plugins import Setting, installed, load
from policies.prefix_aware import PrefixAware
from policies.round_robin import RoundRobin

OURS = [
    "cache-aware",
    "dualmap",
    "least-loaded",
    "linear-cost",
    "lmetric",
    "power-of-two",
    "preble-e2",
    "prefix-aware",
    "prefix-hash",
    "random",
    "round-robin",
    "sticky-until-saturated",
    "user-hash",
    "weighted-scorers",
]


class Sized:
    """Go where there is room.

    More about it.
    """

    def __init__(self, size: int, *, label: str = "x", model_path: str = "", seed: int = 0) -> None:
        self.given = (size, label, seed)

    def choose(self, request: Request, replicas: Sequence[Replica]) -> str:
        return replicas[self.given[0] % len(replicas)].name


class Mute:
    pass


not_callable = 3
THIS = "tests_policies_plugins_sample"


@pytest.fixture(autouse=True)
def _this_module_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, THIS, sys.modules[__name__])


@pytest.mark.parametrize("name", OURS)
def test_ours_load_without_settings(name: str) -> None:
    assert load(name).choose(sample_request(), sample_replicas(count=1)).replica == "r0"


def test_settings_are_coerced_to_the_signature() -> None:
    policy = load("prefix-aware", {"in_flight_tokens": "32", "stickiness": "1.5"})
    assert isinstance(policy, PrefixAware)
    assert policy._in_flight_tokens == 32.0
    assert policy._stickiness == 1.5


@pytest.mark.parametrize(("settings", "expected"), [({"size": 1}, 7), ({"size": 1, "seed": 9}, 9)])
def test_the_seed_is_ours_unless_set(settings: dict[str, object], expected: int) -> None:
    policy = load(f"{THIS}:Sized", settings, seed=7)
    assert policy.given == (1, "x", expected)  # type: ignore[attr-defined]


def test_a_plug_in_may_return_just_a_name() -> None:
    policy = load(f"{THIS}:Sized", {"size": 1})
    assert policy.choose(sample_request(), sample_replicas()) == "r1"  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("prefix-awar", UnknownPolicy, "did you mean 'prefix-aware'"),
        ("round_robin", UnknownPolicy, "did you mean 'round-robin'"),
        ("zzz", UnknownPolicy, r"no policy is named 'zzz'\. Installed: cache-aware, .*, weighted-scorers$"),
        ("no.such.module:Policy", PolicyError, "No module named"),
        (f"{THIS}:Missing", PolicyError, "Missing"),
        (f"{THIS}:not_callable", PolicyError, "is a int, not a class or function"),
        (f"{THIS}:Mute", PolicyError, "has no method choose"),
        (f"{THIS}:", PolicyError, "can't be imported"),
        (":Policy", PolicyError, "can't be imported"),
    ],
)
def test_a_name_that_is_none(name: str, error: type[PolicyError], message: str) -> None:
    with pytest.raises(error, match=message):
        load(name)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("prefix-aware", {"stickyness": 1}, "no setting 'stickyness'; did you mean 'stickiness'"),
        ("round-robin", {"seed": 1}, r"no setting 'seed'\. It has: none"),
        ("user-hash", {"bound": "wide"}, "bound: .*number"),
        ("user-hash", {"least_bound": 1.5}, "least_bound: .*integer"),
        (f"{THIS}:Sized", {}, "size: Field required"),
    ],
)
def test_settings_that_do_not_fit(name: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(BadSettings, match=message):
        load(name, settings)


def test_what_is_installed_is_told() -> None:
    told = {info.name: info for info in installed()}
    assert set(OURS) <= set(told)
    info = told["prefix-aware"]
    assert (info.distribution, info.problem) == ("prefix-router", "")
    assert info.summary.startswith("Go where the prefix probably is")
    assert Setting("in_flight_tokens", "float", 64.0) in info.settings
    assert Setting("stickiness", "float | None", None) in info.settings
    assert told["round-robin"].settings == ()


def distribution(folder: Path, entries: str, **modules: str) -> None:
    """An invented distribution, as an installer would leave it."""
    metadata = folder / "invented_policies-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: invented-policies\nVersion: 1.2\n")
    (metadata / "entry_points.txt").write_text(f"[router.policies]\n{entries}\n")
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)


LAST = '''
class Last:
    """The last one."""
    def __init__(self, *, turns: int = 1):
        self.turn = turns
    def choose(self, request, replicas):
        self.turn += 1
        return replicas[-self.turn % len(replicas)].name
'''


def test_somebody_else_s_policy_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution(tmp_path, "last = invented_last:Last", invented_last=LAST)
    monkeypatch.syspath_prepend(tmp_path)
    [info] = [info for info in installed() if info.name == "last"]
    assert (info.distribution, info.version, info.summary) == ("invented-policies", "1.2", "The last one.")
    assert info.settings == (Setting("turns", "int", 1),)
    check(lambda: load("last", {"turns": 3}))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("raise RuntimeError('no GPU here')", "no GPU here"),
        ("import not_installed_anywhere", "not_installed_anywhere"),
        ("def Broken(*, size: Missing = 1) -> None: ...".replace("Missing", "'Missing'"), "'Missing' is not defined"),
    ],
)
def test_a_broken_policy_says_why_and_hides_nobody(
    text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution(tmp_path, "broken = invented_broken:Broken", invented_broken=text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "invented_broken", raising=False)
    told = {info.name: info for info in installed()}
    assert problem in told["broken"].problem
    assert set(OURS) < set(told)
    with pytest.raises(PolicyError, match=problem):
        load("broken")
    assert isinstance(load("round-robin"), RoundRobin)
    monkeypatch.delitem(sys.modules, "invented_broken", raising=False)
