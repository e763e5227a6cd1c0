"""Chat templates: jinja2's sandbox, set up as `transformers` 5 does, so that a conversation renders to the same text.

The environment: trimmed blocks, loop controls, `{% generation %}`, `tojson` without ASCII escapes, `raise_exception`,
`strftime_now`. A template is the model's, not the client's, but it runs in the sandbox all the same.
Not here: the engine's rewriting of messages before the template (`router.chat`).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox


class TemplateError(Exception):
    """The template can't be compiled, or refused the conversation."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what the model wrote; for rendering it means nothing."""

    tags = {"generation"}  # noqa: RUF012 -- jinja2 reads the class attribute

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **rest: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **rest)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _environment(now: Callable[[], datetime]) -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def _local_now() -> datetime:
    return datetime.now().astimezone()


class ChatTemplate:
    """One model's chat template."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str] | None = None, now: Callable[[], datetime] = _local_now
    ) -> None:
        """Raises `TemplateError` when the source is not valid jinja2."""
        self.source = source
        environment = _environment(now)
        try:
            self._template = environment.from_string(source)
            self._tree = environment.parse(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template can't be compiled: {error}") from error
        self._special_tokens = dict(special_tokens or {})

    @property
    def knows_the_date(self) -> bool:
        """Whether prompts depend on the clock, so that router and replica may differ around midnight."""
        return "strftime_now" in self.source

    @property
    def takes_parts(self) -> bool:
        """Whether the template loops over `message['content']` itself: the engine then passes content as a list."""
        return any(_loops_over_content(loop) for loop in self._tree.find_all(jinja2.nodes.For))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt's text. Raises `TemplateError` when the template refuses the conversation."""
        try:
            return self._template.render(
                {
                    **self._special_tokens,
                    "documents": None,
                    **variables,
                    "messages": messages,
                    "tools": tools,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except (jinja2.TemplateError, TypeError, ValueError, AttributeError, KeyError, ArithmeticError) as error:
            raise TemplateError(f"the chat template refused the conversation: {type(error).__name__}") from error


def _loops_over_content(loop: jinja2.nodes.For) -> bool:
    iterated = loop.iter
    while isinstance(iterated, jinja2.nodes.Filter) and iterated.node is not None:
        iterated = iterated.node
    if isinstance(iterated, jinja2.nodes.Getitem):
        return isinstance(iterated.arg, jinja2.nodes.Const) and iterated.arg.value == "content"
    return isinstance(iterated, jinja2.nodes.Getattr) and iterated.attr == "content"


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and its like from a `tokenizer_config.json`, as template variables."""
    found = {}
    for name, value in config.items():
        if not name.endswith("_token"):
            continue
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            found[name] = content
    return found
