"""Whether a request that failed is sent to another replica, and which replies it need not take.

The one rule: only while nothing of a reply has reached the client, to a replica that has not had the request, at most
`most` times, and never for more than a share of the traffic: a fleet in trouble must not be asked for more than its
clients ask for. Not here: the loop that sends (`gateway`), and who may be chosen (`placing`).
"""

from collections.abc import Callable
from typing import Final

from policies.fleet import Fleet
from policies.types import Request
from router.admission import Admission
from router.aside import Aside
from router.health import Watcher
from router.heard import Heard
from router.http.exchange import Declined, UpstreamError
from router.http.messages import Headers
from router.metrics import Metrics
from router.openai import ROUTES
from router.placing import nowhere
from router.usage import aborted, clients_fault

FLOOR: Final = 10
"""Retries that are allowed in any case within `WINDOW_S`: a share of little traffic is nothing."""
WINDOW_S: Final = 30.0
BUSY: Final = (429, 503)
_EVENT_BYTES: Final = 4096  # an event that tells of nothing is shorter
_COUNT: Final = b'"completion_tokens":'
_NEVER_COMPUTED: Final = frozenset({"unreachable", "busy"})
_SAFE: Final = frozenset(ROUTES)


class Budget:
    """Counts requests and retries over the last 15 to 30 seconds."""

    __slots__ = ("_before", "_fraction", "_now", "_turn_s")

    def __init__(self, fraction: float) -> None:
        self._fraction = fraction
        self._before = [0, 0]
        self._now = [0, 0]
        self._turn_s = 0.0

    def asked(self, now_s: float) -> None:
        """A client's request."""
        if now_s >= self._turn_s:
            self._turned(now_s)
        self._now[0] += 1

    def spent(self, now_s: float) -> bool:
        """Take one retry; False when there is none left."""
        if now_s >= self._turn_s:
            self._turned(now_s)
        asked, spent = self._before[0] + self._now[0], self._before[1] + self._now[1]
        if spent >= FLOOR + self._fraction * asked:
            return False
        self._now[1] += 1
        return True

    def _turned(self, now_s: float) -> None:
        late = now_s >= self._turn_s + WINDOW_S / 2
        self._before = [0, 0] if late else self._now
        self._now = [0, 0]
        self._turn_s = (now_s if late else self._turn_s) + WINDOW_S / 2  # else what is older than a window would count


class Retries:
    """What all requests share: the budget, and who is told of failures."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        watcher: Watcher,
        aside: Aside,
        metrics: Metrics,
        clock: Callable[[], float],
        admission: Admission | None = None,
        most: int = 2,
        budget_fraction: float = 0.2,
    ) -> None:
        self.fleet = fleet
        self.watcher = watcher
        self.aside = aside
        self.metrics = metrics
        self.clock = clock
        self.admission = admission
        self.most = most
        self.budget = Budget(budget_fraction)

    def __repr__(self) -> str:
        return f"<Retries at most {self.most}>"

    def begun(self, request: Request, method: bytes, began_s: float) -> "Tries":
        """A client's request, which began then, is about to be sent for the first time."""
        self.budget.asked(began_s)
        return Tries(self, request, method)


class Tries:
    """One request on its way, perhaps to one replica after another: the `Attempt` of each exchange."""

    __slots__ = ("_declined", "_granted", "_method", "_name", "_request", "_shared", "at_s", "ear", "failed")

    def __init__(self, shared: Retries, request: Request, method: bytes) -> None:
        self._shared = shared
        self._request = request
        self._method = method
        self._name = ""
        self.ear: Heard | None = None
        self._declined = False
        self._granted = False
        self.failed: dict[str, UpstreamError] = {}
        self.at_s: float | None = None
        """When the body of the reply began: the prefill was over."""

    def sent(self, name: str, ear: Heard | None = None) -> "Tries":
        self._name, self.ear = name, ear
        return self

    def began(self) -> None:
        shared = self._shared
        self.at_s = shared.clock()
        shared.fleet.first_token(self._request)
        if shared.admission is not None:
            shared.admission.freed()
        if shared.watcher.trials:  # a replica that begins to answer has passed, however long the answer takes
            shared.watcher.succeeded(self._name)

    def declined(self, status: int, headers: Headers, first: bytes, whole: bool) -> UpstreamError | None:
        """A reply that another replica may better is not passed on, once for a request: the next one is final."""
        if status < 400:
            kind = gave_up(first, whole)
            if kind is None:
                return None
        elif status in BUSY:
            kind = "busy"
            self._shared.aside.busy(self._name, self._shared.clock(), _retry_after_s(headers))
        elif status >= 500:
            kind = "status_5xx"
        else:
            return None
        if self._declined or not self._may(kind):
            return None
        self._declined = self._granted = True
        return Declined(kind, f"answered {status}" if status >= 400 else _SAID[kind])

    def lost(self, error: UpstreamError) -> None:
        """The attempt failed with nothing sent to the client. Raises the router's own error when there is no other."""
        shared, name = self._shared, self._name
        shared.fleet.failed(self._request)
        shared.watcher.failed(name, error.kind)
        if error.kind != "busy":
            shared.aside.failed(name, shared.clock())
        self.failed[name] = error
        if not self._granted and not self._may(error.kind):
            raise nowhere(self._request, self.failed)
        self._granted = False

    def _may(self, kind: str) -> bool:
        """Whether to ask another replica; takes from the budget if so."""
        shared, request = self._shared, self._request
        if len(self.failed.keys() - {self._name}) >= shared.most:
            return False
        safe = kind in _NEVER_COMPUTED or request.route in _SAFE or self._method in (b"GET", b"HEAD", b"OPTIONS")
        now_s = shared.clock()
        if not safe or not shared.fleet.view(request, now_s, {*self.failed, self._name}):
            return False
        if shared.budget.spent(now_s):
            return True
        shared.metrics.retry_denied()
        return False


_SAID: Final = {
    "error_event": "answered 200 with an error for its first event",
    "aborted": "answered 200 but gave the request up, as an engine that is shutting down does",
}


def gave_up(first: bytes, whole: bool) -> str | None:
    """What a 200 that begins like this really is: `error_event`, `aborted`, or None for an answer.

    Shapes of vLLM 0.32 when its engine has died, and when it drains (`--shutdown-timeout`): an error for the first
    event, a stream of nothing but a role, a usage of no tokens and `[DONE]`, a whole reply without a token.
    """
    if first.startswith((b'data: {"error"', b"event: error")):
        return None if clients_fault(first) else "error_event"
    if first.startswith(b"data: [DONE]"):
        return "aborted"
    if len(first) > _EVENT_BYTES:
        return None
    at = first.rfind(_COUNT)  # stands near the end, so little is searched
    if at < 0 or first[at + len(_COUNT) : at + len(_COUNT) + 1] != b"0":
        return None
    if whole and b'"abort"' in first and aborted(first):
        return "aborted"
    if first.startswith(b"data: "):
        events = first.split(b"\n\n", 2)
        if len(events) > 2 and b'"role":"assistant","content":""' in events[0]:
            del events[0]
        if b'"choices":[],' in events[0]:
            return "aborted"
    return None


def _retry_after_s(headers: Headers) -> float | None:
    """Seconds of a Retry-After header; its other form, a date, is taken for none."""
    for name, value in headers:
        if name.lower() == b"retry-after" and value.isdigit() and len(value) < 10:
            return float(value)
    return None
