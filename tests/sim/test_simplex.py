"""The simplex finds the bottom of a bowl, whatever its shape, and asks no more often than it may."""

import numpy as np
import pytest

from sim.simplex import lowest

BOTTOM = np.array([3.0, 0.5])


@pytest.mark.parametrize("steep", [(1.0, 1.0), (1.0, 10.0), (50.0, 1.0)])
def test_it_goes_to_the_bottom(steep):
    found = lowest(lambda point: float(((point - BOTTOM) ** 2 * steep).sum()), np.array([0.0, 0.0]))
    assert found == pytest.approx(BOTTOM, abs=0.02)


def test_it_keeps_out_of_where_there_is_nothing():
    found = lowest(lambda point: float(abs(point - BOTTOM).sum()) if point[0] < 2 else np.inf, np.array([0.0, 0.0]))
    assert found[0] == pytest.approx(2.0, abs=0.05)


def test_it_ends_where_it_may_ask_no_more():
    asked = []
    lowest(lambda point: asked.append(point) or float((point**2).sum()), np.array([90.0, 90.0]), most=20)
    assert 20 <= len(asked) <= 23
