"""The stores of breaks: both keep every version, reject stale ones and page alike."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from msgspec.structs import replace

from switchyard.adapters.backoffice.postgres.breaks import PostgresBreaks
from switchyard.adapters.backoffice.sqlite.breaks import SqliteBreaks
from switchyard.domain.errors import AlreadyRunning
from switchyard.domain.ids import AccountId, VenueClientOrderId, VenueName
from switchyard.domain.reconcile.breaks import CURRENT_STATES, Break, StatementFill, break_id
from switchyard.ports.books import BreakFilter, BreakStore

NOW = datetime(2026, 1, 5, 9, tzinfo=UTC)


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BreakStore]:
    opened: SqliteBreaks | PostgresBreaks
    if request.param == "sqlite":
        opened = await SqliteBreaks.open(tmp_path / "breaks.db")
    else:
        opened = await PostgresBreaks.open(request.getfixturevalue("postgres_server").create_database())
    yield opened
    await opened.close()


def a_break(name: str, account: str | None = "demo") -> Break:
    fill = StatementFill(
        exec_id=f'e "{name}"',
        venue_client_order_id=VenueClientOrderId(name),
        venue_order_id="v",
        symbol="BTC",
        side="BUY",
        qty=Decimal("0.00000001"),
        price=Decimal("65000.5"),
        at=NOW,
    )
    return Break(
        break_id=break_id("fill", ("sim", name)),
        kind="fill",
        class_="missing_here",
        state="suspected",
        scope="fills:sim",
        subject=("sim", name),
        account_id=None if account is None else AccountId(account),
        venue=VenueName("sim"),
        amount=Decimal("0.00000001"),
        unit="BTC",
        here="nothing é",
        there="a fill",
        first_seen_at=NOW,
        last_seen_at=NOW,
        changed_at=NOW,
        fill=fill,
    )


async def test_every_version_is_kept_and_a_stale_one_is_left_out(store: BreakStore) -> None:
    first = a_break("a")
    assert await store.save([first, a_break("b")]) == 2
    seen = replace(first, last_seen_at=NOW + timedelta(minutes=1))
    opened = replace(seen, state="open", version=2, changed_at=NOW + timedelta(minutes=1))
    assert await store.save([seen]) == 1
    assert await store.save([opened]) == 1
    # A pass that began before a person's decision must not undo it.
    assert await store.save([replace(first, here="stale")]) == 0
    assert await store.save([replace(opened, state="closed", version=4)]) == 0
    # Of two people who decide at once, the second one is told.
    other = replace(opened, reason="another story", changed_at=NOW + timedelta(minutes=1, microseconds=1))
    assert await store.save([other]) == 0
    assert await store.find([first.break_id, "brk_none"]) == {first.break_id: opened}
    assert await store.history(first.break_id, 10) == [opened, first]
    assert await store.history(first.break_id, 1) == [opened]
    assert await store.counts() == {("missing_here", "open"): 1, ("missing_here", "suspected"): 1}


async def test_pages_reach_every_break_by_state_and_account(store: BreakStore) -> None:
    breaks = [a_break(f"x{number}", "demo" if number % 2 else None) for number in range(6)]
    closed = replace(breaks[1], state="closed")
    await store.save([breaks[0], closed, *breaks[2:]])
    expected = sorted([one for one in breaks if one is not breaks[1]], key=lambda one: one.break_id)
    found: list[Break] = []
    while page := await store.page(
        BreakFilter(states=CURRENT_STATES, after=found[-1].break_id if found else "", limit=2)
    ):
        found += page
    assert found == expected
    own = await store.page(BreakFilter(states=(*CURRENT_STATES, "closed"), account_id=AccountId("demo")))
    assert {one.break_id for one in own} == {breaks[1].break_id, breaks[3].break_id, breaks[5].break_id}
    assert await store.page(BreakFilter(states=("explained",))) == []


async def test_two_stores_keep_what_was_saved_and_one_file_serves_one_process(tmp_path: Path) -> None:
    store = await SqliteBreaks.open(tmp_path / "breaks.db")
    await store.save([a_break("a")])
    with pytest.raises(AlreadyRunning, match="SWITCHYARD_BACKOFFICE"):
        await SqliteBreaks.open(tmp_path / "breaks.db")
    await store.close()
    again = await SqliteBreaks.open(tmp_path / "breaks.db")
    assert await again.page(BreakFilter(states=CURRENT_STATES)) == [a_break("a")]
    await again.close()
