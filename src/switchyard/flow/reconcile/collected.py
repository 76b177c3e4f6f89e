"""Collects what one pass finds, bounded."""

from collections.abc import Iterable
from typing import Final

from switchyard.domain.ids import AccountId
from switchyard.domain.reconcile.breaks import Difference, Findings

# More differences than people can look at; the scope of a further one counts as not compared.
DIFFERENCES_MAX: Final = 10_000


class Collected:
    """Differences, and which scopes were compared."""

    def __init__(self) -> None:
        self.differences: dict[str, Difference] = {}
        self.compared: set[str] = set()
        self.left: set[str] = set()
        self.skipped: dict[str, str] = {}

    def add(self, one: Difference, *, is_active: bool = False) -> None:
        """Note a difference; one that was active just now is left for the next pass."""
        if is_active:
            self.left.add(one.break_id)
        elif len(self.differences) < DIFFERENCES_MAX:
            self.differences[one.break_id] = one
        else:
            self.left.add(one.break_id)
            self.skip(one.scope, f"more than {DIFFERENCES_MAX} differences: the rest is not listed")

    def add_all(self, differences: Iterable[Difference]) -> None:
        """Note several."""
        for one in differences:
            self.add(one)

    def skip(self, scope: str, why: str) -> None:
        """Note that the scope cannot be compared."""
        self.compared.discard(scope)
        self.skipped[scope] = why

    def missing_here(self, account: AccountId) -> int:
        """How many fills or orders of the account the books lack."""
        return sum(
            one.account_id == account and one.kind in ("fill", "order") and one.class_ == "missing_here"
            for one in self.differences.values()
        )

    def result(self) -> Findings:
        """What the pass found."""
        return Findings(
            differences=self.differences,
            compared=frozenset(self.compared - self.skipped.keys()),
            left=frozenset(self.left),
            not_compared=dict(sorted(self.skipped.items())),
        )
