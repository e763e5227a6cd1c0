"""The prompt readers of the models the fleet serves: loaded off the event loop when a model is first told of.

The one rule: a model without a reader yet is served all the same, by load. Not here: which reader (`router.readers`).
"""

import asyncio
import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp

from policies.types import Policy
from router.config import Config
from router.health import Watcher
from router.parity import parity
from router.probes import server_of
from router.prompts import LocalReader, PromptReader
from router.readers import Picked, reader_for
from router.templates import TemplateError
from router.tokenizers import TokenizerError

_log = logging.getLogger("router.loading")


def tokenized_where(config: Config, *policies: Policy) -> str:
    """Who tokenizes. Nobody, where the operator left that open and no policy ever looks at prompts."""
    wanted = config.tokenizer
    if (
        wanted.where == "auto"
        and wanted.path is None
        and not any(getattr(one, "uses_prefixes", True) for one in policies)
    ):
        return "none"
    return wanted.where


class Readers:
    """The prompt reader of each model, loaded when a replica first tells of the model."""

    def __init__(self, config: Config, watcher: Watcher, client: aiohttp.ClientSession, *, where: str) -> None:
        """`where` prompts become tokens, as `tokenized_where` tells."""
        self._config = config
        self._where = where
        self._watcher = watcher
        self._client = client
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokens")
        self._readers: dict[str, PromptReader] = {}
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._turn = 0

    def of(self, root: str) -> PromptReader | None:
        return self._readers.get(root)

    def wanted(self, roots: Iterable[tuple[str, str]]) -> None:
        """Load the readers of models not seen before: (root, a served name of it) each."""
        for root, name in roots:
            if root not in self._loading:
                self._loading[root] = asyncio.create_task(self._load(root, name), name=f"reader of {name}")

    async def ready(self, within_s: float | None = None) -> None:
        """Return when every reader wanted so far is loaded and compared, or the time is over."""
        if self._loading:
            await asyncio.wait(self._loading.values(), timeout=within_s)

    def close(self) -> None:
        for task in self._loading.values():
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def ask(self, path: str, body: Any) -> Any:
        """Post to some usable replica that serves the model `body` names. Raises `OSError` when there is none."""
        model = body.get("model")
        usable = [
            state
            for state in self._watcher.states()
            if state.usable and (model is None or state.models is None or model in state.models)
        ]
        if not usable:
            raise ConnectionError("no usable replica to ask")
        self._turn += 1
        return await self.posted(server_of(usable[self._turn % len(usable)].url) + path, body)

    async def posted(self, url: str, body: Any) -> Any:
        try:
            async with self._client.post(url, json=body) as response:
                if response.status != 200:
                    raise ConnectionError(f"{url} answered {response.status}")
                return await response.json(content_type=None)
        except aiohttp.ClientError as error:
            raise ConnectionError(f"{url}: {type(error).__name__}") from error

    async def _load(self, root: str, name: str) -> None:
        loop = asyncio.get_running_loop()
        picked = await loop.run_in_executor(self._threads, self._picked, root)
        reader = picked.reader
        told = await parity(reader, self.ask, name)
        if isinstance(reader, LocalReader) and told.different:
            reader.doubt = told.reason
        if isinstance(reader, LocalReader):
            for _ in reader.tokenizer.at_home():  # here, for short prompts are read on the loop's thread
                await asyncio.sleep(0)
        self._readers[root] = reader
        level = logging.INFO if told.exact or self._where in ("text", "none") else logging.WARNING
        words = (name, told.word, reader.describe(), told.reason, picked.reason)
        _log.log(level, "model %s: tokens %s, %s (%s; %s)", *words)

    def _picked(self, root: str) -> Picked:
        wanted = self._config.tokenizer
        options: dict[str, Any] = {
            "ask": self.ask,
            "block_tokens": self._config.block_tokens,
            "cache_bytes": self._config.limits.prompt_cache_bytes,
            "executor": self._threads,
        }
        try:
            return reader_for(root, tokenizer=wanted.path, where=self._where, **options)
        except (TokenizerError, TemplateError) as error:
            _log.error("tokenizer.path %s", error)
            return reader_for(root, tokenizer=None, where="replica", **options)
