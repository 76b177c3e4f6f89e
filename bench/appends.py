"""The time of an append for each order: on PostgreSQL before and under the lock of the shard, on SQLite in the writer.

On PostgreSQL the server's clock is read inside a copy of `append_group`, which replaces it in a database of its own.
The lock is held a little longer, until the commit. On SQLite the time is that of `append`, without another thread and
beside one that runs Python. Each checkout is measured in a process of its own (`python -m bench.appends`), in turns.
"""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import asyncpg
import msgspec

from bench.checkouts import ROOT
from bench.measure import Bench
from bench.percentiles import percentile
from bench.processes import BenchError
from bench.tables import Section
from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.adapters.sqlite.database import SqliteDatabase
from switchyard.domain.accounts.positions import ACCOUNT_TOTAL, Position, account_total
from switchyard.domain.decisions import apply_report, begin_attempt, record_sent
from switchyard.domain.ids import AccountId
from switchyard.domain.journal.changes import Change, Committed, merged
from switchyard.domain.orders.outbox import OrderState
from switchyard.ports.journal import Journal
from tests.support.build import WORKER, a_report, an_accept, state_after
from tests.support.memory.clock import START

# A group has one order of each account, so that no two of its fills move the same position.
GROUPS = {16: 40, 1: 40}
"""The number of groups by the number of orders in each."""
# The first groups plan the statements and fill caches.
WARM_UP_SHARE = 0.2
# Of both checkouts in turns: other work on the machine comes and goes.
ROUNDS = 5
BEFORE_LOCK, UNDER_LOCK = "PostgreSQL, before the lock", "PostgreSQL, under the lock"
# Of the groups. On a busy machine a median has the time in which other processes had the core.
UNDISTURBED_PERCENT = 5
ALONE, BESIDE = "SQLite, append", "SQLite, append beside a busy thread"
MEASURED = (BEFORE_LOCK, UNDER_LOCK, ALONE, BESIDE)
STEPS = ("accept", "settle")
# Sequences are outside of transactions, so that another session reads them.
_NOTES = ("begun", "locked", "ended")
_NOTE = "    PERFORM setval('bench_{}', (extract(epoch FROM clock_timestamp()) * 1e6)::bigint);\n"
_READ = f"SELECT {', '.join(f'(SELECT last_value FROM bench_{name})' for name in _NOTES)}"


class Took(msgspec.Struct, frozen=True):
    """The microseconds of an order in one group."""

    measured: str
    step: str
    group: int
    microseconds: float


@dataclass(frozen=True)
class Appends:
    """What one process has measured."""

    is_base: bool
    took: Sequence[Took]


def measure_appends(bench: Bench, *, is_base: bool) -> Iterator[Appends]:
    """Measure one checkout once."""
    with TemporaryDirectory(dir=bench.folder) as folder, bench.new_database() as url:
        environment = os.environ | {"PYTHONPATH": str(bench.checkouts[is_base].source)}
        command = [sys.executable, "-m", "bench.appends", url, folder]
        completed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    if completed.returncode:
        raise BenchError(completed.stderr.decode())
    yield Appends(is_base, msgspec.json.decode(completed.stdout, type=list[Took]))


def appends_section(results: Sequence[Appends]) -> Section:
    """The times of the fastest groups, and their sums for a filled order."""
    rows = []
    for group in GROUPS:
        for measured in MEASURED:
            sums: dict[bool, float] = {}
            for step in STEPS:
                fastest = {}
                for is_base in sorted({result.is_base for result in results}):
                    took = [one for result in results if result.is_base is is_base for one in result.took]
                    found = [one.microseconds for one in took if _key(one) == (measured, step, group)]
                    fastest[is_base] = percentile(found, UNDISTURBED_PERCENT)
                    sums[is_base] = sums.get(is_base, 0.0) + fastest[is_base]
                rows.append((measured, step, str(group), *_cells(fastest)))
            rows.append((measured, "both", str(group), *_cells(sums)))
    return Section(
        "Microseconds of an order in an append, fastest twentieth of the groups",
        ("measured", "step", "orders in a group", "before", "now"),
        rows if results else [],
        text_columns=2,
    )


def _key(took: Took) -> tuple[str, str, int]:
    return took.measured, took.step, took.group


def _cells(figures: Mapping[bool, float]) -> tuple[str, str]:
    before, now = ("" if figures.get(is_base) is None else f"{figures[is_base]:.0f}" for is_base in (True, False))
    return before, now


async def _filled(journal: Journal, name: str, group: int) -> AsyncIterator[tuple[str, float]]:
    """Append groups that accept orders and groups that settle them; yields the step and the seconds of each append."""
    positions: dict[tuple[str, str], Position] = {}
    for number in range(GROUPS[group]):
        accounts = [AccountId(f"{name}-{place}") for place in range(group)]
        accepted = [_begun(account, f"{name}-{number}") for account in accounts]
        yield "accept", await _append(journal, f"{name}-{number}-accept", accepted)
        ids = [change.orders[0].order_id for change in accepted]
        states = await journal.load(ids)
        settled = [_settled(states[order_id], positions) for order_id in ids]
        yield "settle", await _append(journal, f"{name}-{number}-settle", settled)


async def _append(journal: Journal, group_id: str, changes: Sequence[Change]) -> float:
    started = time.perf_counter()
    outcomes = await journal.append(0, group_id, changes, START)
    took = time.perf_counter() - started
    assert all(isinstance(outcome, Committed) for outcome in outcomes), outcomes
    return took


def _begun(account: AccountId, key: str) -> Change:
    """The acceptance of an order, with its first attempt."""
    accepted = an_accept(account=account, key=key, strategy="bench")
    state = state_after(accepted)
    return merged([accepted, begin_attempt(state, state.outbox[0], WORKER, START)])


def _settled(state: OrderState, positions: dict[tuple[str, str], Position]) -> Change:
    """The venue's answer to an order, with its fill."""
    order = state.order
    sent = record_sent(state, state.outbox[0], order.order_id, START)
    state = OrderState(order=sent.orders[0], outbox=sent.outbox)
    total = positions.get((order.account_id, ACCOUNT_TOTAL)) or account_total(order.account_id, START)
    report = a_report(state, exec_id=order.order_id)
    filled = apply_report(state, positions.get((order.account_id, order.symbol)), report, START, total=total)
    positions.update({position.key: position for position in filled.positions})
    return merged([sent, filled])


async def _on_postgres(url: str) -> AsyncIterator[Took]:
    await PostgresDatabase.upgrade(url)
    database = await PostgresDatabase.open(url)
    connection = await asyncpg.connect(url)
    await _read_clock_inside(connection)
    for group, groups in GROUPS.items():
        number = 0
        async for step, _ in _filled(database.journal, f"group-of-{group}", group):
            begun, locked, ended = await connection.fetchrow(_READ)
            if (number := number + 1) > groups * len(STEPS) * WARM_UP_SHARE:
                yield Took(BEFORE_LOCK, step, group, (locked - begun) / group)
                yield Took(UNDER_LOCK, step, group, (ended - locked) / group)
    await connection.close()
    await database.close()


async def _read_clock_inside(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Let `append_group` note when it begins, when it has the lock, and when it ends."""
    for name in _NOTES:
        await connection.execute(f"CREATE SEQUENCE bench_{name}")
    sql: str = await connection.fetchval("SELECT pg_get_functiondef('append_group'::regproc)")
    declared, begin, body = sql.partition("\nBEGIN\n")
    lock, waited, rest = body.partition("FOR UPDATE;")
    new_shard, end_if, rest = rest.partition("    END IF;\n")
    work, end, tail = rest.rpartition("END $")
    parts = (declared, begin, _NOTE.format("begun"), lock, waited, new_shard, end_if, _NOTE.format("locked"))
    await connection.execute("".join((*parts, work, _NOTE.format("ended"), end, tail)))


async def _on_sqlite(folder: Path) -> AsyncIterator[Took]:
    for measured in (ALONE, BESIDE):
        path = folder / f"{measured}.db"
        await SqliteDatabase.upgrade(path)
        database = await SqliteDatabase.open(path)
        with _busy_thread() if measured == BESIDE else nullcontext():
            for group, groups in GROUPS.items():
                number = 0
                async for step, seconds in _filled(database.journal, f"group-of-{group}", group):
                    if (number := number + 1) > groups * len(STEPS) * WARM_UP_SHARE:
                        yield Took(measured, step, group, seconds * 1e6 / group)
        await database.close()


@contextmanager
def _busy_thread() -> Iterator[None]:
    """Run Python in another thread meanwhile, as the event loop of a busy server does."""
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            sum(range(100))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


async def _measured(url: str, folder: Path) -> list[Took]:
    on_postgres = [took async for took in _on_postgres(url)]
    return on_postgres + [took async for took in _on_sqlite(folder)]


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(_measured(sys.argv[1], Path(sys.argv[2])))))
