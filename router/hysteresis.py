"""Which replicas may be used, as a table: facts go in with the time, changes come out. No sockets and no clock here.

    starting --rise good probes--> open --fall failures in a row--> closed --cool-down, good probe--> trial --> open
                                    ^                                  ^                               |
                                    +----------- a request succeeds ---|------ one failure ------------+

The one rule: failed requests alone never close the last open replica for a model; only probes confirm that it is dead.
A replica that fails again on trial waits twice as long as before.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

FIRST_COOLDOWN_S = 0.5
LONGEST_COOLDOWN_S = 15.0
LONGEST_SILENCE_S = 1.0
"""A replica that does not answer is asked at least this often: once it is back, it is used within two seconds."""
DECISIVE = frozenset({"aborted"})
"""Trouble that needs no second time: an engine that shuts down is healthy to every probe until it is gone."""
NEUTRAL = frozenset({"busy", "client", "client_left"})
"""Kinds of trouble that say nothing about a replica's health: it is full, or the client was wrong or left."""

STARTING, OPEN, TRIAL, CLOSED = "starting", "open", "trial", "closed"


@dataclass(slots=True)
class Standing:
    """One replica's row."""

    state: str = STARTING
    since_s: float = 0.0
    reason: str = "not asked yet"
    bad_probes: int = 0
    good_probes: int = 0
    bad_requests: int = 0
    cooldown_s: float = 0.0
    closed_until_s: float = 0.0
    models: frozenset[str] | None = None
    failures: dict[str, int] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        return self.state in (OPEN, TRIAL)


class Health:
    """The table. Each fact returns the new state when it changed whether the replica may be used, else None."""

    def __init__(
        self, *, fall: int = 2, rise: int = 1, passive: bool = True, cooldown_s: float = FIRST_COOLDOWN_S
    ) -> None:
        self._fall = fall
        self._rise = rise
        self._passive = passive
        self._cooldown_s = cooldown_s
        self._rows: dict[str, Standing] = {}
        self._trials: set[str] = set()

    def __repr__(self) -> str:
        return "<Health " + " ".join(f"{name}={row.state}" for name, row in self._rows.items()) + ">"

    def __contains__(self, name: str) -> bool:
        return name in self._rows

    def __getitem__(self, name: str) -> Standing:
        return self._rows[name]

    @property
    def trials(self) -> Collection[str]:
        """The replicas on trial."""
        return self._trials

    def joined(self, name: str, now_s: float) -> None:
        """A replica nobody has asked yet: not usable."""
        self._rows[name] = Standing(since_s=now_s, cooldown_s=self._cooldown_s)

    def left(self, name: str) -> None:
        self._rows.pop(name, None)
        self._trials.discard(name)

    def serves(self, name: str, models: Iterable[str] | None) -> None:
        self._rows[name].models = None if models is None else frozenset(models)

    def probed(self, name: str, now_s: float, trouble: str | None = None) -> str | None:
        """A probe was answered well (`trouble` is None) or not; `trouble` says how in words a log can print."""
        row = self._rows[name]
        if trouble is None:
            row.bad_probes = 0
            row.good_probes += 1
            if row.usable or now_s < row.closed_until_s or row.good_probes < self._rise:
                return None
            return self._opened(name, row, now_s)
        row.good_probes = 0
        row.bad_probes += 1
        if row.state == STARTING:
            row.reason = trouble
        if row.usable and (row.bad_probes >= self._fall or row.state == TRIAL):
            return self._closed(name, row, now_s, f"{trouble} {_times(row.bad_probes)}")
        if row.state == CLOSED:
            row.reason = trouble
        return None

    def failed(self, name: str, kind: str, now_s: float) -> str | None:
        """A request failed at this replica: no connection, no answer in time, a cut reply, a 5xx."""
        row = self._rows.get(name)
        if row is None or kind in NEUTRAL:
            return None
        row.failures[kind] = row.failures.get(kind, 0) + 1
        if not self._passive or not row.usable:
            return None
        row.bad_requests += 1
        enough = row.bad_requests >= self._fall or row.state == TRIAL or kind in DECISIVE
        if enough and not self._alone(name):
            return self._closed(name, row, now_s, f"{_WORDS.get(kind, kind)} {_times(row.bad_requests)}")
        return None

    def silenced(self, name: str, trouble: str, now_s: float) -> str | None:
        """The replica answers nobody any more, neither requests nor a question for its health."""
        row = self._rows.get(name)
        if row is None or not row.usable or self._alone(name):
            return None
        row.failures["silent"] = row.failures.get("silent", 0) + 1
        return self._closed(name, row, now_s, trouble)

    def succeeded(self, name: str, now_s: float) -> None:
        """A request was answered, be it with the client's own error or with `busy`: the replica works."""
        row = self._rows.get(name)
        if row is None or not row.usable:
            return
        row.bad_requests = 0
        if row.state == TRIAL:
            self._trials.discard(name)
            row.state, row.since_s, row.reason = OPEN, now_s, ""
            row.cooldown_s = self._cooldown_s

    def due_s(self, name: str, now_s: float, interval_s: float) -> float:
        """Seconds until the next probe: soon after trouble, after a cool-down, ever rarer when nobody answers."""
        row = self._rows[name]
        soon_s = min(interval_s, self._cooldown_s)
        if row.usable:
            return soon_s if row.bad_probes or row.bad_requests else interval_s
        patience_s = min(soon_s * 2 ** min(row.bad_probes, 16), max(soon_s, LONGEST_SILENCE_S))
        return max(row.closed_until_s - now_s, patience_s if row.bad_probes else soon_s)

    def _alone(self, name: str) -> bool:
        """Whether closing this replica would leave a model, or everything, without any."""
        row = self._rows[name]
        others = [other for key, other in self._rows.items() if key != name and other.usable]
        if row.models is None or any(other.models is None for other in others):
            return not others
        return any(all(model not in (other.models or ()) for other in others) for model in row.models) or not others

    def _opened(self, name: str, row: Standing, now_s: float) -> str:
        """After a failure a replica comes back on trial; at the start it is simply open."""
        row.state = OPEN if row.state == STARTING else TRIAL
        row.since_s, row.reason = now_s, "" if row.state == OPEN else row.reason
        row.bad_requests = 0
        if row.state == TRIAL:
            self._trials.add(name)
        return row.state

    def _closed(self, name: str, row: Standing, now_s: float, reason: str) -> str:
        if row.state == TRIAL:
            row.cooldown_s = min(LONGEST_COOLDOWN_S, row.cooldown_s * 2)
        self._trials.discard(name)
        row.state, row.since_s, row.reason = CLOSED, now_s, reason
        row.closed_until_s = max(row.closed_until_s, now_s + row.cooldown_s)
        row.good_probes = 0
        return CLOSED


_WORDS = {
    "aborted": "gave up the request, as an engine that is shutting down does,",
    "unreachable": "refused or lost the connection",
    "lost": "closed the connection without an answer",
    "timed_out": "did not begin to answer in time",
    "cut": "broke off its reply",
    "silent": "fell silent in its reply",
    "status_5xx": "answered with a server error",
    "error_event": "answered with an error event",
}


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
