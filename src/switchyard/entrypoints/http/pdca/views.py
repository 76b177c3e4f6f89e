"""The bodies of the PDCA API's answers."""

from datetime import datetime
from typing import Literal

import msgspec

from switchyard.domain.ids import AccountId
from switchyard.domain.strategies.registry import Capital, Health, MetricName, MetricValue, Strategy, Threshold
from switchyard.domain.strategies.requests import (
    Artifact,
    Filter,
    ItemError,
    ItemState,
    RecheckItem,
    RequestState,
    Window,
)
from switchyard.ports.strategies import ItemPage, StoredRequest


class AcceptedView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a recheck; a repeat gets the same."""

    request_id: str
    accepted_at: datetime


class StrategyView(msgspec.Struct, frozen=True, kw_only=True):
    """A strategy."""

    id: str
    account: AccountId | None
    owner: str | None
    tags: tuple[str, ...]
    capital: Capital | None
    thresholds: dict[MetricName, Threshold]
    health: Health
    health_reasons: tuple[str, ...]
    last_checked_at: datetime | None
    last_request_id: str | None
    metrics: dict[MetricName, MetricValue]
    created_at: datetime
    updated_at: datetime


class DeletedView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a deletion; the same for a strategy that there is not and one of others."""

    id: str
    deleted: bool


class StrategyListView(msgspec.Struct, frozen=True, kw_only=True):
    """A page of strategies."""

    items: tuple[StrategyView, ...]
    page: int
    page_size: int
    total: int


class ProgressView(msgspec.Struct, frozen=True, kw_only=True):
    """How many strategies of a request are in which state."""

    total: int
    queued: int
    running: int
    succeeded: int
    failed: int


class RunnerView(msgspec.Struct, frozen=True, kw_only=True):
    """Who carries out a request, and what is known of the run."""

    name: str
    run_id: str | None
    submitted_at: datetime | None
    run_state: str | None


class ItemView(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy of a request."""

    strategy: str
    account: AccountId | None
    batch: int
    state: ItemState
    attempts: int
    started_at: datetime | None
    finished_at: datetime | None
    health: Health | None
    health_reasons: tuple[str, ...]
    metrics: dict[MetricName, MetricValue]
    enforced: str | None
    error: ItemError | None
    artifacts: tuple[Artifact, ...]


class RecheckView(msgspec.Struct, frozen=True, kw_only=True):
    """A request, its progress, and a page of its strategies."""

    request_id: str
    operation: Literal["recheck", "recheck_all"]
    state: RequestState
    reason: str
    dry_run: bool
    trace_id: str | None
    window: Window
    recalc_metrics: tuple[MetricName, ...]
    filter: Filter | None
    batch_size: int
    accepted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    runner: RunnerView
    progress: ProgressView
    items: tuple[ItemView, ...]
    page: int
    page_size: int
    total: int


class DownloadView(msgspec.Struct, frozen=True, kw_only=True):
    """Where an artifact can be downloaded without a token, and until when."""

    name: str
    media_type: str
    size: int
    sha256: str
    url: str
    expires_at: datetime


def strategy_view(strategy: Strategy) -> StrategyView:
    """A strategy as clients see it."""
    return StrategyView(
        id=strategy.strategy_id,
        account=strategy.account_id,
        owner=strategy.owner,
        tags=strategy.tags,
        capital=strategy.capital,
        thresholds=strategy.thresholds,
        health=strategy.health,
        health_reasons=strategy.health_reasons,
        last_checked_at=strategy.last_checked_at,
        last_request_id=strategy.last_request_id,
        metrics=strategy.metrics,
        created_at=strategy.created_at,
        updated_at=strategy.updated_at,
    )


def recheck_view(found: ItemPage, page: int, page_size: int) -> RecheckView:
    """A request as clients see it."""
    stored = found.stored
    request = stored.request
    return RecheckView(
        request_id=request.request_id,
        operation="recheck" if request.operation == "pdca.recheck" else "recheck_all",
        state=stored.progress.state,
        reason=request.reason,
        dry_run=request.dry_run,
        trace_id=request.trace_id,
        window=request.window,
        recalc_metrics=request.metrics,
        filter=request.filter,
        batch_size=request.batch_size,
        accepted_at=request.created_at,
        started_at=stored.started_at,
        finished_at=stored.finished_at,
        runner=_runner_view(stored),
        progress=ProgressView(
            **{name: getattr(stored.progress, name) for name in ProgressView.__struct_fields__},
        ),
        items=tuple([_item_view(item) for item in found.items]),
        page=page,
        page_size=page_size,
        total=stored.progress.total,
    )


def _runner_view(stored: StoredRequest) -> RunnerView:
    # Not the run's error: it may name hosts and users, and is in the log.
    return RunnerView(
        name=stored.request.runner,
        run_id=stored.run.run_id,
        submitted_at=stored.run.submitted_at,
        run_state=stored.run.run_state,
    )


def _item_view(item: RecheckItem) -> ItemView:
    result = item.result
    return ItemView(
        strategy=item.key.strategy_id,
        account=item.key.account_id,
        batch=item.batch,
        state=item.state,
        attempts=item.attempts,
        started_at=item.started_at,
        finished_at=item.finished_at,
        health=None if result is None else result.health,
        health_reasons=() if result is None else result.health_reasons,
        metrics={} if result is None else result.metrics,
        enforced=None if result is None else result.enforced,
        error=item.error,
        artifacts=item.artifacts,
    )
