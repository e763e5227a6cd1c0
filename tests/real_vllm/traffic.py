"""What clients ask: conversations with their history, heads that many share, salts, adapters, odd requests.

The one rule: drawn from a seed, so that two runs ask the same; only the replies differ.
"""

import json
import random
from typing import Any

from router.openai import CHAT, COMPLETIONS

MESSAGES = "/v1/messages"
WORDS = ("a", "the", "cache", "block of", "prefix", "token", "Straße", "你好", "naïve", "3.14", "{}", " → ", "import")
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


class Traffic:
    """Requests one after another, each a route and a body."""

    def __init__(self, seed: int, *, salted: bool = True) -> None:
        self._draw = random.Random(seed)
        self._salts = ["blue", "red"] if salted else []
        self._heads = [self.words(count) for count in (60, 120, 240)]
        self._conversations: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None

    def words(self, count: int) -> str:
        return " ".join(self._draw.choice(WORDS) + str(self._draw.randrange(100)) for _ in range(count))

    def next(self) -> tuple[str, dict[str, Any]]:
        draw = self._draw
        self._open = None
        body: dict[str, Any] = {"model": "tiny", "max_tokens": draw.choice([1, 2, 9, 40]), "temperature": 0}
        kind = draw.random()
        if kind < 0.55:
            return CHAT, self._turn(body)
        if kind < 0.75:
            body["model"] = draw.choice(["tiny", "tiny", "sql", "poems"])
            return COMPLETIONS, body | {"prompt": f"{draw.choice(self._heads)} {self.words(draw.randrange(80))}"}
        if kind < 0.85:  # token ids, often whole blocks: the last token of a prompt is always computed
            return COMPLETIONS, body | {"prompt": [1000 + draw.randrange(3) for _ in range(32)] * draw.randrange(1, 5)}
        if kind < 0.92:
            body["messages"] = [{"role": "user", "content": f"{draw.choice(self._heads)} {self.words(20)}"}]
            return MESSAGES, body | {"system": "Be brief."}
        body["messages"] = [{"role": "user", "content": draw.choice(self._heads)}]
        return CHAT, body | draw.choice(
            [{"n": 2, "temperature": 1.0}, {"tools": [WEATHER], "tool_choice": "none"}, {"stream": True}]
        )

    def _turn(self, body: dict[str, Any]) -> dict[str, Any]:
        """The next turn of a conversation, old or new."""
        draw = self._draw
        if len(self._conversations) < 8 or draw.random() < 0.15:
            messages = [{"role": "system", "content": draw.choice(self._heads)}]
            own: dict[str, Any] = {"model": draw.choice(["tiny", "tiny", "tiny", "sql"])}
            if self._salts and draw.random() < 0.3:
                own["cache_salt"] = draw.choice(self._salts)
            self._conversations.append(own | {"messages": messages})
        self._open = draw.choice(self._conversations)
        self._open["messages"].append({"role": "user", "content": self.words(draw.randrange(1, 40))})
        if draw.random() < 0.5:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body | {**self._open, "messages": list(self._open["messages"])}

    def answered(self, answer: bytes) -> None:
        """The reply to the last request: a conversation goes on with it, unless it has become long."""
        if self._open is None:
            return
        self._open["messages"].append({"role": "assistant", "content": said(answer)})
        if len(self._open["messages"]) > 9:
            self._conversations.remove(self._open)


def said(answer: bytes) -> str:
    """The text of a chat's reply, streamed or not."""
    if not answer.startswith(b"data: "):
        return str(json.loads(answer)["choices"][0]["message"]["content"])
    events = [json.loads(line[6:]) for line in answer.split(b"\n\n") if line.startswith(b"data: {")]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])
