"""What is said of a request once it has ended: to the health table, to the metrics, to the log, to a recording.

The one rule: told exactly once for every request that was sent. Not here: load (`policies.fleet`), and what the
numbers look like outside (`metrics`).
"""

import logging
from collections.abc import Callable

from policies.fleet import Fleet
from router.errors import RequestError
from router.health import Watcher
from router.http.messages import Ending
from router.log import request_line, requests_log
from router.metrics import Metrics
from router.outcome import Outcome
from router.placing import Placed
from router.record import Recorder
from router.tenants import Door
from router.usage import UNKNOWN, Usage, aborted, clients_fault, error_event, usage


class Accounts:
    """Tells everybody how requests went."""

    def __init__(
        self,
        metrics: Metrics,
        watcher: Watcher,
        clock: Callable[[], float],
        tenants: Door,
        *,
        fleet: Fleet,
        request_level: int = logging.DEBUG,
        recorder: Recorder | None = None,
    ) -> None:
        """`request_level` is the level of the log's one line per request; `recorder` writes a trace of what ended."""
        self._metrics = metrics
        self._watcher = watcher
        self._clock = clock
        self._tenants = tenants
        self._fleet = fleet
        self._tellers: set[tuple[str, str]] = set()
        self._request_level = request_level
        self._recorder = recorder
        self.ears: list[Callable[[Placed, Outcome], None]] = []
        """Who else is told of every request that has ended; nobody as long as nobody asks."""
        self.choice_ears: list[Callable[[Placed], None]] = []
        self.gone_ears: list[Callable[[str], None]] = []
        self.refusal_ears: list[Callable[[RequestError], None]] = []

    def placed(self, placed: Placed, began_s: float) -> None:
        """A request is about to be sent for the first time."""
        self._metrics.decided(self._clock() - began_s)
        for ear in self.choice_ears:
            ear(placed)

    def refused(self, path: str, error: RequestError) -> None:
        """A request got an error of the router's own."""
        self._metrics.refused(path, error.status, error.code or error.kind)
        for ear in self.refusal_ears:
            ear(error)

    def answered(
        self, placed: Placed, began_s: float, first_byte_s: float | None, ending: Ending | None, retries: int
    ) -> Usage:
        """A request has ended, but the fleet has not been told so; `ending` is None when its client left.

        Returns what the replica reports of it.
        """
        request, choice = placed.request, placed.choice
        word = _word(ending)
        if ending is not None:
            self._judged(choice.replica, ending, word)
        told = usage(ending.said + ending.tail) if ending is not None and ending.status == 200 else UNKNOWN
        cached_tokens = self._delivered(placed, told, word)
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
            delivered_tokens=cached_tokens,
            output_tokens=told.output_tokens,
            basis=placed.prompt.basis,
            retries=retries,
        )
        self._metrics.answered(outcome)
        self._tenants.answered(request.tenant, outcome)
        if requests_log.isEnabledFor(self._request_level):
            request_line(outcome, request.id, level=self._request_level)
        if self._recorder is not None:
            self._recorder.answered(request, outcome, began_s)
        for ear in self.ears:
            ear(placed, outcome)
        return told

    def forgotten(self, replica: str) -> None:
        """The replica has left for good."""
        self._tellers = {teller for teller in self._tellers if teller[0] != replica}
        for ear in self.gone_ears:
            ear(replica)

    def _delivered(self, placed: Placed, told: Usage, word: str) -> int | None:
        """Tokens the replica found cached. Where ours are its tokens, the fleet learns what its belief was worth.

        Up to vLLM 0.22 a replica says nothing where it found nothing: silence of one that has told before is 0.
        """
        request, prompt, cached = placed.request, placed.prompt, told.cached_tokens
        comparable = word == "ok" and prompt.basis == "exact" and told.prompt_tokens == request.prompt_tokens
        if comparable and told.output_tokens and prompt.answers:
            self._fleet.generated(request, told.output_tokens, prompt.answers)
        if not prompt.alone:
            return None
        teller = (placed.choice.replica, request.route)
        if cached is not None:
            self._tellers.add(teller)
        elif told.prompt_tokens is not None and teller in self._tellers:
            cached = 0
        if comparable and cached is not None:
            self._fleet.delivered(request, cached)
        return cached

    def _judged(self, replica: str, ending: Ending, word: str) -> None:
        """Tell the health table: 4xx is the client's, 429 and 503 mean busy, the rest of 5xx counts."""
        if word == "ok":
            self._watcher.succeeded(replica)
        elif not ending.whole:
            self._watcher.failed(replica, "silent" if ending.given_up else "cut")
        elif ending.status >= 500 and ending.status != 503:
            self._watcher.failed(replica, "status_5xx")
        elif word == "error-event" and not clients_fault(ending.said + ending.tail):
            self._watcher.failed(replica, "error_event")
        elif word == "aborted":  # an engine that is shutting down says 200 and gives up what it is sent
            self._watcher.failed(replica, "aborted")
        else:
            self._watcher.succeeded(replica)


def _word(ending: Ending | None) -> str:
    if ending is None:
        return "client-left"
    if not ending.whole:
        return "given-up" if ending.given_up else "cut"
    if ending.status >= 400:
        return "client-error" if ending.status < 500 else "replica-error"
    if ending.event_stream and error_event(ending.said + ending.tail):
        return "error-event"
    return "aborted" if aborted(ending.tail) else "ok"
