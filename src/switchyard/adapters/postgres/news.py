"""News from other processes: the server tells when somebody has written to the journal."""

import asyncio
from collections.abc import Callable

from switchyard.adapters.postgres.connection import Connection
from switchyard.adapters.postgres.standing import StandingConnection

CHANNEL = "switchyard"  # as in `append_group`


class News:
    """Calls back once for each burst of notifications, however many there were."""

    def __init__(self, url: str, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._is_telling = False
        self._connection = StandingConnection(url, "news of the journal", self._subscribe)

    def start(self) -> None:
        """Listen from now on, through restarts of the server."""
        self._connection.start()

    async def close(self) -> None:
        """Listen no more."""
        await self._connection.close()

    async def _subscribe(self, connection: Connection) -> None:
        await connection.add_listener(CHANNEL, self._hear)
        # What was written while nobody listened is news too.
        self._hear()

    def _hear(self, *_: object) -> None:
        if not self._is_telling:
            self._is_telling = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._is_telling = False
        self._callback()
