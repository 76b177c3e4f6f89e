"""The health of a strategy, and the files of a recheck."""

import json
from decimal import Decimal
from typing import Any, cast
from xml.etree import ElementTree

import pytest

from switchyard.domain.ids import AccountId
from switchyard.domain.strategies.metrics import Minimum, judge
from switchyard.domain.strategies.registry import Health, MetricName, Threshold
from switchyard.domain.strategies.report import FillsTable, equity_chart
from switchyard.flow.pdca.recheck import LedgerFills
from switchyard.ports.books import EntryKey, StoredEntry
from tests.support.strategies import FILLS, ORDERS, fill, measured

ALL = Minimum(days=2, count=1)


def bound(degraded: str | None = None, unhealthy: str | None = None) -> Threshold:
    return Threshold(
        degraded=None if degraded is None else Decimal(degraded),
        unhealthy=None if unhealthy is None else Decimal(unhealthy),
    )


@pytest.mark.parametrize(
    ("thresholds", "health"),
    [
        ({}, "unknown"),
        ({"win_rate": bound("0.5", "0.4")}, "healthy"),  # the bound itself is still good
        ({"win_rate": bound("0.51", "0.4")}, "degraded"),
        ({"win_rate": bound(None, "0.51")}, "unhealthy"),
        ({"max_drawdown": bound("0.00228901")}, "healthy"),
        ({"max_drawdown": bound("0.002", "0.00228900")}, "unhealthy"),
        ({"win_rate": bound("0.6"), "fees": bound(None, "5")}, "unhealthy"),
    ],
)
def test_health_follows_from_the_thresholds(thresholds: dict[MetricName, Threshold], health: Health) -> None:
    _, found = measured(FILLS, ORDERS)
    assert judge(found, thresholds, ALL).health == health


def test_a_small_sample_is_not_judged_and_a_crossed_threshold_beside_it_is() -> None:
    _, found = measured(FILLS, ORDERS)
    small = judge(found, {"sharpe": bound(None, "100")}, Minimum(days=2, count=6))
    assert (small.health, small.reasons) == ("unknown", ("sharpe is not judged: 5 fills, at least 6 are needed",))
    short = judge(found, {"sharpe": bound(None, "100")}, Minimum(days=6, count=1))
    assert (short.health, "5 days" in short.reasons[0]) == ("unknown", True)
    # Six orders are enough for the reject rate; two round trips are not for the win rate.
    both = judge(found, {"reject_rate": bound(None, "0.1"), "win_rate": bound("0.9")}, Minimum(days=2, count=6))
    assert both.health == "unhealthy"
    assert both.reasons == (
        "reject_rate 0.16666667 is above 0.1 (unhealthy)",
        "win_rate is not judged: 2 round trips, at least 6 are needed",
    )


def test_gains_without_a_loss_are_above_any_lower_bound() -> None:
    _, winner = measured(FILLS[:2])
    assert judge(winner, {"profit_factor": bound("3"), "sortino": bound("3")}, ALL).health == "healthy"
    _, idle = measured(())
    assert judge(idle, {"profit_factor": bound("3")}, Minimum(days=2, count=0)).health == "unknown"


def test_the_table_of_fills_starts_no_formula_and_keeps_the_newest_within_its_size() -> None:
    table = FillsTable(100_000)
    table.add(fill(1, 0, "SELL", "1", "2", "-0.5", order='=HYPERLINK("x")', symbol="＝A"))
    head, row = table.content().decode().splitlines()
    assert head.startswith("at,account_id,order_id")
    assert row.split(",")[2] == '"\'=HYPERLINK(""x"")"'
    assert "'＝A" in row and ",-0.5," in row
    small = FillsTable(600)
    for day in range(1, 30):
        small.add(fill(day, 0, "BUY", "1", "2", order=f"o{day}"))
    content = small.content()
    assert len(content) <= 600 and b"x-o29-" in content and b"x-o1-" not in content
    assert small.listed + small.dropped == 29


def test_the_chart_is_well_formed_for_gains_losses_and_flat_lines() -> None:
    track, _ = measured(FILLS)
    days = list(track.daily)
    for daily in (list(track.daily.values()), [Decimal(0)] * 5, [Decimal(-20_000)] * 5, [Decimal("1e-8")] * 5):
        picture = equity_chart("a<b&c", days, daily, Decimal(10_000), "USD")
        root = ElementTree.fromstring(picture)
        assert root.tag.endswith("svg") and "NaN" not in picture.decode()
        assert any("a<b&c" in (text.text or "") for text in root.iter())


class _Entries:
    """The entries of a strategy as a ledger pages them."""

    def __init__(self, *entries: dict[str, object]) -> None:
        self._rows = [StoredEntry(number, json.dumps(entry), "") for number, entry in enumerate(entries, 1)]

    async def strategy_entries(
        self, _account: AccountId, _strategy: str, after: EntryKey | None, _limit: int
    ) -> list[StoredEntry]:
        start = 0 if after is None else after.number
        return self._rows[start : start + 2]


async def test_a_reversed_fill_counts_as_if_it_had_never_been() -> None:
    def entry(number: int, kind: str, **more: object) -> dict[str, object]:
        base = {
            "number": number,
            "entryId": f"e{number}",
            "type": kind,
            "accountId": "a",
            "orderId": "o",
            "seq": number,
        }
        terms = {
            "at": "2026-01-05T00:00:00Z",
            "venue": "sim",
            "symbol": "ABC",
            "side": "BUY",
            "qty": 1,
            "currency": "USD",
        }
        return {**base, **terms, **more}

    ledger = _Entries(
        entry(1, "OrderAccepted"),
        entry(2, "Fill", price=5),
        entry(3, "Fill", price=6),
        entry(4, "Fill", price=7),
        entry(5, "Reversal", reverses="e3", reasonCode="BUST"),
    )
    pages = [page async for page in LedgerFills(cast(Any, ledger), cast(Any, None)).pages(AccountId("a"), "s")]
    assert [entry.entry_id for page in pages for entry in page] == ["e2", "e4"]
