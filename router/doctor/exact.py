"""A model's own tokens for the doctor, and what its template does to prefixes by itself.

The one rule: a prompt that can't be rendered or tokenized has no tokens here; its text is used instead, and it is
counted. Not here: loading (`router.readers`).
"""

from collections.abc import Iterator, Sequence

from router.chat import NotText
from router.doctor.parts import Body
from router.prompts import LocalReader
from router.templates import TemplateError
from router.tokenizers import TokenizerError

_ROUTE = "/v1/chat/completions"
_THOUGHT = "zq7thought"


class ModelTokens:
    """Route and body in, token ids out."""

    def __init__(self, reader: LocalReader) -> None:
        self._reader = reader
        self._unread = 0
        self._doubled = 0

    def __repr__(self) -> str:
        return f"<ModelTokens {self._reader.describe()}>"

    def __call__(self, route: str, body: Body) -> Sequence[int] | None:
        try:
            ids = self._reader.token_ids(route, body)
        except (NotText, TemplateError, TokenizerError, OverflowError):
            self._unread += 1
            return None
        first = self._reader.tokenizer.special_prefix[:1]
        if first and tuple(ids[:2]) == (*first, *first):
            self._doubled += 1
        return ids

    def notes(self) -> Iterator[str]:
        """What a reader of exact numbers must know."""
        if self._unread:
            yield "some prompts can't be rendered with this template: of these the text was used"
        if self._doubled:
            yield (
                "prompts begin with the model's first special token twice: the caller writes it, and the endpoint adds "
                "it; leave it out of the text, or send add_special_tokens: false"
            )
        template = self._reader.template
        if template is None:
            return
        if template.knows_the_date:
            yield "the chat template writes the date: at midnight all prompts change, on each replica by its own clock"
        yield from self._of_turns()

    def _of_turns(self) -> Iterator[str]:
        """How a turn stands in the history of the next one."""
        ask = {"role": "user", "content": "one"}
        told = {"role": "assistant", "content": f"<think>\n{_THOUGHT}\n</think>\n\ntwo"}
        try:
            first = self._reader.token_ids(_ROUTE, {"messages": [ask]})
            later = self._reader.token_ids(_ROUTE, {"messages": [ask, told, {"role": "user", "content": "three"}]})
        except (NotText, TemplateError, TokenizerError):
            return
        if list(later[: len(first)]) != list(first):
            yield "what the template puts before an answer is not in the history: the end of each prompt comes once"
        if _THOUGHT not in self._reader.decode(list(later)):
            yield "the template removes reasoning from the history: answers with reasoning are computed again"
