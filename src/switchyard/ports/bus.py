"""The bus port: the sources of the journal's events that a process may read; see `ports/source.py`.

The journal itself is a bus with one source (`flow/backoffice/journal_bus.py`); a consumer of a broker is another,
with a source per partition.
"""

from collections.abc import Sequence
from typing import Protocol

from switchyard.ports.ledger import SourceState
from switchyard.ports.source import Source


class Bus(Protocol):
    """The sources that this process may read."""

    async def sources(self) -> Sequence[Source]:
        """Return the sources that are assigned to this process now; asked again and again, because it changes."""
        ...

    async def left_to_others(self, states: Sequence[SourceState]) -> int:
        """Return how many events wait for another process that alone may read them; `states` is how far it is."""
        ...

    async def release(self, source: Source) -> None:
        """Give a source up after another process has claimed it; `sources` may assign it again later."""
        ...
