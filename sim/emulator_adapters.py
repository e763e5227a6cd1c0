"""The emulator's LoRA adapters, by name.

The one rule: an adapter's path is a part of its blocks' hashes and its number is not, as in vLLM 0.32: loaded from the
same path again, it finds what it had cached. Not here: the routes that load and unload (`emulator_loading`).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Loaded:
    """One adapter. `number` is another one each time it is loaded after having been unloaded."""

    number: int
    path: str


class Adapters(Mapping[str, Loaded]):
    """What is loaded, by name."""

    def __init__(self, names: Iterable[str]) -> None:
        self._loaded: dict[str, Loaded] = {}
        self._number = 0
        for name in names:
            self.load(name, f"/adapters/{name}")

    def __getitem__(self, name: str) -> Loaded:
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded)

    def __len__(self) -> int:
        return len(self._loaded)

    def load(self, name: str, path: str) -> None:
        before = self._loaded.get(name)
        self._number += before is None
        self._loaded[name] = Loaded(self._number if before is None else before.number, path)

    def unload(self, name: str) -> None:
        del self._loaded[name]
