"""Answers of a measured server as values: what a load driver would have brought."""

from router.bench.about import About
from router.bench.driver import Answer
from router.bench.groups import Made, Shape
from router.bench.phases import Part, Phase, Side
from router.usage import UNKNOWN

GROUP = Made("unique", Shape("m"), None)
SIDE = Side("A", About("http://a:8000", "m", None, None, "abcd", None), (GROUP,), ())
OTHER = Side("B", About("http://b:8000", "m", None, "base", None, "0.32.0"), (GROUP,), ())


def answer(number, *, ttft=0.1, e2e=0.5, error="", usage=UNKNOWN, late=0.0):
    due = float(number)
    return Answer(number, due, due + late, None if ttft is None else due + ttft, due + e2e, error, usage)


def phase(*answers, side=SIDE, turn=0, name="cold", counted=None):
    return Phase(Part(side, turn, 2.0, GROUP, name, (), "mark"), answers, counted)
