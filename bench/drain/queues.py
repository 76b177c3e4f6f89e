"""The queues that are compared: how each is filled and drained, and the queries that read its own timestamps."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from bench.checkouts import PROGRAM, ROOT
from bench.drain import with_pgqueuer, with_procrastinate
from bench.drain.jobs import URL_VARIABLE

QueueName = Literal["Switchyard", "Switchyard, filled", "PgQueuer", "Procrastinate"]
# Send slots: OUTBOX_BATCH_SIZE × OUTBOX_PARALLELISM = 1,024, about as many jobs in flight as two batches of PgQueuer.
BATCH_SIZE, PARALLELISM = 256, 4


@dataclass(frozen=True)
class Queue:
    """One queue. Its own tables record when the first row was taken and when the last one was finished."""

    name: QueueName
    setup: str
    fill: list[str]
    work: list[str]
    left: str
    """SQL: the number of unfinished rows."""
    done: str
    """SQL: the time of the first taken row, the time of the last finished row, and the number of finished rows."""
    extra: Mapping[str, str]

    def environment(self, folder: Path, database_url: str) -> dict[str, str]:
        shared = {"PYTHONPATH": str(ROOT), URL_VARIABLE: database_url}
        own = {"SWITCHYARD_DATABASE_URL": database_url, "SWITCHYARD_DATA_DIR": str(folder)} if self.extra else {}
        return shared | own | dict(self.extra)


def switchyard(*, fills: bool) -> Queue:
    """Switchyard's outbox. An acknowledged order corresponds to an empty job elsewhere; `fills` adds a fill to each."""
    return Queue(
        name="Switchyard, filled" if fills else "Switchyard",
        setup=f"{BATCH_SIZE * PARALLELISM:,} at once",
        fill=_script("switchyard"),
        work=[str(PROGRAM), "worker"],
        left="SELECT count(*) FROM orders WHERE status <> 'FILLED'"
        if fills
        else "SELECT count(*) FROM outbox_orders WHERE status <> 'sent'",
        done=_done("events", "at", "type", "OrderSending", "ExecutionReport" if fills else "OrderSent"),
        extra={
            "VENUE_URL_SIM": "null:" if fills else "null:resting",
            "OUTBOX_BATCH_SIZE": str(BATCH_SIZE),
            "OUTBOX_PARALLELISM": str(PARALLELISM),
            # A long queue: its last orders must not end because they have waited for long.
            "SWITCHYARD_UNSENT_WAIT_SEC": "86400",
            "SWITCHYARD_LOG_LEVEL": "warning",
        },
    )


def pgqueuer() -> Queue:
    return Queue(
        name="PgQueuer",
        setup=f"{version('pgqueuer')}, batches of {with_pgqueuer.BATCH_SIZE}",
        fill=_script("pgqueuer"),
        work=[*_script("pgqueuer"), "work"],
        left="SELECT count(*) FROM pgqueuer",
        done=_done("pgqueuer_log", "created", "status", "picked", "successful"),
        extra={},
    )


def procrastinate() -> Queue:
    return Queue(
        name="Procrastinate",
        setup=f"{version('procrastinate')}, concurrency {with_procrastinate.CONCURRENCY}",
        fill=_script("procrastinate"),
        work=[*_script("procrastinate"), "work"],
        left="SELECT count(*) FROM procrastinate_jobs WHERE status <> 'succeeded'",
        done=_done("procrastinate_events", "at", "type", "started", "succeeded"),
        extra={},
    )


def _script(name: str) -> list[str]:
    return [sys.executable, "-m", f"bench.drain.with_{name}"]


def _done(table: str, time: str, kind: str, first: str, last: str) -> str:
    started, finished = (f"FILTER (WHERE {kind} = '{name}')" for name in (first, last))
    return f"SELECT min({time}) {started}, max({time}) {finished}, count(*) {finished} FROM {table}"
