"""The table of metrics, and what can be built from it."""

import pytest

from router.families import BOUNDS_S, FAMILIES, Histogram, counter, gauge, histograms


def test_names_are_unique_and_carry_their_kind():
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)
    for family in FAMILIES:
        assert family.name.startswith("router_")
        assert family.name.endswith("_total") == (family.kind == "counter")


def test_only_what_is_in_the_table_can_be_built():
    with pytest.raises(KeyError):
        counter("router_invented_total", [])
    with pytest.raises(KeyError):
        gauge("router_invented", [])


def test_samples():
    family = gauge("router_replica_up", [(("r1",), 1)])
    assert [(sample.labels, sample.value) for sample in family.samples] == [({"replica": "r1"}, 1)]


def test_a_histogram_is_cumulative():
    histogram = Histogram()
    for seconds in (0.01, 0.02, 0.3, 1000.0):
        histogram.observed(seconds)
    samples = histograms("router_request_duration_seconds", [(("/x",), histogram)]).samples
    counts = [sample.value for sample in samples if sample.name.endswith("_bucket")]
    assert len(counts) == len(BOUNDS_S) + 1
    assert counts == sorted(counts)
    assert (counts[0], counts[1], counts[-1]) == (1.0, 2.0, 4.0)
