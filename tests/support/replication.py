"""A PostgreSQL primary and its synchronous standby, and what makes a commit visible that only the primary has."""

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal
from urllib.parse import urlsplit

import asyncpg

from tests.support.polling import until
from tests.support.postgres import STANDBY, PostgresServer
from tests.support.upgraded import upgraded_database

Exposure = Literal["cancelled", "terminated", "crashed"]
"""What ends the wait of a commit for the standby."""

_WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%append_group%'"

_CANCEL = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' LIMIT 1"

_CHECKPOINTER = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'"


class Replicated:
    """Both servers, and a database with the schema on the primary."""

    def __init__(self, primary: PostgresServer, standby: PostgresServer, url: str) -> None:
        self.primary = primary
        self.standby = standby
        self.url = url

    @property
    def both_url(self) -> str:
        """The URL of the database on whichever server is the primary."""
        name = urlsplit(self.url).path
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}"
        return f"postgresql://postgres@{hosts}{name}?target_session_attrs=read-write"

    @property
    def standby_url(self) -> str:
        """The URL of the database on the standby."""
        return self.standby.url(urlsplit(self.url).path[1:])

    async def on_primary(self, sql: str, *values: Any) -> list[asyncpg.Record]:
        """Run a statement as an administrator, who waits for no standby."""
        return await self.run(self.url, sql, *values)

    async def run(self, url: str, sql: str, *values: Any) -> list[asyncpg.Record]:
        """The same on either server."""
        return await _run(url, sql, *values)

    async def until_synchronous(self) -> None:
        """Return when commits wait for the standby, and it is connected."""
        await until(self._is_synchronous)

    @asynccontextmanager
    async def unapplied_settings(self) -> AsyncIterator[None]:
        """Keep the server from applying changes of its standbys' names, which sessions see: stops its checkpointer."""
        [(checkpointer,)] = await self.on_primary(_CHECKPOINTER)
        os.kill(checkpointer, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(checkpointer, signal.SIGCONT)

    async def until_commits_wait(self) -> None:
        """Return when the server has applied the names of its standbys, none of which is connected."""
        await until(self._has_commit_waited)

    async def until_waiting(self) -> None:
        """Return when an append waits for the standby."""
        await until(self._is_waiting)

    async def expose(self, by: Exposure) -> None:
        """End the wait of the commits that wait for the standby, so that reads on the primary show them."""
        if by == "crashed":
            self.primary.kill()
            self.primary.start()
        else:
            function = "pg_cancel_backend" if by == "cancelled" else "pg_terminate_backend"
            await self.on_primary(f"SELECT {function}(pid) FROM ({_WAITING}) AS waiting")

    async def writes(self) -> int:
        """How many transactions have written up to now, modulo a constant."""
        [(number,)] = await self.on_primary("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        return int(number)

    async def waits(self) -> int:
        """How many sessions wait for the standby."""
        return len(await self.on_primary("SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))

    async def cancel_one(self) -> bool:
        """Cancel the wait of any session for the standby; false if there is none."""
        return bool(await self.on_primary(_CANCEL))

    async def _is_waiting(self) -> bool:
        return bool(await self.on_primary(_WAITING))

    async def _has_commit_waited(self) -> bool:
        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute("SELECT pg_logical_emit_message(true, 'test', '')", timeout=0.2)
        except TimeoutError:
            return True
        finally:
            await connection.close()
        return False

    async def _is_synchronous(self) -> bool:
        found = await self.on_primary("SELECT FROM pg_stat_replication WHERE sync_state = 'sync'")
        return bool(found)


@contextmanager
def two_servers() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A primary and its standby, for several databases."""
    with PostgresServer({"autovacuum": "off"}) as primary, PostgresServer(primary=primary) as standby:
        yield primary, standby


async def replicated_database(primary: PostgresServer, standby: PostgresServer) -> Replicated:
    """A new database on both servers, whose commits wait for the standby."""
    if not standby.is_running:
        standby.start()
    await set_standby_names(primary.url(), "")
    servers = Replicated(primary, standby, await upgraded_database(primary))
    await set_standby_names(primary.url(), STANDBY)
    await servers.until_synchronous()
    return servers


async def set_standby_names(url: str, names: str) -> None:
    """Name the synchronous standbys of a running server; none if empty."""
    await configure(url, "synchronous_standby_names", names)


async def configure(url: str, setting: str, value: str) -> None:
    """Change a setting of a running server; returns when new sessions have it."""
    await _run(url, f"ALTER SYSTEM SET {setting} = '{value}'")
    await _run(url, "SELECT pg_reload_conf()")
    await until(lambda: _has(url, setting, value))


async def _has(url: str, setting: str, value: str) -> bool:
    [(found,)] = await _run(url, f"SHOW {setting}")
    return bool(found == value)


async def _run(url: str, sql: str, *values: Any) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(url, server_settings={"synchronous_commit": "local"})
    try:
        records: list[asyncpg.Record] = await connection.fetch(sql, *values)
        return records
    finally:
        await connection.close()
