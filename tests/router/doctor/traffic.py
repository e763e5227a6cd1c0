"""Chats of an invented service, and the ways to break their prefix: each a change of one request's body.

The one rule: everything follows from the seed. Healthy chats share a system prompt and tools, and grow turn by turn.
"""

import copy
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from router.doctor.checkup import Doctor
from router.doctor.findings import Diagnosis
from router.doctor.parts import asked
from sim.cache_replay import InfiniteCache, replayed

CHAT = "/v1/chat/completions"
WORDS = [a + b for a in ("ba", "ce", "di", "fo", "gu", "ha", "lo", "mu") for b in ("nk", "rt", "sse", "lk", "m", "x")]
START = datetime(2026, 3, 1, 23, 0, tzinfo=UTC)


def prose(draw: random.Random, words: int) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(words)) + "."


def tool(number: int) -> dict:
    properties = {name: {"type": "string", "description": f"the {name} of {number}"} for name in ("where", "when")}
    function = {"name": f"tool_{number}", "description": f"does {number} things with a place and a time"}
    return {"type": "function", "function": {**function, "parameters": {"type": "object", "properties": properties}}}


def chats(seed: int = 1, *, users: int = 8, turns: int = 3, messages: int = 30) -> list[dict]:
    """Bodies in the order they come: users in turn, every user's conversation growing."""
    draw = random.Random(seed)
    system = "\n".join(f"Rule {number}: {prose(draw, 25)}" for number in range(16))
    histories = [[{"role": "system", "content": system}] for _ in range(users)]
    bodies = []
    for _ in range(turns):
        for history in histories:
            history.append({"role": "user", "content": prose(draw, messages)})
            bodies.append({"model": "m", "tools": [tool(n) for n in range(4)], "messages": copy.deepcopy(history)})
            history.append({"role": "assistant", "content": prose(draw, messages)})
    return bodies


def moment(number: int) -> datetime:
    return START + timedelta(seconds=37 * number)


def _head(told: Callable[[int, random.Random], str]) -> Callable[[dict, int, random.Random], dict]:
    def broken(body: dict, number: int, draw: random.Random) -> dict:
        body["messages"][0]["content"] = f"{told(number, draw)}\n{body['messages'][0]['content']}"
        return body

    return broken


def _middle(told: Callable[[int, random.Random], str]) -> Callable[[dict, int, random.Random], dict]:
    def broken(body: dict, number: int, draw: random.Random) -> dict:
        rules = body["messages"][0]["content"].split("\n")
        body["messages"][0]["content"] = "\n".join([*rules[:3], told(number, draw), *rules[3:]])
        return body

    return broken


def hexes(draw: random.Random, count: int) -> str:
    return "".join(draw.choice("0123456789abcdef") for _ in range(count))


def uuid(draw: random.Random) -> str:
    return "-".join(hexes(draw, count) for count in (8, 4, 4, 4, 12))


NAMES = ["Ada Byron", "Alan T", "Grace Hopper", "Edsger", "Barbara L", "Donald", "Niklaus W", "Frances Allen"]


def _tools(change: Callable[[list, random.Random], list]) -> Callable[[dict, int, random.Random], dict]:
    def broken(body: dict, number: int, draw: random.Random) -> dict:
        body["tools"] = change(body["tools"], draw)
        return body

    return broken


def _other_keys(value: object, draw: random.Random) -> object:
    if isinstance(value, dict):
        names = list(value)
        draw.shuffle(names)
        return {name: _other_keys(value[name], draw) for name in names}
    return [_other_keys(item, draw) for item in value] if isinstance(value, list) else value


def _spaced(body: dict, number: int, draw: random.Random) -> dict:
    text = body["messages"][0]["content"]
    body["messages"][0]["content"] = text.replace("Rule 1:", "Rule 1:" + " " * (number % 5))
    return body


def _with(**members: Callable[[int, random.Random], object]) -> Callable[[dict, int, random.Random], dict]:
    return lambda body, number, draw: {**body, **{name: told(number, draw) for name, told in members.items()}}


def _image(body: dict, number: int, draw: random.Random) -> dict:
    image = {"type": "image_url", "image_url": {"url": f"https://images/{hexes(draw, 20)}"}}
    rules = body["messages"][0]["content"]
    body["messages"] = [{"role": "user", "content": [image, {"type": "text", "text": rules}]}]
    del body["tools"]
    return body


def _documents(body: dict, number: int, draw: random.Random) -> dict:
    texts = [{"title": f"t{n}", "text": prose(random.Random(n), 60)} for n in range(6)]
    return {**body, "documents": draw.sample(texts, len(texts))}


def _texts(body: dict, number: int, draw: random.Random) -> dict:
    texts = [f"Document {n}: {prose(random.Random(n), 60)}" for n in range(8)]
    question = body["messages"][-1]["content"]
    asked_of = "\n\n".join([*draw.sample(texts, len(texts)), question])
    return {"model": "m", "messages": [body["messages"][0], {"role": "user", "content": asked_of}]}


def _question_first(body: dict, number: int, draw: random.Random) -> dict:
    rules = body["messages"][0]["content"]
    return {"model": "m", "messages": [{"role": "user", "content": f"{body['messages'][-1]['content']}\n\n{rules}"}]}


def _personal(number: int, draw: random.Random) -> str:
    return f"The user is {NAMES[number % 8]}, {NAMES[number % 8].split()[0].lower()}@example.org"


BREAKERS: dict[str, tuple[str, Callable[[dict, int, random.Random], dict]]] = {
    "clock": ("timestamp", _head(lambda n, _: f"Current time: {moment(n).isoformat()}")),
    "clock in words": ("timestamp", _head(lambda n, _: f"It is {moment(n):%A, %B %d, %Y at %I:%M %p}.")),
    "epoch": ("timestamp", _head(lambda n, _: f"now={moment(n).timestamp():.0f}")),
    "clock in the middle": ("timestamp", _middle(lambda n, _: f"Server time is {moment(n):%H:%M:%S} UTC")),
    "date": ("date", _head(lambda n, _: f"Today is {moment(n * 2500):%d %B %Y}.")),
    "iso date": ("date", _head(lambda n, _: f"Date: {moment(n * 2500):%Y-%m-%d}")),
    "uuid": ("uuid", _head(lambda _, draw: f"Conversation {uuid(draw)}")),
    "request id": ("request_id", _head(lambda _, draw: f"request_id: {hexes(draw, 12)}")),
    "nonce": ("request_id", _head(lambda _, draw: f"x-billing: ver=2.1; nonce={hexes(draw, 4)}5;")),
    "counter": ("counter", _head(lambda n, _: f"This is request number {n + 1} of today.")),
    "user name": ("personal", _head(lambda n, _: f"You are helping {NAMES[n % 8]}, be kind.")),
    "mail": ("personal", _head(lambda n, _: f"Contact: {NAMES[n % 8].split()[0].lower()}@example.org")),
    "profile": ("personal", _middle(_personal)),
    "tool order": ("tool_order", _tools(lambda tools, draw: draw.sample(tools, len(tools)))),
    "key order": ("schema_key_order", _tools(lambda tools, draw: [_other_keys(one, draw) for one in tools])),
    "clock in a tool": (
        "timestamp",
        _tools(
            lambda tools, draw: [{**tools[0], "note": f"as of 2026-03-01T10:{draw.randrange(60):02}:07Z"}, *tools[1:]]
        ),
    ),
    "tool set": (
        "tools_changed",
        _tools(lambda tools, draw: [tool(9), *tools] if draw.random() < 0.5 else tools[draw.randrange(3) :]),
    ),
    "white space": ("whitespace", _spaced),
    "model": ("model", _with(model=lambda n, _: f"m-{n}")),
    "salt": ("salt", _with(cache_salt=lambda _, draw: hexes(draw, 16))),
    "template": ("template", _with(chat_template_kwargs=lambda n, _: {"request": n})),
    "image": ("image_first", _image),
    "documents": ("document_order", _documents),
    "texts": ("document_order", _texts),
    "question first": ("varying_text", _question_first),
}
"""Name → the kind the doctor must say, and the change."""


def broken(name: str, seed: int = 1, **options: int) -> list[dict]:
    draw = random.Random(seed + 1)
    change = BREAKERS[name][1]
    return [change(body, number, draw) for number, body in enumerate(chats(seed, **options))]


def truncated(seed: int = 1, kept: int = 6) -> list[dict]:
    """One user's long conversation of which only the last messages are sent."""
    bodies = chats(seed, users=1, turns=24)
    for body in bodies:
        body["messages"] = [body["messages"][0], *body["messages"][1:][-kept:]]
    return bodies


def hits(prompts, block_tokens: int) -> int:
    return replayed(prompts, block_tokens, [InfiniteCache()]).hit_tokens


def diagnosed(bodies: list[dict], *, route: str = CHAT, **options) -> Diagnosis:
    doctor = Doctor(**options)
    for number, body in enumerate(bodies):
        doctor.seen(asked(route, body, 10.0 * number))
    return doctor.diagnosis(hits)


def found(diagnosis: Diagnosis) -> list:
    return [one for family in diagnosis.families for one in family.findings if one.breaks]
