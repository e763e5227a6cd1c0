"""One decision: the view of a request, the policy's choice, and what is said when there is nowhere to go.

The one rule: a policy that fails or chooses what was not offered never fails a request; that one goes by load. Not
here: sending, and who is healthy.
"""

import logging
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Final

from policies.fleet import Fleet
from policies.least_loaded import LeastLoaded
from policies.types import Choice, Policy, Replica, Request
from router.admission import Room
from router.aside import Aside
from router.errors import NoReplicaAvailable, NotImplementedHere, ReplicaTimedOut, ReplicaUnreachable, RequestError
from router.http.exchange import TimedOut, UpstreamError
from router.prompts import Prompt

_log: Final = logging.getLogger("router.placing")

_RETRY_AFTER_S: Final = 2


class Placed:
    """A request and where it goes."""

    __slots__ = ("choice", "chosen", "prompt", "request", "view")

    def __init__(
        self, request: Request, prompt: Prompt, view: tuple[Replica, ...], choice: Choice, chosen: Replica
    ) -> None:
        """`chosen` is the row of the view that was chosen."""
        self.request: Final = request
        self.prompt: Final = prompt
        self.view: Final = view
        self.choice: Final = choice
        self.chosen: Final = chosen


class Placing:
    """Has the policy choose among the replicas that may be chosen."""

    def __init__(
        self,
        fleet: Fleet,
        policy: Policy,
        policy_failed: Callable[[], None],
        clock: Callable[[], float],
        aside: Aside,
        room: Room | None,
    ) -> None:
        """`policy_failed` is told of failures; `room` is what a replica may have at a time, where that is limited."""
        self._fleet = fleet
        self._aside = aside
        self._room = room
        self._policy = policy
        self._policy_failed = policy_failed
        self._clock = clock
        self._fallback = LeastLoaded()

    def placed(self, request: Request, prompt: Prompt, failed: Mapping[str, UpstreamError]) -> Placed:
        """Where the request goes; `failed` are the replicas that have had it. Raises when none is left."""
        view = self._view(request, failed)
        if not view:
            raise nowhere(request, failed)
        choice, chosen = self._choice(request, view)
        return Placed(request, prompt, view, choice, chosen)

    def rehearsal(self) -> "Placing":
        """A twin for dry runs: it sees the same fleet, and its choices move no dice and no counter of this one.

        Raises `NotImplementedHere` when the policy can't be copied.
        """
        try:
            policy, fallback = deepcopy((self._policy, self._fallback))
        except Exception as error:  # a plug-in may hold anything
            raise NotImplementedHere(
                f"the policy can't be copied ({type(error).__name__}), and asked itself it would remember a dry run;"
                " give it a __deepcopy__"
            ) from error
        twin = Placing(self._fleet, policy, _nothing, self._clock, self._aside.rehearsal(), self._room)
        twin._fallback = fallback
        return twin

    def _view(self, request: Request, failed: Mapping[str, UpstreamError]) -> tuple[Replica, ...]:
        now_s = self._clock()
        aside = self._aside.names(now_s)
        if not aside and self._room is None:
            return self._fleet.view(request, now_s, failed.keys())
        everybody = self._fleet.view(request, now_s, failed.keys())
        preferred = tuple([replica for replica in everybody if replica.name not in aside])
        if self._room is not None:
            preferred = self._room.of(request, preferred) or self._room.of(request, everybody)
        return preferred or everybody

    def _choice(self, request: Request, view: tuple[Replica, ...]) -> tuple[Choice, Replica]:
        try:
            choice = self._policy.choose(request, view)
            if isinstance(choice, str):
                choice = Choice(choice, "policy")
            if type(choice.reason) is not str:
                raise TypeError(f"a reason is a text, not {type(choice.reason).__name__}")
            for replica in view:
                if replica.name == choice.replica:
                    return choice, replica
            told = "the policy %s chose %r, which was not offered; placed by load instead"
            _log.error(told, type(self._policy).__name__, choice.replica)
        except Exception:
            told = "the policy %s failed; this request is placed by load instead"
            _log.exception(told, type(self._policy).__name__)
        self._policy_failed()
        name = self._fallback.choose(request, view).replica
        return Choice(name, "policy-failed"), next(replica for replica in view if replica.name == name)

    def explained(self, placed: Placed) -> dict[str, Any]:
        """A decision in words and numbers, without any of the prompt's text."""
        request, prompt = placed.request, placed.prompt
        explain = getattr(self._policy, "explained", None)
        return {
            "route": request.route,
            "model": request.model,
            "tokens": {"prompt": prompt.tokens, "basis": prompt.basis, "reason": prompt.reason},
            "blocks": {
                "count": len(request.blocks),
                "block_tokens": request.block_tokens,
                "hittable": len(request.blocks),
                "shared": placed.view[0].shared_blocks,
            },
            "user": request.user,
            "session": request.session,
            "replicas": [_told(request, replica) for replica in placed.view],
            "costs": explain(request, placed.view) if callable(explain) else None,
            "choice": {"replica": placed.choice.replica, "reason": placed.choice.reason},
        }


def _nothing() -> None:
    """A dry run fails no policy."""


def _told(request: Request, replica: Replica) -> dict[str, Any]:
    return {
        "name": replica.name,
        "matched_tokens": replica.matched_blocks * request.block_tokens,
        "in_flight": replica.in_flight,
        "pending_prefill_tokens": replica.pending_prefill_tokens,
        "held_blocks": replica.held_blocks,
        "capacity_blocks": replica.capacity_blocks,
        "weight": replica.weight,
    }


def nowhere(request: Request, failed: Mapping[str, UpstreamError]) -> RequestError:
    """What a client is told when no replica is left for its request, or none may be asked any more."""
    if not failed:
        return NoReplicaAvailable(
            f"no healthy replica serves {request.model!r} at the moment; try again in {_RETRY_AFTER_S} s"
            if request.model
            else f"no replica is healthy at the moment; try again in {_RETRY_AFTER_S} s",
            retry_after_s=_RETRY_AFTER_S,
        )
    told = "; ".join(f"{name}: {error}" for name, error in failed.items())
    kind = ReplicaTimedOut if all(isinstance(error, TimedOut) for error in failed.values()) else ReplicaUnreachable
    return kind(f"no replica answered ({told}); try again", retry_after_s=_RETRY_AFTER_S)
