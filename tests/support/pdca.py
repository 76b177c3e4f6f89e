"""Strategies and rechecks for tests of the PDCA store and its users."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path

import msgspec
import pytest

from switchyard.adapters.files.signing_keys import local_key
from switchyard.adapters.pdca.store import SqlPdcaStore
from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.adapters.system_clock import SystemClock
from switchyard.bootstrap import Engine
from switchyard.domain.ids import AccountId
from switchyard.domain.strategies.registry import (
    MetricValue,
    StrategyBody,
    StrategyKey,
    checked_strategy,
    tenant_of_account,
)
from switchyard.domain.strategies.requests import (
    Filter,
    ItemError,
    ItemResult,
    Operation,
    RecheckRequest,
    RunnerInfo,
    RunnerName,
    Window,
)
from switchyard.entrypoints.http.transport.rs256 import issue_pdca_token
from switchyard.ports.strategies import NewArtifact, PdcaStore
from tests.support.contract import decoded
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


# The account of the strategies, and of the tokens, unless a test says otherwise.
PDCA_ACCOUNT = "demo"


def strategy_key(strategy_id: str, account: str = PDCA_ACCOUNT) -> StrategyKey:
    """The key of an account's strategy."""
    return StrategyKey(tenant_of_account(AccountId(account)), strategy_id)


async def add_strategies(
    store: PdcaStore, *strategy_ids: str, tags: tuple[str, ...] = (), account: str = PDCA_ACCOUNT
) -> None:
    """Register strategies with these tags."""
    for strategy_id in strategy_ids:
        await store.put_strategy(strategy_key(strategy_id, account), StrategyBody(tags=tags), NOW)


ALL_SCOPES = ("pdca:read", "pdca:recheck", "pdca:recheck_all", "pdca:download", "pdca:strategies")
BOTH_AUDIENCES = ("pdca", "pdca.gui")
STRATEGY = "strat.meanrev.m1"
REQUEST_ID = "01J8TPZ7YJ1E1X4C5N9ZP3M3QJ"
BODY = {
    "owner": "ops",
    "tags": ["daily"],
    "capital": {"amount": 1000000, "currency": "JPY"},
    "thresholds": {
        "sharpe": {"degraded": 1, "unhealthy": 0.5},
        "max_drawdown": {"degraded": 0.1, "unhealthy": 0.2},
    },
}
RECHECK = {
    "strategies": [STRATEGY],
    "window": {"lookback_days": 14},
    "reason": "manual",
    "dry_run": True,
    "params": {"recalc_metrics": ["sharpe"]},
}
RESULT = ItemResult(
    health="degraded",
    health_reasons=("sharpe 0.8125 is below 1",),
    metrics={
        "sharpe": MetricValue(value=Decimal("0.8125")),
        "max_drawdown": MetricValue(value=Decimal("0.0425"), unit="ratio"),
        "profit_factor": MetricValue(value=None, reason="no losing round trip"),
    },
)
FILLS = NewArtifact(name="fills.csv", media_type="text/csv", content=b"at,qty,price")


def pdca_token(
    engine: Engine,
    *,
    scopes: Sequence[str] = ALL_SCOPES,
    audiences: Sequence[str] = BOTH_AUDIENCES,
    client: str = "ops",
    accounts: Sequence[str] | None = (PDCA_ACCOUNT,),
) -> str:
    """A token that a gateway with keys of its own accepts."""
    return local_token(
        engine.settings.data_dir,
        scopes=tuple(scopes),
        audiences=tuple(audiences),
        client=client,
        accounts=accounts if accounts is None or isinstance(accounts, str) else tuple(accounts),
    )


@cache  # reading a private key takes 50 ms
def local_token(
    data_dir: Path,
    *,
    scopes: Sequence[str] = ALL_SCOPES,
    audiences: Sequence[str] = BOTH_AUDIENCES,
    client: str = "ops",
    accounts: Sequence[str] | None = (PDCA_ACCOUNT,),
) -> str:
    """The same, for a gateway in another process."""
    return issue_pdca_token(
        local_key(data_dir),
        client,
        clock=SystemClock(),
        ttl=timedelta(hours=1),
        issuer="noctria.auth",
        audiences=audiences,
        scopes=scopes,
        accounts=accounts,
    )


async def tell_story(store: PdcaStore, request_id: str = REQUEST_ID) -> None:
    """A strategy whose recheck has a result and an artifact, and another one whose recheck failed.

    Of the runner `airflow`: no worker of a process under test takes it.
    """
    await store.put_strategy(strategy_key(STRATEGY), checked_strategy(decoded(json.dumps(BODY))), NOW)
    await add_strategies(store, "carry")
    request = msgspec.structs.replace(
        a_recheck(request_id, runner="airflow", batch_size=100),
        reason="month-end",
        trace_id="01J8TPZ7YJ1E1X4C5N9ZP3M3QB",
        window=Window(from_=NOW - timedelta(days=30), to=NOW),
    )
    await store.create(request, f"story {request_id}", "digest", [STRATEGY, "carry"])
    submitted = RunnerInfo(submitted_at=NOW, run_id=request_id, run_state="success", tries=1)
    await store.note_run(request_id, submitted)
    lease = timedelta(minutes=1)
    first, second = await store.claim_items("task", 2, now=NOW, lease=lease, request_id=request_id)
    await store.finish_item(first.fence, RESULT, NOW + timedelta(seconds=1), [FILLS])
    error = ItemError(code="BOOKS_BEHIND", message="the books are not up to the end of the window")
    await store.finish_item(second.fence, error, NOW + timedelta(seconds=2))
