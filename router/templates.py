"""Chat templates: jinja2's sandbox, set up as `transformers` 5 does, so that a conversation renders to the same text.

The environment: trimmed blocks, loop controls, `{% generation %}`, `tojson` without ASCII escapes, `raise_exception`,
`strftime_now`. A template is the model's, not the client's, but it runs in the sandbox all the same.
Not here: the engine's rewriting of messages before the template (`router.chat`).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import BuiltinFunctionType
from typing import Any, TypeVar

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.runtime
import jinja2.sandbox

from router.content_format import takes_parts
from router.traced import Trace, TracingSandbox, watched

_Environment = TypeVar("_Environment", bound=jinja2.sandbox.ImmutableSandboxedEnvironment)


class TemplateError(Exception):
    """The template can't be compiled, or refused the conversation."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what the model wrote; for rendering it means nothing."""

    tags = {"generation"}  # noqa: RUF012 -- jinja2 reads the class attribute

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


_DICT_MEMBERS = frozenset(dir(dict))
_STR_METHODS = frozenset(
    ["strip", "lstrip", "rstrip", "split", "rsplit", "startswith", "endswith", "replace", "lower", "upper", "title"]
)
_LOOP_MEMBERS = frozenset(["index", "index0", "revindex", "first", "last", "length", "previtem", "nextitem"])
_LoopContext = jinja2.runtime.LoopContext


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox with short ways for what chat templates do most; each gives what the long way gives.

    A dict's key that is no dict method, a harmless method of a string, a public member of `loop`. Measured on Qwen3's
    template with 80 messages: a quarter of the rendering time.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict:
            if attribute in obj and attribute not in _DICT_MEMBERS:
                return obj[attribute]
        elif (kind is str and attribute in _STR_METHODS) or (kind is _LoopContext and attribute in _LOOP_MEMBERS):
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        if type(obj) is BuiltinFunctionType and type(obj.__self__) is str and obj.__name__ in _STR_METHODS:
            kwargs.pop("_loop_vars", None)  # jinja2's own, for functions that take the context
            kwargs.pop("_block_vars", None)
            return obj(*args, **kwargs)
        return super().call(context, obj, *args, **kwargs)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **rest: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **rest)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _environment(kind: type[_Environment], date: Callable[[str], str]) -> _Environment:
    environment = kind(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"], cache_size=0
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = date
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
        self._now = now
        self._tracing: jinja2.Template | None = None
        environment = _environment(_Sandbox, self.date)
        try:
            self._template = environment.from_string(source)
            tree = environment.parse(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise TemplateError(f"the chat template can't be compiled: {error}") from error
        self.takes_parts: bool = takes_parts(tree)
        """Whether message contents are passed as lists of parts, because the template loops over them itself."""
        self.knows_developer: bool = "developer" in source
        self.knows_the_date: bool = "strftime_now" in source
        """Whether prompts depend on the clock, so that router and replica may differ around midnight."""
        self._special_tokens = dict(special_tokens or {})

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        variables: Mapping[str, Any] | None = None,
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt's text. Raises `TemplateError` when the template refuses the conversation."""
        values = self._values(messages, tools, variables, add_generation_prompt)
        try:
            return self._template.render(values)
        except RecursionError:
            raise TemplateError("the conversation is nested too deeply") from None
        except (jinja2.TemplateError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
            # What went wrong may quote the conversation: only the kind of error is told.
            raise TemplateError(f"the chat template refused the conversation ({type(error).__name__})") from None

    def date(self, form: str) -> str:
        """Now, as a template asks for it."""
        return self._now().strftime(form)

    def traced(
        self,
        trace: Trace,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None,
        variables: Mapping[str, Any],
        *,
        add_generation_prompt: bool,
    ) -> Any:
        """Render contents that are traced strings; raises `Untraceable`, or whatever the template makes of them."""

        def date(form: str) -> str:
            trace.dates.append((form, self.date(form)))
            return trace.dates[-1][1]

        if self._tracing is None:
            environment = _environment(TracingSandbox, self.date)
            watched(environment)
            self._tracing = environment.from_string(self.source)
        values = self._values(messages, tools, variables, add_generation_prompt) | {"strftime_now": date}
        context = self._tracing.new_context(values)
        return TracingSandbox.concat(self._tracing.root_render_func(context))

    def _values(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None,
        variables: Mapping[str, Any] | None,
        add_generation_prompt: bool,
    ) -> dict[str, Any]:
        values = {**self._special_tokens, "documents": None, **(variables or {})}
        return values | {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}


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
