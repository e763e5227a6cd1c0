"""Which dialect answers which route. The shapes themselves are in `emulator_wire`, `_messages` and `_responses`."""

import time

from sim.emulator_messages import Messages
from sim.emulator_requests import COMPLETIONS, MESSAGES, RESPONSES, Ask
from sim.emulator_responses import Responses
from sim.emulator_wire import Chat, Completions, Dialect


def dialect_of(ask: Ask, name: str) -> Dialect:
    """The dialect for one request; `name` becomes part of the answer's id."""
    created = int(time.time())
    if ask.route == MESSAGES:
        return Messages(f"chatcmpl-{name}", ask)
    if ask.route == RESPONSES:
        return Responses(f"resp_{name}", created, ask)
    if ask.route == COMPLETIONS:
        return Completions(f"cmpl-{name}", created, ask)
    return Chat(f"chatcmpl-{name}", created, ask)
