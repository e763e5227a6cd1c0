"""Whose turn it is where tenants queue: deficit round robin by uncached tokens.

Each tenant that waits may send `quantum_tokens` a round; what it leaves over it keeps while it still waits, what it
needs beyond comes in later rounds (M. Shreedhar and G. Varghese, SIGCOMM 1995). As in DLPM (S. Cao et al., arXiv
2501.14312) only tokens that must be computed count, so a cached prompt costs its tenant little. A request's round is
known when it comes, so a queue ordered by rounds is all there is to it. The one rule: who waits for nothing saves up
nothing. Not here: the queue (a shell's).
"""


class DeficitRounds:
    """Tells requests their rounds. Memory follows the tenants that wait, not those that were ever seen."""

    __slots__ = ("_quantum_tokens", "_round", "_spent", "_sweep_at")

    def __init__(self, quantum_tokens: int) -> None:
        """`quantum_tokens`: how many a tenant may have computed in one round; smaller is fairer in the short run."""
        if quantum_tokens < 1:
            raise ValueError(f"quantum_tokens must be at least 1, not {quantum_tokens}")
        self._quantum_tokens = quantum_tokens
        self._round = 0
        self._spent: dict[str, tuple[int, int]] = {}
        """Of each tenant the round its last request comes in, and what is left of that round's tokens."""
        self._sweep_at = 1024

    def __repr__(self) -> str:
        return f"<DeficitRounds in round {self._round}, {len(self._spent)} tenants>"

    def __len__(self) -> int:
        return len(self._spent)

    def of(self, tenant: str, uncached_tokens: int) -> int:
        """The round in which a request of so many tokens comes."""
        quantum = self._quantum_tokens
        known = self._spent.get(tenant)
        turn, left = known if known is not None and known[0] >= self._round else (self._round, quantum)
        if left < uncached_tokens:
            rounds = -((left - uncached_tokens) // quantum)
            turn += rounds
            left += rounds * quantum
        if known is None and len(self._spent) >= self._sweep_at:
            self._spent = {name: spent for name, spent in self._spent.items() if spent[0] >= self._round}
            self._sweep_at = max(1024, 2 * len(self._spent))
        self._spent[tenant] = turn, left - uncached_tokens
        return turn

    def served(self, turn: int) -> None:
        """A request of this round was sent: earlier rounds are over."""
        self._round = max(self._round, turn)
