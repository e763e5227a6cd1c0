"""The events of a streamed answer, as far as they are read. What can't be decoded so is none of ours.

These shapes are decoded by their annotations, which compiled classes have not; so this module stays interpreted.
"""

import msgspec

from policies.values import Loose


class Delta(Loose):
    content: str | None = None
    tool_calls: list[msgspec.Raw] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class Choice(Loose):
    delta: Delta
    index: int = 0
    finish_reason: str | None = None
    stop_reason: msgspec.Raw = msgspec.Raw(b"null")


class Usage(Loose):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Event(Loose):
    choices: list[Choice]
    usage: Usage | None = None


events = msgspec.json.Decoder(list[Event])
