"""The lowest point of a function of few numbers, without its derivatives: Nelder and Mead's simplex (1965).

The one rule: the same start gives the same point. Not here: what is looked for (`calibrate`).
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float64]


def lowest(loss: Callable[[_Floats], float], start: _Floats, *, most: int = 90, close: float = 2e-3) -> _Floats:
    """The point of the least loss that Nelder and Mead's simplex finds, in `most` evaluations."""
    corners = [start, *(start + step for step in np.eye(len(start)) * np.maximum(1.0, start / 2))]
    known = [(loss(corner), corner) for corner in corners]
    asked = len(known)
    while asked < most:
        known.sort(key=lambda pair: pair[0])
        worst = known[-1]
        spread = max(float(np.abs(corner - known[0][1]).max()) for _, corner in known)
        if spread < close:
            break
        centre = np.mean([corner for _, corner in known[:-1]], axis=0)

        def tried(factor: float, centre: _Floats = centre, worst: _Floats = worst[1]) -> tuple[float, _Floats]:
            point = centre + factor * (centre - worst)
            return loss(point), point

        asked += 1
        ahead = tried(1.0)
        if ahead[0] < known[0][0]:
            asked += 1
            further = tried(2.0)
            known[-1] = min(ahead, further, key=lambda pair: pair[0])
        elif ahead[0] < known[-2][0]:
            known[-1] = ahead
        else:
            asked += 1
            nearer = tried(0.5) if ahead[0] < worst[0] else tried(-0.5)
            if nearer[0] < min(ahead[0], worst[0]):
                known[-1] = nearer
            else:
                best = known[0][1]
                known[1:] = [(loss(point), point) for point in ((best + corner) / 2 for _, corner in known[1:])]
                asked += len(known) - 1
    known.sort(key=lambda pair: pair[0])
    lowest_point: _Floats = known[0][1]
    return lowest_point
