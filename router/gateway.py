"""One request, top to bottom: read, tokens, blocks, view, choose, sent, upstream, relay, done, accounts.

The one rule: load is counted when a request is sent and released exactly once, whatever happens; another replica is
tried only while nothing of a reply has reached the client. Not here: sockets (`router.http`) and prompts' text.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from policies.fleet import Fleet
from policies.types import Request
from router.accounts import Accounts
from router.admission import Admission
from router.errors import RequestError
from router.forwarding import Forwarding, again
from router.heard import Answers
from router.http.exchange import UpstreamError
from router.http.messages import Call, Framing, Reply
from router.http.upstream import Upstream
from router.identity import Identity, Sessions
from router.models import Models, Served
from router.openai import Ask, asked
from router.placing import Placing
from router.prompts import Prompt
from router.retries import Retries
from router.tenants import Door, Guest
from router.turns import Turns

TENANT: Final = b"x-router-tenant"
"""Header in which an operator names the tenant of a dry run, on the admin port only."""

SessionOf = Callable[[Sequence[bytes]], str | None]


class Gateway:
    """Takes a client's call, has a policy place it, and passes the reply on."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        placing: Placing,
        upstreams: Mapping[str, Upstream],
        retries: Retries,
        admission: Admission | None,
        models: Models,
        accounts: Accounts,
        forwarding: Mapping[str, Forwarding],
        tenants: Door,
        user: Identity,
        session: Identity,
        clock: Callable[[], float],
    ) -> None:
        self.fleet = fleet
        self.models = models
        self._placing = placing
        self._upstreams = upstreams
        self._retries = retries
        self._admission = admission
        self._accounts = accounts
        self._forwarding = forwarding
        self.tenants = tenants
        self._user = user
        self._session = session
        self._sessions = Sessions()
        self._turns = Turns(clock)
        self._answers = Answers(fleet)
        self._clock = clock
        self._count = 0
        self.ears: list[Callable[[Request, Call], None]] = []
        """Who is told of every request that was read, before it is sent."""

    async def serve(self, call: Call, reply: Reply) -> None:
        """Answer one call; every failure of the router's own becomes an OpenAI-shaped error."""
        began_s = self._clock()
        try:
            with self.tenants.guest(call) as guest:
                if self._turns.over:  # before the body is parsed: who waits holds no more than that
                    await self._turns.next()
                ask, served, call = self._asked(call, guest)
                prompt = served.at_once(ask)
                if prompt is None:
                    prompt = await served.read(ask)
                request = self._request(call, ask, served, prompt, guest, self._sessions.of)
                turn = None if self._admission is None else self._admission.turn(call, ask.body)
                del ask  # the parsed body ends here: no exchange may keep it
                guest.asks(request.prompt_tokens)
                for ear in self.ears:
                    ear(request, call)
                if self._admission is None or turn is None:
                    await self._relayed(request, prompt, call, reply, began_s)
                else:
                    relayed = partial(self._relayed, request, prompt, call, reply, began_s)
                    await self._admission.through(request, turn, relayed)
        except RequestError as error:
            answer(reply, error)
            self._accounts.refused(call.path, error)

    async def explained(self, call: Call) -> dict[str, Any]:
        """A dry run: what would be chosen for this call and why; nothing is sent or remembered."""
        guest = self.tenants.named(call.header(TENANT))
        if self._turns.over:
            await self._turns.next()
        ask, served, call = self._asked(call, guest)
        prompt = served.at_once(ask) or await served.read(ask)
        request = self._request(call, ask, served, prompt, guest, self._sessions.known)
        placing = self._placing.rehearsal()
        return placing.explained(placing.placed(request, prompt, {}))

    def _asked(self, call: Call, guest: Guest) -> tuple[Ask, Served, Call]:
        """What the call asks for, of which model, and the call as replicas may see it."""
        ask = asked(call)
        return ask, self.models.served(ask.model, guest.salt or ask.salt), self.tenants.salted(call, ask, guest)

    def _request(
        self, call: Call, ask: Ask, served: Served, prompt: Prompt, guest: Guest, session_of: SessionOf
    ) -> Request:
        """What placing needs to know."""
        self._count += 1
        return Request(
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

    async def _relayed(self, request: Request, prompt: Prompt, call: Call, reply: Reply, began_s: float) -> None:
        tries = self._retries.begun(request, call.method, began_s)
        sent = call
        while True:
            placed = self._placing.placed(request, prompt, tries.failed)
            name = placed.choice.replica
            self.fleet.sent(request, name)
            try:
                if not tries.failed:
                    self._accounts.placed(placed, began_s)
                upstream = self._upstreams[name]
                data = self._forwarding[upstream.client_key].request(sent, upstream)
                attempt = tries.sent(name, self._answers.listening(prompt, name))
                ending = await upstream.exchange(data, reply, attempt, head_only=call.method == b"HEAD")
            except UpstreamError as error:
                tries.lost(error)
                sent = again(call, len(tries.failed))
                continue
            except BaseException:  # the client left, or a fault of ours: the load is released all the same
                self.fleet.done(request)
                self._accounts.answered(placed, began_s, tries.at_s, None, len(tries.failed))
                raise
            output_tokens = None
            try:  # what was found cached is learnt before the prompt counts as computed
                told = self._accounts.answered(placed, began_s, tries.at_s, ending, len(tries.failed))
                output_tokens = told.output_tokens
            finally:
                if ending.status < 400:
                    answer_blocks = self._answers.stored(tries.ear, ending.tail, request, prompt, name, output_tokens)
                    self.fleet.done(request, answer_blocks)
                else:  # the prompt was not computed, so nothing of it is cached
                    self.fleet.failed(request)
            return


def answer(reply: Reply, error: RequestError) -> None:
    """Send an error of the router's own."""
    body = error.body
    headers = [*error.headers, (b"Content-Length", b"%d" % len(body))]
    reply.head(error.status, error.reason.encode(), headers, Framing.SIZED)
    reply.write(body)
    reply.end()
