"""The doctor inside a running router: sketches of a sample of requests, and what they lost, per route.

A sketch costs time, so it is paid for: every request and every second earn some, and a request is looked at when there
is enough. The one rule: routes, sketches and findings are bounded, and no text is kept unless the operator asked for
it. Not here: HTTP (`router.doctor.asking`), how two sketches compare (`sketches`).
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import orjson

from router.doctor import report
from router.doctor.causes import told_of
from router.doctor.checkup import LEAST_LOST, LEAST_SHARED, Doctor
from router.doctor.edits import END, advice
from router.doctor.parts import Asked, asked
from router.doctor.sketches import Loss, Sketch, leading, loss, sketch
from router.prompt_bodies import BYTES_PER_TOKEN

EARNED_PER_REQUEST_S = 2e-7
EARNED_PER_SECOND_S = 2e-3
_MOST_EARNED_S = 0.02
_MOST_BYTES = 512 * 1024
_MOST_PARTS = 500  # messages, tools or inputs; a look at one takes up to 10 us
_ROUTES = 64
_SKETCHES = 64
_LINES = 16_384
_LOSSES = 64
_KEPT = 256
_KEPT_BYTES = 8 * 1024 * 1024
_WINDOW_S = 1800.0
_SHORT = 12  # characters; shorter lines are everywhere and say nothing
_LEAST_CHARS = 128
_FIRST = 8  # sketches of a route before anything is said


@dataclass(slots=True)
class _Lost:
    example: Loss
    sketches: int = 0
    chars: int = 0


@dataclass(slots=True)
class _Window:
    from_s: float
    requests: int = 0
    tokens: int = 0
    sketches: int = 0
    chars: int = 0
    salts: set[int] = field(default_factory=set)
    lost: dict[tuple[str, str], _Lost] = field(default_factory=dict)


@dataclass(slots=True)
class _Route:
    now: _Window
    before: _Window | None = None
    count: int = 0
    ring: OrderedDict[int, Sketch] = field(default_factory=OrderedDict)
    lines: OrderedDict[int, int] = field(default_factory=OrderedDict)
    """The number of the latest sketch that holds a line."""
    shapes: OrderedDict[int, tuple[str, int, int]] = field(default_factory=OrderedDict)


def _many(given: dict[str, Any]) -> bool:
    """Whether a body has so many members of its own that a look at each would hold up the loop."""
    return any(isinstance(value, list) and len(value) > _MOST_PARTS for value in given.values())


class Live:
    """Told of every request that is sent."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        cpu_clock: Callable[[], float] | None = None,
        keep_text: bool = False,
        block_tokens: int = 16,
    ) -> None:
        """`cpu_clock` tells what looks cost; by `clock` alone a busy machine would make them dear."""
        self._clock = clock
        self._cpu_clock = cpu_clock or clock
        self._block_tokens = block_tokens
        self._earned_s = 0.0
        self._at_s = clock()
        self._routes: dict[str, _Route] = {}
        self._kept: deque[tuple[str, bytes]] | None = deque(maxlen=_KEPT) if keep_text else None
        self._kept_bytes = 0

    def __repr__(self) -> str:
        return f"<Live {len(self._routes)} routes>"

    def seen(self, label: str, path: str, prompt_tokens: int, body: bytes) -> None:
        """A request for `path`; `label` is the operator's word for its route. Looks at it when there is time for it."""
        now_s = self._clock()
        earned = self._earned_s + EARNED_PER_REQUEST_S + (now_s - self._at_s) * EARNED_PER_SECOND_S
        self._earned_s = min(_MOST_EARNED_S, earned)
        self._at_s = now_s
        route = self._route(label, now_s)
        route.now.requests += 1
        route.now.tokens += prompt_tokens
        if self._earned_s < 0 or len(body) > _MOST_BYTES:
            return
        began_s = self._cpu_clock()
        try:
            given = orjson.loads(body)
        except orjson.JSONDecodeError:
            return
        if isinstance(given, dict) and not _many(given):
            self._looked(route, asked(path, given))
            self._keep(path, body)
        self._earned_s -= self._cpu_clock() - began_s

    def _route(self, label: str, now_s: float) -> _Route:
        if label not in self._routes and len(self._routes) >= _ROUTES:
            label = "other"
        route = self._routes.get(label)
        if route is None:
            route = self._routes[label] = _Route(_Window(now_s))
        elif now_s - route.now.from_s > _WINDOW_S:
            route.before, route.now = route.now, _Window(now_s)
        return route

    def _looked(self, route: _Route, ask: Asked) -> None:
        if not ask.parts:
            return
        drawn = sketch(ask, route.shapes)
        window = route.now
        window.sketches += 1
        window.chars += drawn.chars
        window.salts.update(value for name, value in drawn.roots if name == "cache_salt" and len(window.salts) < 1000)
        self._compared(route, drawn)
        route.count += 1
        route.ring[route.count] = drawn
        if len(route.ring) > _SKETCHES:
            route.ring.popitem(last=False)
        route.lines.update(dict.fromkeys(drawn.keys, route.count))
        for bounded in (route.lines, route.shapes):
            while len(bounded) > _LINES:
                bounded.popitem(last=False)

    def _compared(self, route: _Route, drawn: Sketch) -> None:
        ahead = leading(reversed(route.ring.values()), drawn)
        votes: Counter[int] = Counter()
        for unit in drawn.units[ahead:]:
            number = route.lines.get(unit.key)
            if number is not None and unit.chars > _SHORT:
                votes[number] += unit.chars
        shared = votes.total()
        best = next((number for number, _ in votes.most_common() if number in route.ring), None)
        if best is None or shared < max(_LEAST_CHARS, LEAST_SHARED * drawn.chars):
            return
        found = loss(route.ring[best], drawn, shared)
        if found is None:
            return
        key = (_place(found), found.kind)
        lost = route.now.lost
        if key not in lost:
            if len(lost) >= _LOSSES:
                return
            lost[key] = _Lost(found)
        lost[key].sketches += 1
        lost[key].chars += found.chars

    def _keep(self, path: str, body: bytes) -> None:
        kept = self._kept
        if kept is None:
            return
        if len(kept) == kept.maxlen:
            self._kept_bytes -= len(kept[0][1])
        kept.append((path, body))
        self._kept_bytes += len(body)
        while self._kept_bytes > _KEPT_BYTES:
            self._kept_bytes -= len(kept.popleft()[1])

    # -- what is told ----------------------------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """What was found in the last half hour to hour, the costliest first."""
        now_s = self._clock()
        routes, findings = [], []
        for label, route in sorted(self._routes.items()):
            windows = [window for window in (route.before, route.now) if window is not None]
            requests = sum(window.requests for window in windows)
            tokens = sum(window.tokens for window in windows)
            sketches = sum(window.sketches for window in windows)
            routes.append({"route": label, "requests": requests, "prompt_tokens": tokens, "looked_at": sketches})
            spent_s = max(1.0, now_s - windows[0].from_s)
            findings += _findings(label, windows, requests, tokens, spent_s, self._block_tokens)
        findings.sort(key=lambda one: -one["lost_tokens"])
        return {
            "breaks": any(one["breaks"] for one in findings),
            "findings": findings,
            "routes": routes,
            "block_tokens": self._block_tokens,
            "keeps_text": self._kept is not None,
        }

    def sketches(self, labels: Collection[str]) -> dict[str, list[Sketch]]:
        """The latest prompts of these routes, as they are kept."""
        return {label: list(self._routes[label].ring.values()) for label in sorted(labels)}

    def with_text(self) -> dict[str, Any] | None:
        """What the doctor says of the texts that are kept; None where none are. Takes a while."""
        if self._kept is None:
            return None
        doctor = Doctor()
        for path, body in list(self._kept):
            doctor.seen(asked(path, orjson.loads(body)))
        return report.document(doctor.diagnosis(None))


def _findings(
    label: str, windows: list[_Window], requests: int, tokens: int, spent_s: float, block_tokens: int
) -> list[dict[str, Any]]:
    sketches = sum(window.sketches for window in windows)
    chars = sum(window.chars for window in windows)
    merged: dict[tuple[str, str], _Lost] = {}
    for window in windows:
        for key, lost in window.lost.items():
            one = merged.setdefault(key, _Lost(lost.example))
            one.sketches += lost.sketches
            one.chars += lost.chars
    told = []
    for (_, kind), lost in merged.items():
        fraction = min(1.0, lost.chars / chars)
        if sketches < _FIRST or lost.sketches < 2 or fraction < 0.01:
            continue
        if kind == "salt" and len(set().union(*[window.salts for window in windows])) < 0.5 * sketches:
            continue  # one that comes back is a tenant's, and wanted
        example = lost.example
        often = lost.sketches >= max(2, 0.1 * sketches)
        told.append(
            {
                "route": label,
                "kind": kind,
                "what": told_of(kind),
                "sure": example.sure,
                "breaks": often and fraction >= LEAST_LOST[example.sure],
                "path": example.path,
                "role": example.role,
                "message": example.message,
                "offset": example.offset,
                "block": example.ahead_chars // BYTES_PER_TOKEN // block_tokens,
                "exact": False,
                "requests": round(lost.sketches * requests / sketches),
                "lost_tokens": round(fraction * tokens),
                "lost_fraction": round(fraction, 4),
                "lost_tokens_per_hour": round(fraction * tokens * 3600 / spent_s),
                "advice": advice(kind, example.path, END),
            }
        )
    return told


def _place(found: Loss) -> str:
    """Messages of a history are all one place."""
    if found.role in ("tools", "documents"):
        return found.role
    return found.path if found.message is None or found.message < 2 else "messages[*]"
