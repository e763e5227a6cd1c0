"""Log probabilities in the shapes that vLLM 0.32 answers with. The numbers are invented: a function of the token id.

The one rule: of all alternatives to a token that could be listed there is one, the token itself.
"""

from collections.abc import Sequence
from typing import Any

Token = tuple[int, str]
"""An id and its text."""


def logprob(token: int) -> float:
    return -0.5 - (token * 2_654_435_761 % 1024) / 128


def of_chat(tokens: Sequence[Token], top: int) -> dict[str, Any]:
    """For `choices[].logprobs` of a chat: the whole answer's or one chunk's."""
    content = []
    for token, text in tokens:
        entry = {"token": text, "logprob": logprob(token), "bytes": list(text.encode("utf-8", "replace"))}
        content.append(entry | {"top_logprobs": [dict(entry)] if top else []})
    return {"content": content}


def of_completion(prompt: Sequence[Token], tokens: Sequence[Token], offset: int) -> dict[str, Any]:
    """For `choices[].logprobs` of a completion; `offset` characters of the text came before."""
    offsets, shown = [], [*prompt, *tokens]
    for _, text in shown:
        offsets.append(offset)
        offset += len(text)
    values: list[float | None] = [logprob(token) for token, _ in shown]
    tops: list[dict[str, float] | None] = [{text: logprob(token)} for token, text in shown]
    if prompt:  # nothing comes before the first token
        values[0] = tops[0] = None
    return {
        "text_offset": offsets,
        "token_logprobs": values,
        "tokens": [text for _, text in shown],
        "top_logprobs": tops,
    }


def of_prompt(tokens: Sequence[Token]) -> list[dict[str, Any] | None]:
    """For `prompt_logprobs`."""
    told: list[dict[str, Any] | None] = [
        {str(token): {"logprob": logprob(token), "rank": 1, "decoded_token": text}} for token, text in tokens
    ]
    told[:1] = [None]
    return told
