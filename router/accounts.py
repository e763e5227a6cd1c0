"""What is said of a request once it has ended: to the health table, to the metrics, to the log, to a recording.

The one rule: told exactly once for every request that was sent. Not here: load (`policies.fleet`), and what the
numbers look like outside (`metrics`).
"""

import logging
from collections.abc import Callable

from router.health import Watcher
from router.http.upstream import Ending
from router.log import request_line
from router.metrics import Metrics, Outcome
from router.placing import Placed
from router.record import Recorder
from router.tenants import Door
from router.usage import UNKNOWN, aborted, error_event, usage


class Accounts:
    """Tells everybody how requests went."""

    def __init__(
        self,
        metrics: Metrics,
        watcher: Watcher,
        clock: Callable[[], float],
        tenants: Door,
        *,
        request_level: int = logging.DEBUG,
        recorder: Recorder | None = None,
    ) -> None:
        """`request_level` is the level of the log's one line per request; `recorder` writes a trace of what ended."""
        self._metrics = metrics
        self._watcher = watcher
        self._clock = clock
        self._tenants = tenants
        self._request_level = request_level
        self._recorder = recorder

    def answered(
        self, placed: Placed, began_s: float, first_byte_s: float | None, ending: Ending | None, retries: int
    ) -> None:
        """A request has ended; `ending` is None when its client left."""
        request, choice = placed.request, placed.choice
        word = _word(ending)
        if ending is not None:
            self._judged(choice.replica, ending, word)
        told = usage(ending.tail) if ending is not None and ending.status == 200 else UNKNOWN
        available = max([replica.matched_blocks for replica in placed.view])
        outcome = Outcome(
            route=request.route,
            model=request.model,
            replica=choice.replica,
            reason=choice.reason,
            status=ending.status if ending is not None else 499,
            outcome=word,
            duration_s=self._clock() - began_s,
            ttft_s=None if first_byte_s is None else first_byte_s - began_s,
            prompt_tokens=request.prompt_tokens if told.prompt_tokens is None else told.prompt_tokens,
            available_tokens=available * request.block_tokens,
            predicted_tokens=placed.chosen.matched_blocks * request.block_tokens,
            delivered_tokens=told.cached_tokens,
            output_tokens=told.output_tokens,
            basis=placed.prompt.basis,
            retries=retries,
        )
        self._metrics.answered(outcome)
        self._tenants.answered(request.tenant, outcome)
        request_line(outcome, request.id, level=self._request_level)
        if self._recorder is not None:
            self._recorder.answered(request, outcome, began_s)

    def _judged(self, replica: str, ending: Ending, word: str) -> None:
        """Tell the health table: 4xx is the client's, 429 and 503 mean busy, the rest of 5xx counts."""
        if word == "cut":
            self._watcher.failed(replica, "cut")
        elif ending.status >= 500 and ending.status != 503:
            self._watcher.failed(replica, "status_5xx")
        elif aborted(ending.tail):  # an engine that is shutting down says 200 and gives up what it is sent
            self._watcher.failed(replica, "aborted")
        else:
            self._watcher.succeeded(replica)


def _word(ending: Ending | None) -> str:
    if ending is None:
        return "client-left"
    if not ending.whole:
        return "cut"
    if ending.status >= 400:
        return "client-error" if ending.status < 500 else "replica-error"
    if ending.event_stream and error_event(ending.tail):
        return "error-event"
    return "aborted" if aborted(ending.tail) else "ok"
