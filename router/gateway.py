"""One request, top to bottom: read, tokens, blocks, view, choose, sent, upstream, relay, done, metrics.

The one rule: load is counted when a request is sent and released exactly once, whatever happens; another replica is
tried only while nothing of a reply has reached the client. Not here: sockets (`router.http`) and prompts' text.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from policies.blocks import hittable_blocks
from policies.fleet import Fleet
from policies.least_loaded import LeastLoaded
from policies.types import Choice, Policy, Replica, Request
from router.errors import NoReplicaAvailable, ReplicaTimedOut, ReplicaUnreachable, RequestError
from router.health import Watcher
from router.http.messages import Call, Framing, Reply
from router.http.upstream import Ending, TimedOut, Upstream, UpstreamError
from router.identity import Identity, Sessions
from router.log import request_line
from router.metrics import Metrics, Outcome
from router.models import Models, Served
from router.openai import Ask, asked
from router.prompts import Prompt
from router.record import Recorder
from router.usage import UNKNOWN, aborted, error_event, usage

_log = logging.getLogger("router.gateway")

_RETRY_AFTER_S = 2


class Gateway:
    """Takes a client's call, has a policy place it, and passes the reply on."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        policy: Policy,
        upstreams: Mapping[str, Upstream],
        watcher: Watcher,
        models: Models,
        metrics: Metrics,
        user: Identity,
        session: Identity,
        replica_key: str | None,
        clock: Callable[[], float],
        request_level: int = logging.DEBUG,
        recorder: Recorder | None = None,
    ) -> None:
        """`request_level` is the level of the log's one line per request."""
        self.fleet = fleet
        self.models = models
        self._policy = policy
        self._upstreams = upstreams
        self._watcher = watcher
        self._metrics = metrics
        self._user = user
        self._session = session
        self._sessions = Sessions()
        self._clock = clock
        self._request_level = request_level
        self._recorder = recorder
        self._count = 0
        self._fallback = LeastLoaded()
        self._authorization = f"Bearer {replica_key}".encode() if replica_key else None

    async def serve(self, call: Call, reply: Reply) -> None:
        """Answer one call; every failure of the router's own becomes an OpenAI-shaped error."""
        began_s = self._clock()
        try:
            ask = asked(call)
            served = self.models.served(ask.model)
            prompt = await served.read(ask)
            session = self._session.of(call, ask.body) or self._sessions.of(prompt.blocks)
            request = self._request(call, ask, served, prompt, session)
            await self._placed(request, prompt, call, reply, began_s)
        except RequestError as error:
            answer(reply, error)
            self._metrics.refused(call.path, error.status, error.code or error.kind)

    def _request(self, call: Call, ask: Ask, served: Served, prompt: Prompt, session: str | None) -> Request:
        self._count += 1
        return Request(
            id=str(self._count),
            route=ask.route,
            model=served.name,
            tenant="",
            user=self._user.of(call, ask.body),
            session=session,
            prompt_tokens=prompt.tokens or len(call.body) // 4,
            max_output_tokens=ask.max_output_tokens,
            blocks=prompt.blocks,
            block_tokens=self.fleet.block_tokens,
        )

    async def _placed(self, request: Request, prompt: Prompt, call: Call, reply: Reply, began_s: float) -> None:
        failed: dict[str, UpstreamError] = {}
        head = self._head(call)
        while True:
            view = self.fleet.view(request, self._clock(), failed.keys())
            if not view:
                raise self._nowhere(request, failed)
            choice = self._chosen(request, view)
            sent_s = self._clock()
            self.fleet.sent(request, choice.replica)
            if not failed:
                self._metrics.decided(sent_s - began_s)
            first_byte = FirstByte(self.fleet, request, self._clock)
            upstream = self._upstreams[choice.replica]
            start = (call.method, b" ", upstream.base_path, call.target, b" HTTP/1.1\r\nHost: ", upstream.authority)
            data = b"".join((*start, head, call.body))
            try:
                ending = await upstream.exchange(data, reply, first_byte, head_only=call.method == b"HEAD")
            except UpstreamError as error:
                self.fleet.failed(request)
                self._watcher.failed(choice.replica, error.kind)
                failed[choice.replica] = error
                continue
            except BaseException:  # the client left, or a fault of ours: the load is released all the same
                self.fleet.done(request)
                self._record(request, prompt, view, choice, began_s, first_byte.at_s, None, len(failed))
                raise
            if ending.status < 400:
                self.fleet.done(request, prompt.stored)
            else:  # the prompt was not computed, so nothing of it is cached
                self.fleet.failed(request)
            self._judged(choice.replica, ending)
            self._record(request, prompt, view, choice, began_s, first_byte.at_s, ending, len(failed))
            return

    def _head(self, call: Call) -> bytes:
        """What follows the Host of a request's head, the same for every replica; all but what is said here as it came."""
        parts = [b"\r\n"]
        forwarded: list[bytes] = []
        host = b"X-Forwarded-Host: %b\r\n" % call.host if call.host else b""
        for name, value in call.headers:
            key = name.lower()
            if key == b"x-forwarded-for":
                forwarded.append(value)
                continue
            if key == b"x-forwarded-host":  # a proxy before this one knows better
                host = b""
            if not (key == b"authorization" and self._authorization):
                parts += (name, b": ", value, b"\r\n")
        if self._authorization:
            parts += (b"Authorization: ", self._authorization, b"\r\n")
        chain = b", ".join([*forwarded, call.peer.encode()])
        parts.append(b"X-Forwarded-For: %b\r\n%b" % (chain, host))
        if call.body or call.method == b"POST":
            parts.append(b"Content-Length: %d\r\n" % len(call.body))
        parts.append(b"\r\n")
        return b"".join(parts)

    def _chosen(self, request: Request, view: tuple[Replica, ...]) -> Choice:
        try:
            choice = self._policy.choose(request, view)
            if isinstance(choice, str):
                choice = Choice(choice, "policy")
            for replica in view:
                if replica.name == choice.replica:
                    return choice
            _log.error("the policy chose %r, which was not offered; placed by load instead", choice.replica)
        except Exception:
            _log.exception("the policy failed; this request is placed by load instead")
        self._metrics.policy_failed()
        return Choice(self._fallback.choose(request, view).replica, "policy-failed")

    def _nowhere(self, request: Request, failed: Mapping[str, UpstreamError]) -> RequestError:
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

    def _judged(self, replica: str, ending: Ending) -> None:
        """Tell the health table how it went: 4xx is the client's, 429 and 503 mean busy, the rest of 5xx counts."""
        if not ending.whole:
            self._watcher.failed(replica, "cut")
        elif ending.status >= 500 and ending.status != 503:
            self._watcher.failed(replica, "status_5xx")
        elif aborted(ending.tail):  # an engine that is shutting down says 200 and gives up what it is sent
            self._watcher.failed(replica, "aborted")
        else:
            self._watcher.succeeded(replica)

    def _record(
        self,
        request: Request,
        prompt: Prompt,
        view: tuple[Replica, ...],
        choice: Choice,
        began_s: float,
        first_byte_s: float | None,
        ending: Ending | None,
        retries: int,
    ) -> None:
        told = usage(ending.tail) if ending is not None and ending.status == 200 else UNKNOWN
        available = predicted = 0
        for seen in view:
            available = max(available, seen.matched_blocks)
            if seen.name == choice.replica:
                predicted = seen.matched_blocks
        outcome = Outcome(
            route=request.route,
            model=request.model,
            replica=choice.replica,
            reason=choice.reason,
            status=ending.status if ending is not None else 499,
            outcome=_word(ending),
            duration_s=self._clock() - began_s,
            ttft_s=None if first_byte_s is None else first_byte_s - began_s,
            prompt_tokens=request.prompt_tokens if told.prompt_tokens is None else told.prompt_tokens,
            available_tokens=available * request.block_tokens,
            predicted_tokens=predicted * request.block_tokens,
            delivered_tokens=told.cached_tokens,
            output_tokens=told.output_tokens,
            basis=prompt.basis,
            retries=retries,
        )
        self._metrics.answered(outcome)
        request_line(outcome, request.id, level=self._request_level)
        if self._recorder is not None:
            self._recorder.answered(request, outcome, began_s)

    async def explained(self, call: Call) -> dict[str, Any]:
        """A dry run: what would be chosen for this call and why; nothing is sent or remembered."""
        ask = asked(call)
        served = self.models.served(ask.model)
        prompt = await served.read(ask)
        session = self._session.of(call, ask.body) or self._sessions.known(prompt.blocks)
        request = self._request(call, ask, served, prompt, session)
        view = self.fleet.view(request, self._clock())
        if not view:
            raise self._nowhere(request, {})
        choice = self._chosen(request, view)
        explain = getattr(self._policy, "explained", None)
        return {
            "route": request.route,
            "model": request.model,
            "tokens": {"prompt": prompt.tokens, "basis": prompt.basis, "reason": prompt.reason},
            "blocks": {
                "count": len(request.blocks),
                "block_tokens": request.block_tokens,
                "hittable": hittable_blocks(prompt.tokens, request.block_tokens),
                "shared": view[0].shared_blocks,
            },
            "user": request.user,
            "session": request.session,
            "replicas": [
                {
                    "name": replica.name,
                    "matched_tokens": replica.matched_blocks * request.block_tokens,
                    "in_flight": replica.in_flight,
                    "pending_prefill_tokens": replica.pending_prefill_tokens,
                    "held_blocks": replica.held_blocks,
                    "capacity_blocks": replica.capacity_blocks,
                    "weight": replica.weight,
                }
                for replica in view
            ],
            "costs": explain(request, view) if callable(explain) else None,
            "choice": {"replica": choice.replica, "reason": choice.reason},
        }


class FirstByte:
    """Told when the body of a reply begins: the prefill is over."""

    __slots__ = ("_clock", "_fleet", "_request", "at_s")

    def __init__(self, fleet: Fleet, request: Request, clock: Callable[[], float]) -> None:
        self._fleet = fleet
        self._request = request
        self._clock = clock
        self.at_s: float | None = None

    def __call__(self) -> None:
        self.at_s = self._clock()
        self._fleet.first_token(self._request)


def answer(reply: Reply, error: RequestError) -> None:
    """Send an error of the router's own."""
    body = error.body
    headers = [*error.headers, (b"Content-Length", b"%d" % len(body))]
    reply.head(error.status, error.reason.encode(), headers, Framing.SIZED)
    reply.write(body)
    reply.end()


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
