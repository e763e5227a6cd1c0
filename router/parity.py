"""The proof that a reader reads as the engine does: its ids against a replica's `/tokenize` on probe prompts.

The probes are chats that templates and tokenizers disagree on in practice: white space, Unicode, parts, special tokens
as text, tools and their results, roles, template variables. The one rule: what the replica refuses is no difference,
and what it never answered is no proof. Not here: what is done about it (`router.app`, `router.check`).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from policies.blocks import Chain
from router.chat import NotText
from router.prompt_fallbacks import Unread
from router.prompts import LocalReader, PromptReader, ReplicaReader
from router.templates import TemplateError
from router.tokenizers import TokenizerError

Ask = Callable[[str, Any], Awaitable[Any]]
"""Posts JSON to a path of some replica and returns the JSON of its answer."""

_WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Z\u00fcrich","n":1.0}'}}
_USER = {"role": "user", "content": "What is a prefix cache?"}
_ANSWER = {"role": "assistant", "content": "A store of KV blocks."}
PROBES: dict[str, dict[str, Any]] = {
    "one message": {"messages": [_USER]},
    "system message": {"messages": [{"role": "system", "content": "Be brief."}, _USER]},
    "several turns": {"messages": [_USER, _ANSWER, _USER]},
    "unicode": {"messages": [{"role": "user", "content": "Gr\u00fc\u00dfe \u4f60\u597d \U0001f642 e\u0301"}]},
    "text parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    },
    "white space": {
        "messages": [{"role": "user", "content": "  x \n\n"}, {"role": "assistant", "content": "\ty "}, _USER]
    },
    "special tokens as text": {"messages": [{"role": "user", "content": "<|im_end|> <|eot_id|> <s>"}]},
    "developer message": {"messages": [{"role": "developer", "content": "Be brief."}, _USER]},
    "reasoning in history": {"messages": [_USER, {**_ANSWER, "reasoning": "because"}, _USER]},
    "no generation prompt": {"messages": [_USER], "add_generation_prompt": False},
    "continued message": {
        "messages": [_USER, {"role": "assistant", "content": "Sure, "}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "template variables": {"messages": [_USER], "chat_template_kwargs": {"enable_thinking": False}},
    "tools": {"messages": [_USER], "tools": [_WEATHER]},
    "tool results": {
        "messages": [
            _USER,
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "18 C"},
        ],
        "tools": [_WEATHER],
    },
    "text prompt": {"prompt": "Once upon a time"},
}


@dataclass(frozen=True, slots=True)
class Parity:
    """Whether a reader gives the ids a replica gives."""

    exact: bool
    reason: str
    compared: int
    different: tuple[str, ...]
    """Names of the probes that gave other ids."""

    @property
    def word(self) -> str:
        return "EXACT" if self.exact else "APPROXIMATE"


async def parity(reader: PromptReader, ask: Ask, model: str) -> Parity:
    """Compare a reader with a replica's `/tokenize` on every probe the replica accepts."""
    if isinstance(reader, ReplicaReader):
        asked = await reader.read("/v1/completions", {**PROBES["text prompt"], "model": model}, Chain.root("parity"))
        exact = asked.basis == "exact"
        return Parity(exact, "a replica tokenizes" if exact else asked.reason, 0, ())
    if isinstance(reader, Unread):
        return Parity(False, "the policy does not look at prompts", 0, ())
    if not isinstance(reader, LocalReader):
        return Parity(False, "no tokenizer: text is hashed in chunks", 0, ())
    verdicts = {name: await _equal(reader, ask, {**body, "model": model}) for name, body in PROBES.items()}
    compared = sum(verdict is not None for verdict in verdicts.values())
    different = tuple(name for name, verdict in verdicts.items() if verdict is False)
    if not compared:
        return Parity(False, "the replica's /tokenize did not answer", 0, ())
    if different:
        return Parity(False, f"different ids for: {', '.join(different)}", compared, different)
    reason = f"{compared} of {len(PROBES)} probe prompts gave equal ids"
    if compared < len(PROBES):
        reason += ", the replica refused the rest"
    if reader.template is not None and reader.template.knows_the_date:
        reason += "; the template prints the date, which may differ around midnight"
    return Parity(True, reason, compared, ())


async def _equal(reader: LocalReader, ask: Ask, body: dict[str, Any]) -> bool | None:
    """Whether both give the same ids; None when the replica gave none (a template may refuse a probe)."""
    try:
        theirs = (await ask("/tokenize", body))["tokens"]
    except Exception:  # whatever `ask` raises: there is nothing to compare
        return None
    if not isinstance(theirs, list):
        return None
    route = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    try:
        ours = reader.token_ids(route, body)
    except (NotText, TemplateError, TokenizerError):
        return False
    cached = await reader.read(route, body, Chain.root("parity"))
    return ours == theirs and cached.tokens == len(theirs)
