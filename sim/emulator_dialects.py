"""Which dialect answers which route. The shapes themselves are in `emulator_wire` and `emulator_events`."""

import time

from sim.emulator_events import Messages, Responses
from sim.emulator_requests import COMPLETIONS, MESSAGES, RESPONSES, Ask
from sim.emulator_wire import Chat, Completions, Dialect


def dialect_of(ask: Ask, name: str) -> Dialect:
    """The dialect for one request; `name` becomes part of the answer's id."""
    created = int(time.time())
    if ask.route == MESSAGES:
        return Messages(f"chatcmpl-{name}", ask.model, prompt_tokens=len(ask.prompts[0]), tool=ask.tool)
    if ask.route == RESPONSES:
        return Responses(f"resp_{name}", created, ask.model, max_tokens=ask.max_tokens)
    if ask.route == COMPLETIONS:
        return Completions(f"cmpl-{name}", created, ask.model, include_usage=ask.include_usage)
    return Chat(
        f"chatcmpl-{name}",
        created,
        ask.model,
        choices=ask.choices,
        tool=ask.tool,
        include_usage=ask.include_usage,
    )
