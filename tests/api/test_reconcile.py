"""Seeded differences of every class: a pass reports exactly those, and each lives as its break."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import apsw

from switchyard.domain.reconcile.breaks import CURRENT_STATES, Break
from switchyard.flow.reconcile.desk import ReconcileDesk
from switchyard.ports.breaks import BreakFilter
from tests.support.books import KEEPS_BOOKS, RunningBackOffice, running_backoffice_api
from tests.support.gateway import RunningGateway, running_gateway

# Nothing but the test makes a pass or looks for missed reports.
SETTINGS = {
    **KEEPS_BOOKS,
    "SWITCHYARD_BACKOFFICE_PORT": "0",
    "SWITCHYARD_RECONCILE_SEC": "86400",
    "SWITCHYARD_RECONCILE_QUIET_SEC": "0",
    "VENUE_SWEEP_SEC_SIM": "86400",
}


class Site:
    """A gateway with books on a paper exchange, and the files that a test changes behind its back."""

    def __init__(self, folder: Path, gateway: RunningGateway, office: RunningBackOffice) -> None:
        self.gateway = gateway
        self.office = office
        self._data = folder / "var"

    @property
    def desk(self) -> ReconcileDesk:
        assert self.gateway.engine.backoffice is not None
        return self.gateway.engine.backoffice.reconcile

    async def filled(self, account: str = "demo", **changes: Any) -> str:
        order_id = str((await self.gateway.place(account=account, **changes)).json["orderId"])
        await self.gateway.until_status(order_id, "FILLED", account=account)
        return order_id

    async def resting(self, **changes: Any) -> str:
        order_id = str((await self.gateway.place(type="LIMIT", price=1, **changes)).json["orderId"])
        await self.gateway.until_status(order_id, "WORKING")
        return order_id

    async def compare(self, *, full: bool = False) -> dict[str, Break]:
        """Make a pass and return the breaks that are there, by kind and class."""
        reconciler = self.desk.reconciler
        assert reconciler is not None
        await reconciler.run_once(full=full)
        found = await reconciler.breaks.page(BreakFilter(states=CURRENT_STATES))
        return {one.break_id: one for one in found}

    def change(self, file: str, *statements: str) -> None:
        """Run statements on a database file; the triggers that protect the ledger's entries are dropped first."""
        with closing(apsw.Connection(str(self._data / file))) as connection:
            connection.set_busy_timeout(10_000)
            connection.execute("PRAGMA journal_mode = WAL")
            for name in ("entries_remain", "legs_remain") if file == "backoffice.db" else ():
                connection.execute(f"DROP TRIGGER IF EXISTS {name}")
            for statement in statements:
                connection.execute(statement)

    def value(self, file: str, query: str) -> Any:
        with closing(apsw.Connection(str(self._data / file))) as connection:
            return connection.execute(query).get


@asynccontextmanager
async def running_site(folder: Path, **settings: str) -> AsyncIterator[Site]:
    async with (
        running_gateway(folder, **{**SETTINGS, **settings}) as gateway,
        running_backoffice_api(gateway) as office,
    ):
        yield Site(folder, gateway, office)


def summary(breaks: dict[str, Break]) -> list[tuple[str, str, Decimal, str]]:
    return sorted((one.kind, one.class_, one.amount, one.unit) for one in breaks.values())


PAPER = "venues/sim.db"


def report_of(order_id: str) -> str:
    """The number of the first fill's report of an order, as a query."""
    client_id = f"(SELECT venue_client_order_id FROM gateway.orders WHERE order_id = '{order_id}')"
    return f"(SELECT min(number) FROM reports WHERE body ->> 'venueClientOrderId' = {client_id} AND body ->> 'lastQty')"


async def test_every_seeded_difference_is_one_break_of_its_class_and_nothing_else(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        lost = await site.filled(qty=10)
        revised = await site.filled(qty=20)
        twice = await site.filled(qty=30)
        wrong = await site.filled(qty=40)
        foreign = await site.filled(qty=50)
        open_there, open_here, coming = [await site.resting(qty=qty) for qty in (60, 70, 80)]
        await site.filled(symbol="EURUSD", qty=5)
        await site.filled(symbol="GBPUSD", qty=6)
        await site.filled("other", qty=7)
        dropped = await site.filled("other", qty=8)
        await site.filled("other", qty=9)
        assert await site.compare() == {}
        attach = f"ATTACH '{tmp_path / 'var' / 'switchyard.db'}' AS gateway"
        new_number = "(SELECT max(number) + 1 FROM {})"
        copied_order = (
            "INSERT INTO orders (number, client_id, open, body) SELECT {number}, '{name}', {open}, "
            "json_set(body, '$.client_id', '{name}', '$.number', {number}) FROM orders WHERE client_id = {like}"
        )
        like = "(SELECT venue_client_order_id FROM gateway.orders WHERE order_id = '{}')"
        site.change(
            PAPER,
            attach,
            # A fill of an order that we never placed.
            copied_order.format(number=new_number.format("orders"), name="foreign", open=0, like=like.format(foreign)),
            f"INSERT INTO reports SELECT {new_number.format('reports')}, json_set(body, '$.venueClientOrderId', "
            f"'foreign', '$.execId', 'foreign-1') FROM reports WHERE number = {report_of(foreign)}",
            # The venue lists one fill twice, one with another price, and one not at all.
            f"INSERT INTO reports SELECT {new_number.format('reports')}, body FROM reports WHERE number = "
            f"{report_of(twice)}",
            f"UPDATE reports SET body = json_set(body, '$.lastPrice', '1') WHERE number = {report_of(revised)}",
            f"DELETE FROM reports WHERE number = {report_of(lost)}",
            # It has filled a part of an order of which no report has come.
            f"INSERT INTO reports SELECT {new_number.format('reports')}, json_set(body, '$.venueClientOrderId', "
            f"{like.format(coming)}, '$.execId', 'coming-1', '$.lastQty', '3') FROM reports WHERE number = "
            f"{report_of(foreign)}",
            "UPDATE orders SET body = json_set(body, '$.filled_qty', '3', '$.status', 'PARTIALLY_FILLED') "
            f"WHERE client_id = {like.format(coming)}",
            # It has one order open that we do not know, and not one that we have open.
            copied_order.format(
                number=new_number.format("orders"), name="unknown", open=1, like=like.format(open_there)
            ),
            f"UPDATE orders SET open = 0 WHERE client_id = {like.format(open_here)}",
        )
        entry = f"(SELECT number FROM entries WHERE order_id = '{dropped}' AND type = 'Fill')"
        site.change(
            "backoffice.db",
            "UPDATE positions SET body = json_set(body, '$.qty', 1) WHERE symbol = 'EURUSD'",
            "DELETE FROM positions WHERE symbol = 'GBPUSD'",
            "INSERT INTO positions SELECT account_id, 'XRP', currency, json_set(body, '$.symbol', 'XRP') "
            "FROM positions WHERE symbol = 'EURUSD'",
            "DELETE FROM balances WHERE account_id = 'demo' AND account = 'position' AND unit = 'GBPUSD'",
            # A fill of another account disappears from the books.
            f"DELETE FROM legs WHERE account_id = 'other' AND number = {entry}",
            f"DELETE FROM entries WHERE account_id = 'other' AND number = {entry}",
        )
        site.change(
            "switchyard.db",
            f"UPDATE orders SET filled_qty = '41' WHERE order_id = '{wrong}'",
            "INSERT INTO positions SELECT account_id, 'AAPL', '99', cost_basis, realised_pnl, trade_result, "
            "consecutive_losses, high_water_mark, updated_at, version, currency, multiplier, day, day_pnl "
            "FROM positions WHERE account_id = 'demo' AND symbol = 'EURUSD'",
        )
        text = site.value("backoffice.db", f"SELECT text FROM entries WHERE order_id = '{revised}' AND type = 'Fill'")
        price = json.loads(text, parse_float=Decimal, parse_int=Decimal)["price"]
        seeded = sorted(
            [
                ("fill", "missing_here", Decimal(50), "USDJPY"),
                ("fill_repeated", "duplicate", Decimal(30), "USDJPY"),
                ("fill", "amount", (1 - price) * 20, "JPY"),
                ("fill", "missing_there", Decimal(-10), "USDJPY"),
                ("fill", "timing", Decimal(3), "USDJPY"),
                ("fill", "missing_here", Decimal(8), "USDJPY"),
                ("open_order", "missing_here", Decimal(60), "USDJPY"),
                ("open_order", "missing_there", Decimal(-70), "USDJPY"),
                ("ledger_position", "amount", Decimal(4), "EURUSD"),
                ("ledger_position", "missing_here", Decimal(6), "GBPUSD"),
                ("ledger_position", "missing_there", Decimal(-1), "XRP"),
                ("ledger_balance", "missing_here", Decimal(6), "GBPUSD"),
                ("order", "missing_here", Decimal(1), "USDJPY"),
                ("position", "missing_here", Decimal(99), "AAPL"),
            ]
        )
        suspected = await site.compare(full=True)
        assert summary(suspected) == seeded
        assert {one.state for one in suspected.values()} == {"suspected"}
        opened = await site.compare()
        assert summary(opened) == seeded
        assert opened.keys() == suspected.keys()
        assert {one.state for one in opened.values()} == {"open"}
    # A new process finds the same breaks under the same ids; it has read the report that was on its way.
    async with running_site(tmp_path) as site:
        again = await site.compare()
        assert {key: one.first_seen_at for key, one in again.items()} == {
            key: one.first_seen_at for key, one in suspected.items() if one.class_ != "timing"
        }
