"""One request, top to bottom: read, tokens, blocks, view, choose, sent, upstream, relay, done, accounts.

The one rule: load is counted when a request is sent and released exactly once, whatever happens; another replica is
tried only while nothing of a reply has reached the client. Not here: sockets (`router.http`) and prompts' text.
"""

from collections.abc import Callable, Mapping
from typing import Any

from policies.fleet import Fleet
from policies.types import Request
from router.accounts import Accounts
from router.errors import RequestError
from router.forwarding import Forwarding, request_bytes
from router.health import Watcher
from router.http.messages import Call, Framing, Reply
from router.http.upstream import Upstream, UpstreamError
from router.identity import Identity, Sessions
from router.metrics import Metrics
from router.models import Models
from router.openai import asked
from router.placing import Placing
from router.prompts import Prompt
from router.tenants import Door, Guest

TENANT = b"x-router-tenant"
"""Header in which an operator names the tenant of a dry run, on the admin port only."""

SessionOf = Callable[[tuple[bytes, ...]], str | None]


class Gateway:
    """Takes a client's call, has a policy place it, and passes the reply on."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        placing: Placing,
        upstreams: Mapping[str, Upstream],
        watcher: Watcher,
        models: Models,
        metrics: Metrics,
        accounts: Accounts,
        forwarding: Forwarding,
        tenants: Door,
        user: Identity,
        session: Identity,
        clock: Callable[[], float],
    ) -> None:
        self.fleet = fleet
        self.models = models
        self._placing = placing
        self._upstreams = upstreams
        self._watcher = watcher
        self._metrics = metrics
        self._accounts = accounts
        self._forwarding = forwarding
        self.tenants = tenants
        self._user = user
        self._session = session
        self._sessions = Sessions()
        self._clock = clock
        self._count = 0

    async def serve(self, call: Call, reply: Reply) -> None:
        """Answer one call; every failure of the router's own becomes an OpenAI-shaped error."""
        began_s = self._clock()
        try:
            with self.tenants.guest(call) as guest:
                request, prompt, call = await self._read(call, guest, self._sessions.of)
                guest.asks(request.prompt_tokens)
                await self._relayed(request, prompt, call, reply, began_s)
        except RequestError as error:
            answer(reply, error)
            self._metrics.refused(call.path, error.status, error.code or error.kind)

    async def explained(self, call: Call) -> dict[str, Any]:
        """A dry run: what would be chosen for this call and why; nothing is sent or remembered."""
        guest = self.tenants.named(call.header(TENANT))
        request, prompt, _ = await self._read(call, guest, self._sessions.known)
        return self._placing.explained(self._placing.placed(request, prompt, {}))

    async def _read(self, call: Call, guest: Guest, session_of: SessionOf) -> tuple[Request, Prompt, Call]:
        """What placing needs to know, and what replicas get. The parsed body ends here: no exchange may keep it."""
        ask = asked(call)
        served = self.models.served(ask.model, guest.salt or ask.salt)
        call = self.tenants.salted(call, ask, guest)
        prompt = await served.read(ask)
        self._count += 1
        request = Request(
            id=str(self._count),
            route=ask.route,
            model=served.name,
            tenant=guest.name,
            user=self._user.of(call, ask.body),
            session=self._session.of(call, ask.body) or session_of(prompt.blocks),
            prompt_tokens=prompt.tokens or len(call.body) // 4,
            max_output_tokens=ask.max_output_tokens,
            blocks=prompt.blocks,
            block_tokens=self.fleet.block_tokens,
        )
        return request, prompt, call

    async def _relayed(self, request: Request, prompt: Prompt, call: Call, reply: Reply, began_s: float) -> None:
        failed: dict[str, UpstreamError] = {}
        rest = self._forwarding.rest(call)
        while True:
            placed = self._placing.placed(request, prompt, failed)
            name = placed.choice.replica
            self.fleet.sent(request, name)
            if not failed:
                self._metrics.decided(self._clock() - began_s)
            first_byte = FirstByte(self.fleet, request, self._clock)
            upstream = self._upstreams[name]
            data = request_bytes(call, upstream, rest)
            try:
                ending = await upstream.exchange(data, reply, first_byte, head_only=call.method == b"HEAD")
            except UpstreamError as error:
                self.fleet.failed(request)
                self._watcher.failed(name, error.kind)
                failed[name] = error
                continue
            except BaseException:  # the client left, or a fault of ours: the load is released all the same
                self.fleet.done(request)
                self._accounts.answered(placed, began_s, first_byte.at_s, None, len(failed))
                raise
            if ending.status < 400:
                self.fleet.done(request, prompt.stored)
            else:  # the prompt was not computed, so nothing of it is cached
                self.fleet.failed(request)
            self._accounts.answered(placed, began_s, first_byte.at_s, ending, len(failed))
            return


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
