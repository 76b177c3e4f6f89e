"""The statement port: what a venue says that it executed, for comparison with the books."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from switchyard.domain.ids import VenueName
from switchyard.domain.reconcile.breaks import StatementFill
from switchyard.ports.venue import Capabilities, VenueOrder

STATEMENT_PAGE_MAX = 1_000


class StatementPage(msgspec.Struct, frozen=True):
    """Lines in the venue's numbering; `last_number` is the cursor of the next page."""

    fills: Sequence[StatementFill]
    last_number: int
    """Below the number that was asked for where the numbering has started again."""


@runtime_checkable
class VenueStatement(Protocol):
    """A venue that can be asked for its statement; every method raises VenueUnavailable, and never guesses 'nothing'.

    The position of a symbol at the venue is the sum of its fills.
    """

    @property
    def name(self) -> VenueName:
        """The venue's name."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What the venue guarantees; its execution ids are as unique as in its reports."""
        ...

    async def statement(self, after: int, limit: int) -> StatementPage:
        """Return the next executions, each once, at most STATEMENT_PAGE_MAX; an empty page is the end."""
        ...

    def open_orders(self) -> AsyncIterator[Sequence[VenueOrder]]:
        """Yield every order that the venue may still fill, in pages."""
        ...
