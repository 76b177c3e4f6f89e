"""Liveness of workers: proven by a lock that is released when its holder ends."""

from datetime import timedelta

import asyncpg
import pytest

from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.adapters.postgres.liveness import PostgresLiveness, lock_key
from switchyard.domain.errors import AlreadyRunning
from switchyard.domain.ids import WorkerId
from switchyard.ports.journal import KERNEL_HOLD, Liveness
from switchyard.ports.venue import SEND_LIMIT, TURN_LIMIT
from tests.support.memory.liveness import MemoryLiveness
from tests.support.polling import until

HERE, THERE, NEVER = WorkerId("here"), WorkerId("there"), WorkerId("never")


async def test_a_worker_of_this_process_is_alive_and_an_unknown_one_is_not(liveness: Liveness) -> None:
    await liveness.hold(HERE)
    await liveness.hold(HERE)  # as a stage does that restarts

    assert await liveness.dead([HERE, NEVER]) == {NEVER}
    assert await liveness.dead([]) == frozenset()


async def test_a_free_lock_proves_death_on_sqlite_and_a_lost_session_on_postgresql(liveness: Liveness) -> None:
    attempt = TURN_LIMIT + SEND_LIMIT if isinstance(liveness, PostgresLiveness) else timedelta()
    kernel = timedelta() if isinstance(liveness, MemoryLiveness) else KERNEL_HOLD
    assert liveness.send_lingers == attempt + kernel


async def test_a_worker_elsewhere_is_alive_until_its_session_ends(postgres_url: str) -> None:
    one, other = await PostgresDatabase.open(postgres_url), await PostgresDatabase.open(postgres_url)
    await one.liveness.hold(HERE)
    await other.liveness.hold(THERE)

    assert await one.liveness.dead([HERE, THERE, NEVER]) == {NEVER}
    assert await other.liveness.dead([HERE, THERE, NEVER]) == {NEVER}
    await other.close()
    assert await one.liveness.dead([HERE, THERE]) == {THERE}
    await one.close()


async def test_a_name_is_held_by_one_process(postgres_url: str) -> None:
    one, other = await PostgresDatabase.open(postgres_url), await PostgresDatabase.open(postgres_url)
    await one.liveness.hold(HERE)

    with pytest.raises(AlreadyRunning, match=HERE):
        await other.liveness.hold(HERE)
    await one.close()
    await other.liveness.hold(HERE)
    await other.close()


async def test_a_lost_lock_is_taken_again(postgres_url: str) -> None:
    one, other = await PostgresDatabase.open(postgres_url), await PostgresDatabase.open(postgres_url)
    await one.liveness.hold(HERE)
    administrator = await asyncpg.connect(postgres_url)
    holder = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = $1 AND objid = $2"
    key = lock_key(HERE) % 2**64
    held_by = await administrator.fetchval(holder, key >> 32, key % 2**32)

    await administrator.execute("SELECT pg_terminate_backend($1)", held_by)

    async def is_held_again() -> bool:
        pid = await administrator.fetchval(holder, key >> 32, key % 2**32)
        return pid is not None and pid != held_by

    await until(is_held_again)
    assert await other.liveness.dead([HERE]) == frozenset()
    await administrator.close()
    await one.close()
    await other.close()
