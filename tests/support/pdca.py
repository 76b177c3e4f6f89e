"""Strategies and rechecks for tests of the PDCA store and its users."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from switchyard.adapters.pdca.store import SqlPdcaStore
from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.domain.pdca.requests import Filter, Operation, RecheckRequest, RunnerName, Window
from switchyard.domain.pdca.strategies import StrategyBody
from switchyard.ports.pdca import PdcaStore
from tests.support.postgres import PostgresServer

NOW = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


@asynccontextmanager
async def fresh_pdca_store(engine: str, request: pytest.FixtureRequest) -> AsyncIterator[PdcaStore]:
    """An empty store of the engine, closed afterwards."""
    store: PdcaStore
    if engine == "sqlite":
        folder: Path = request.getfixturevalue("tmp_path")
        store = await SqlPdcaStore.on_file(folder / "pdca.db")
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = server.create_database()
        await PostgresDatabase.upgrade(url)
        store = await SqlPdcaStore.on_postgres(url)
    try:
        yield store
    finally:
        await store.close()


def a_recheck(
    request_id: str = "01J8TPZ7YJ1E1X4C5N9ZP3M3QJ",
    *,
    operation: Operation = "pdca.recheck",
    dry_run: bool = False,
    batch_size: int = 25,
    filter: Filter | None = None,
    created_at: datetime = NOW,
    runner: RunnerName = "embedded",
    client_id: str = "ops",
) -> RecheckRequest:
    """A request that the API could have accepted."""
    return RecheckRequest(
        request_id=request_id,
        operation=operation,
        client_id=client_id,
        window=Window(from_=created_at - timedelta(days=7), to=created_at, lookback_days=8),
        reason="manual",
        dry_run=dry_run,
        metrics=(),
        batch_size=batch_size,
        runner=runner,
        created_at=created_at,
        filter=filter,
    )


async def add_strategies(store: PdcaStore, *strategy_ids: str, tags: tuple[str, ...] = ()) -> None:
    """Register strategies with these tags."""
    for strategy_id in strategy_ids:
        await store.put_strategy(strategy_id, StrategyBody(tags=tags), NOW)
