"""The bodies of rechecks and strategies: every bound at its edge, and when two requests are the same."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from switchyard.domain.errors import InvalidField
from switchyard.domain.strategies.registry import checked_strategy
from switchyard.domain.strategies.requests import (
    Progress,
    checked_recheck,
    checked_recheck_all,
    request_digest,
    window_at,
)

NOW = datetime(2025, 8, 24, 3, 34, 56, tzinfo=UTC)


def one(**changes: Any) -> dict[str, Any]:
    body = {"strategies": ["strat.meanrev.m1"], "window": {"lookback_days": 14}, "reason": "manual", **changes}
    return {name: value for name, value in body.items() if value is not ...}


def many(**changes: Any) -> dict[str, Any]:
    return {"window": {"lookback_days": 7}, "reason": "daily-bulk", **changes}


def between(first: str, last: str) -> dict[str, str]:
    return {"from": first, "to": last}


@pytest.mark.parametrize(
    "changes",
    [
        {"strategies": [f"s{number}" for number in range(50)]},
        {"strategies": ["a" * 64, "._-0"]},
        {"window": {"lookback_days": 1}},
        {"window": {"lookback_days": 180}},
        {"window": {"lookback_days": Decimal("14.0")}},
        {"window": between("2025-01-01T00:00:00Z", "2025-01-01T00:00:00Z")},
        {"window": between("2025-01-01T00:00:00Z", "2025-06-30T00:00:00Z")},
        {"window": between("2025-01-01T09:00:00+09:00", "2025-01-01T00:00:00Z")},
        {"reason": "r"},
        {"reason": "月次の再チェック"},
        {"reason": "か\u3099" * 64},  # 64 characters when they are composed
        {"reason": "x" * 64},
        {"trace_id": "t" * 128},
        {"trace_id": None},
        {"params": {"recalc_metrics": []}},
    ],
)
def test_the_edges_of_a_recheck_are_valid(changes: dict[str, Any]) -> None:
    assert checked_recheck(one(**changes)).dry_run is False


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"strategies": ...}, "strategies"),
        ({"strategies": []}, "strategies"),
        ({"strategies": [f"s{number}" for number in range(51)]}, "strategies"),
        ({"strategies": ["Strat"]}, "strategies"),
        ({"strategies": ["a b"]}, "strategies"),
        ({"strategies": ["a\n"]}, "strategies"),
        ({"strategies": [""]}, "strategies"),
        ({"strategies": ["a" * 65]}, "strategies"),
        ({"strategies": ["a", "a"]}, "strategies"),
        ({"strategies": "a"}, "strategies"),
        ({"window": ...}, "window"),
        ({"window": {}}, "window"),
        ({"window": None}, "window"),
        ({"window": {"lookback_days": 0}}, "window.lookback_days"),
        ({"window": {"lookback_days": 181}}, "window.lookback_days"),
        ({"window": {"lookback_days": True}}, "window.lookback_days"),
        ({"window": {"lookback_days": "7"}}, "window.lookback_days"),
        ({"window": {"lookback_days": Decimal("7.5")}}, "window.lookback_days"),
        ({"window": {"lookback_days": None}}, "window.lookback_days"),
        ({"window": {"lookback_days": 7, **between("2025-01-01T00:00:00Z", "2025-01-02T00:00:00Z")}}, "window"),
        ({"window": {"from": "2025-01-01T00:00:00Z"}}, "window"),
        ({"window": {"lookback_days": 7, "to": "2025-01-01T00:00:00Z"}}, "window"),
        ({"window": between("2025-01-02T00:00:00Z", "2025-01-01T00:00:00Z")}, "window"),
        ({"window": between("2025-01-01T00:00:00Z", "2025-06-30T00:00:01Z")}, "window"),
        ({"window": between("2025-01-01T00:00:00", "2025-01-02T00:00:00Z")}, "window.from"),
        ({"window": between("0001-01-01T00:00:00+14:00", "2025-01-02T00:00:00Z")}, "window.from"),
        ({"window": between("2025-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00")}, "window.to"),
        ({"window": between("yesterday", "2025-01-02T00:00:00Z")}, "window.from"),
        ({"window": {"lookback_days": 7, "days": 7}}, "window.days"),
        ({"reason": ...}, "reason"),
        ({"reason": ""}, "reason"),
        ({"reason": "x" * 65}, "reason"),
        ({"reason": "a\nb"}, "reason"),
        ({"reason": " a"}, "reason"),
        ({"trace_id": ""}, "trace_id"),
        ({"trace_id": "t" * 129}, "trace_id"),
        ({"dry_run": "true"}, "dry_run"),
        ({"params": {"recalc_metrics": ["alpha"]}}, "params.recalc_metrics"),
        ({"params": {"recalc_metrics": ["sharpe", "sharpe"]}}, "params.recalc_metrics"),
        ({"params": None}, "params"),
        ({"batch_size": 5}, "batch_size"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_recheck_beyond_a_bound_names_its_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidField) as raised:
        checked_recheck(one(**changes))
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 101}, "batch_size"),
        ({"filter": {"tags_any": ["a,b"]}}, "filter.tags_any"),
        ({"filter": {"tags_any": [f"t{number}" for number in range(17)]}}, "filter.tags_any"),
        ({"filter": {"health": ["sick"]}}, "filter.health"),
        ({"filter": {"health": ["unknown", "unknown"]}}, "filter.health"),
        ({"filter": {"owner": "ops"}}, "filter.owner"),
        ({"strategies": ["a"]}, "strategies"),
    ],
)
def test_a_bulk_recheck_beyond_a_bound_names_its_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidField) as raised:
        checked_recheck_all(many(**changes))
    assert raised.value.field == field


def test_requests_that_mean_the_same_have_the_same_digest() -> None:
    plain = request_digest(checked_recheck(one()))
    for same in (
        one(trace_id="other"),
        one(dry_run=False),
        one(params={}),
        one(params={"recalc_metrics": []}),
        dict(reversed(one().items())),
        one(window={"lookback_days": Decimal("14.00")}),
    ):
        assert request_digest(checked_recheck(same)) == plain
    for other in (
        one(dry_run=True),
        one(reason="Manual"),
        one(strategies=["strat.meanrev.m2"]),
        one(window={"lookback_days": 15}),
        one(params={"recalc_metrics": ["sharpe"]}),
        one(window=between("2025-01-01T00:00:00Z", "2025-01-02T00:00:00Z")),
    ):
        assert request_digest(checked_recheck(other)) != plain
    order = request_digest(checked_recheck(one(strategies=["a", "b"])))
    assert order != request_digest(checked_recheck(one(strategies=["b", "a"])))
    composed, decomposed = (request_digest(checked_recheck(one(reason=text))) for text in ("が", "か\u3099"))
    assert composed == decomposed
    tokyo = one(window=between("2025-01-01T09:00:00+09:00", "2025-01-02T00:00:00Z"))
    utc = one(window=between("2025-01-01T00:00:00Z", "2025-01-02T00:00:00Z"))
    assert request_digest(checked_recheck(tokyo)) == request_digest(checked_recheck(utc))
    bulk = request_digest(checked_recheck_all(many()))
    assert bulk == request_digest(checked_recheck_all(many(batch_size=25, filter={"tags_any": [], "health": []})))
    assert bulk != request_digest(checked_recheck_all(many(batch_size=24)))


def test_a_lookback_covers_whole_days_up_to_now() -> None:
    window = window_at(checked_recheck(one(window={"lookback_days": 1})).window, NOW)
    assert (window.from_, window.to) == (datetime(2025, 8, 24, tzinfo=UTC), NOW)
    window = window_at(checked_recheck(one()).window, NOW)
    assert (window.from_, window.to, window.lookback_days) == (datetime(2025, 8, 11, tzinfo=UTC), NOW, 14)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"owner": ""}, "owner"),
        ({"owner": "x" * 65}, "owner"),
        ({"tags": ["a,b"]}, "tags"),
        ({"tags": ["Daily"]}, "tags"),
        ({"tags": ["a", "a"]}, "tags"),
        ({"tags": [f"t{number}" for number in range(17)]}, "tags"),
        ({"capital": {"amount": 0, "currency": "JPY"}}, "capital.amount"),
        ({"capital": {"amount": "5", "currency": "JPY"}}, "capital.amount"),
        ({"capital": {"amount": True, "currency": "JPY"}}, "capital.amount"),
        ({"capital": {"amount": Decimal("0.000000001"), "currency": "JPY"}}, "capital.amount"),
        ({"capital": {"amount": 5, "currency": "yen"}}, "capital.currency"),
        ({"capital": {"amount": 5}}, "capital.currency"),
        ({"thresholds": {"alpha": {"degraded": 1}}}, "thresholds"),
        ({"thresholds": {"sharpe": {}}}, "thresholds.sharpe"),
        ({"thresholds": {"sharpe": {"degraded": "1"}}}, "thresholds.sharpe.degraded"),
        ({"thresholds": {"sharpe": {"degraded": 0.5, "unhealthy": Decimal(1)}}}, "thresholds.sharpe.degraded"),
        ({"thresholds": {"sharpe": {"degraded": Decimal("0.5"), "unhealthy": 1}}}, "thresholds.sharpe"),
        (
            {"thresholds": {"max_drawdown": {"degraded": Decimal("0.2"), "unhealthy": Decimal("0.1")}}},
            "thresholds.max_drawdown",
        ),
        ({"thresholds": {"sharpe": {"degraded": Decimal("1e20")}}}, "thresholds.sharpe"),
        ({"health": "healthy"}, "health"),
    ],
)
def test_a_strategy_beyond_a_bound_names_its_field(body: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidField) as raised:
        checked_strategy(body)
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("counts", "state"),
    [
        ((0, 0, 0, 0), "succeeded"),
        ((2, 0, 0, 0), "queued"),
        ((1, 1, 0, 0), "running"),
        ((1, 0, 1, 0), "running"),
        ((1, 0, 0, 1), "running"),
        ((0, 1, 1, 1), "running"),
        ((0, 0, 2, 0), "succeeded"),
        ((0, 0, 0, 2), "failed"),
        ((0, 0, 1, 1), "partial"),
    ],
)
def test_the_state_of_a_request_follows_from_its_items(counts: tuple[int, int, int, int], state: str) -> None:
    queued, running, succeeded, failed = counts
    progress = Progress(total=sum(counts), queued=queued, running=running, succeeded=succeeded, failed=failed)
    assert progress.state == state
