"""Commit notifications: calls back when another process has written to the journal (LISTEN/NOTIFY)."""

import asyncio
from collections.abc import Callable

from switchyard.adapters.postgres.connection import Connection
from switchyard.adapters.postgres.persistent import PersistentConnection

CHANNEL = "switchyard"  # as in `append_group`


class CommitNotifications:
    """Calls back once for a burst of notifications, whatever their number."""

    def __init__(self, url: str, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._is_scheduled = False
        self._connection = PersistentConnection(url, "commit notifications", self._subscribe)

    def start(self) -> None:
        """Listen from now on, and reconnect when the server restarts."""
        self._connection.start()

    async def close(self) -> None:
        """Stop listening."""
        await self._connection.close()

    async def _subscribe(self, connection: Connection) -> None:
        await connection.add_listener(CHANNEL, self._on_notification)
        # Commits from before the subscription sent no notification here.
        self._on_notification()

    def _on_notification(self, *_: object) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._call_back)

    def _call_back(self) -> None:
        self._is_scheduled = False
        self._callback()
