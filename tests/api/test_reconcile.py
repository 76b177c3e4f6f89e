"""Seeded differences of every class: a pass reports exactly those, and each lives as its break."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

from switchyard.bootstrap import accept_restored, adopt_epoch
from switchyard.domain.ids import OrderId
from switchyard.domain.reconcile.breaks import CURRENT_STATES, Break
from switchyard.flow.reconcile import matching, service
from switchyard.flow.reconcile.service import ReconcileService
from switchyard.ports.books import BreakFilter
from tests.support.books import InnerBackOffice, inner_backoffice
from tests.support.gateway import RunningGateway, running_gateway

# Nothing but the test makes a pass or looks for missed reports.
SETTINGS = {
    "SWITCHYARD_BACKOFFICE_PORT": "0",
    "SWITCHYARD_RECONCILE_SEC": "86400",
    "SWITCHYARD_RECONCILE_QUIET_SEC": "0",
    "VENUE_SWEEP_SEC_SIM": "86400",
}


PAPER = "venues/sim.db"


class Site:
    """A gateway with books on a paper exchange, and the tables that a test changes behind its back."""

    def __init__(self, folder: Path, gateway: RunningGateway, office: InnerBackOffice) -> None:
        self.gateway = gateway
        self.office = office
        self._data = folder / "var"
        self._url = gateway.engine.settings.database_url

    @property
    def service(self) -> ReconcileService:
        return self.office.parts.reconcile

    async def filled(self, account: str = "demo", **changes: Any) -> str:
        order_id = str((await self.gateway.place(account=account, **changes)).json["orderId"])
        await self.gateway.until_status(order_id, "FILLED", account=account)
        return order_id

    async def resting(self, **changes: Any) -> str:
        order_id = str((await self.gateway.place(type="LIMIT", price=1, **changes)).json["orderId"])
        await self.gateway.until_status(order_id, "WORKING")
        return order_id

    async def client_id(self, order_id: str) -> str:
        """The id under which the venue has the order."""
        return (await self.gateway.database.journal.load([OrderId(order_id)]))[
            OrderId(order_id)
        ].order.venue_client_order_id

    async def compare(self, *, full: bool = False) -> dict[str, Break]:
        """Make a pass and return the breaks that are there."""
        reconciler = self.service.reconciler
        assert reconciler is not None
        await reconciler.run_once(full=full)
        found = await reconciler.breaks.page(BreakFilter(states=CURRENT_STATES))
        return {one.break_id: one for one in found}

    def at_venue(self, *statements: str) -> None:
        """Change the paper exchange's file."""
        self._change(PAPER, *statements)

    async def in_books(self, *statements: str) -> None:
        """Change the tables of the books, entries included."""
        if self._url is None:
            guards = [f"DROP TRIGGER IF EXISTS {table}_remain" for table in ("entries", "legs")]
            self._change("backoffice.db", *guards, *statements)
        else:
            guards = [f"ALTER TABLE {table} DISABLE TRIGGER USER" for table in ("entries", "legs")]
            await self._run("SET search_path TO backoffice", *guards, *statements)

    async def at_gateway(self, *statements: str) -> None:
        """Change the gateway's tables."""
        if self._url is None:
            self._change("switchyard.db", *statements)
        else:
            await self._run(*statements)

    async def _run(self, *statements: str) -> None:
        connection = await asyncpg.connect(self._url)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    def with_member(self, name: str, value: int | str) -> str:
        """An expression: the column `body` with another member."""
        if self._url is None:
            return f"json_set(body, '$.{name}', {value!r})"
        return f"jsonb_set(body::jsonb, '{{{name}}}', '{json.dumps(value)}')::text"

    def _change(self, file: str, *statements: str) -> None:
        with closing(apsw.Connection(str(self._data / file))) as connection:
            connection.set_busy_timeout(10_000)
            for statement in statements:
                connection.execute(statement)


@asynccontextmanager
async def running_site(folder: Path, **settings: str) -> AsyncIterator[Site]:
    async with (
        running_gateway(folder, **{**SETTINGS, **settings}) as gateway,
        inner_backoffice(gateway) as office,
    ):
        yield Site(folder, gateway, office)


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest) -> dict[str, str]:
    """The settings of the database; the books are in the same one."""
    if request.param == "sqlite":
        return {}
    return {"SWITCHYARD_DATABASE_URL": request.getfixturevalue("postgres_server").create_database()}


def summary(breaks: dict[str, Break]) -> list[tuple[str, str, Decimal, str]]:
    return sorted((one.kind, one.class_, one.amount, one.unit) for one in breaks.values())


def report_of(client_id: str) -> str:
    """The number of the first fill's report of an order, as a query of the paper exchange's file."""
    return (
        f"(SELECT min(number) FROM reports WHERE body ->> 'venueClientOrderId' = '{client_id}' AND body ->> 'lastQty')"
    )


def copied_report(client_id: str, *changes: str) -> str:
    """A statement: one more report like the first fill of an order, with other members."""
    body = f"json_set(body, {', '.join(changes)})" if changes else "body"
    return (
        f"INSERT INTO reports SELECT (SELECT max(number) + 1 FROM reports), {body} FROM reports "
        f"WHERE number = {report_of(client_id)}"
    )


def copied_order(client_id: str, name: str, *, is_open: bool) -> str:
    """A statement: one more order like another one."""
    number = "(SELECT max(number) + 1 FROM orders)"
    return (
        f"INSERT INTO orders (number, client_id, open, body) SELECT {number}, '{name}', {int(is_open)}, "
        f"json_set(body, '$.client_id', '{name}', '$.number', {number}) FROM orders WHERE client_id = '{client_id}'"
    )


async def test_every_seeded_difference_is_one_break_of_its_class_and_nothing_else(
    tmp_path: Path, engine: dict[str, str]
) -> None:
    async with running_site(tmp_path, **engine) as site:
        lost, revised, twice, foreign = [
            await site.client_id(await site.filled(qty=qty)) for qty in (10_000, 20_000, 30_000, 50_000)
        ]
        wrong = await site.filled(qty=40_000)
        unknown, gone, coming = [await site.client_id(await site.resting(qty=qty)) for qty in (60_000, 70_000, 80_000)]
        await site.filled(symbol="EURUSD", qty=5_000)
        await site.filled(symbol="GBPUSD", qty=6_000)
        await site.filled("other", qty=7_000)
        dropped = await site.filled("other", qty=8_000)
        await site.filled("other", qty=9_000, side="SELL")
        await site.filled("third", qty=11_000)
        assert await site.compare() == {}
        site.at_venue(
            # A fill of an order that we never placed.
            copied_order(foreign, "foreign", is_open=False),
            copied_report(foreign, "'$.venueClientOrderId', 'foreign', '$.execId', 'foreign-1'"),
            # The venue lists one fill twice, one with another price, and one not at all.
            copied_report(twice),
            f"UPDATE reports SET body = json_set(body, '$.lastPrice', '1') WHERE number = {report_of(revised)}",
            f"DELETE FROM reports WHERE number = {report_of(lost)}",
            # It has filled a part of an order of which no report has come.
            copied_report(foreign, f"'$.venueClientOrderId', '{coming}', '$.execId', 'coming-1', '$.lastQty', '3'"),
            "UPDATE orders SET body = json_set(body, '$.filled_qty', '3', '$.status', 'PARTIALLY_FILLED') "
            f"WHERE client_id = '{coming}'",
            # It has one order open that we do not know, and not one that we have open.
            copied_order(unknown, "unknown", is_open=True),
            f"UPDATE orders SET open = 0 WHERE client_id = '{gone}'",
        )
        entry = f"(SELECT number FROM entries WHERE order_id = '{dropped}' AND type = 'Fill')"
        whole = "account_id = 'demo' AND strategy = '*'"
        columns = "account_id, strategy, symbol, currency, is_flat, body"
        await site.in_books(
            "DELETE FROM balances WHERE account_id = 'demo' AND account = 'position' AND unit = 'GBPUSD'",
            f"DELETE FROM positions WHERE symbol = 'GBPUSD' AND {whole}",
            f"UPDATE positions SET body = {site.with_member('qty', 1)} WHERE symbol = 'EURUSD' AND {whole}",
            f"INSERT INTO positions ({columns}) SELECT account_id, strategy, 'XRP', currency, is_flat, "
            f"{site.with_member('symbol', 'XRP')} FROM positions WHERE symbol = 'EURUSD' AND {whole}",
            # A fill of another account disappears from the books.
            f"DELETE FROM legs WHERE account_id = 'other' AND number = {entry}",
            f"DELETE FROM entries WHERE account_id = 'other' AND number = {entry}",
        )
        await site.at_gateway(
            f"UPDATE orders SET filled_qty = '40001' WHERE order_id = '{wrong}'",
            "UPDATE positions SET qty = '110000' WHERE account_id = 'third' AND symbol = 'USDJPY'",
        )
        suspected = await site.compare(full=True)
        [price] = [one for one in suspected.values() if (one.kind, one.class_) == ("fill", "amount")]
        assert (price.unit, price.there.split(" at ")[1]) == ("JPY", "1")
        seeded = sorted(
            [
                ("fill", "missing_here", Decimal(50_000), "USDJPY"),
                ("fill_repeated", "duplicate", Decimal(30_000), "USDJPY"),
                ("fill", "amount", (1 - Decimal(price.here.split(" at ")[1])) * 20_000, "JPY"),
                ("fill", "missing_there", Decimal(-10_000), "USDJPY"),
                ("fill", "timing", Decimal(3), "USDJPY"),
                ("fill", "missing_here", Decimal(8_000), "USDJPY"),
                ("open_order", "missing_here", Decimal(60_000), "USDJPY"),
                ("open_order", "missing_there", Decimal(-70_000), "USDJPY"),
                ("ledger_position", "amount", Decimal(4_999), "EURUSD"),
                ("ledger_position", "missing_here", Decimal(6_000), "GBPUSD"),
                ("ledger_position", "missing_there", Decimal(-1), "XRP"),
                ("ledger_balance", "missing_here", Decimal(6_000), "GBPUSD"),
                ("order", "missing_here", Decimal(1), "USDJPY"),
                ("position", "amount", Decimal(99_000), "USDJPY"),
            ]
        )
        assert summary(suspected) == seeded
        assert {one.state for one in suspected.values()} == {"suspected"}
        opened = await site.compare()
        assert summary(opened) == seeded
        assert opened.keys() == suspected.keys()
        assert {one.state for one in opened.values()} == {"open"}
        assert site.service.reconciler is not None and site.service.reconciler.last is not None
        assert {one.scope for one in site.service.reconciler.last.not_compared} == {"ledger:other"}
    # A new process finds the same breaks under the same ids; it has read the report that was on its way.
    async with running_site(tmp_path, **engine) as site:
        again = await site.compare()
        assert {key: one.first_seen_at for key, one in again.items()} == {
            key: one.first_seen_at for key, one in suspected.items() if one.class_ != "timing"
        }


async def test_an_account_sees_its_books_valued_and_its_own_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "PAGE", 1)  # the gateway's positions are read in pages
    async with running_site(tmp_path) as site:
        office = site.office
        first = await office.get("/reconcile")
        assert (first.json["balances"], first.json["positions"], first.json["breaks"]) == ({}, {}, [])
        await site.filled(qty=1000)
        await site.filled("other", symbol="BTC", qty=1)
        assert await site.compare() == {}
        shown = (await office.get("/reconcile")).json
        assert (shown["accountId"], shown["quoteCcy"], shown["unvalued"]) == ("demo", "JPY", [])
        assert (shown["truncated"], shown["notCompared"]) == (False, [])
        [(symbol, position)] = shown["positions"].items()
        assert (symbol, position["qty"], position["gatewayQty"], position["currency"]) == ("USDJPY", 1000, 1000, "JPY")
        assert 100_000 < position["valueInQuoteCcy"] < 200_000
        balance = shown["balances"]["JPY"]
        assert balance["cashInQuoteCcy"] == balance["cash"] == -position["costBasis"]
        # By the pair of the two currencies, in the one direction or the other; else null, and named.
        in_dollars = (await office.get("/reconcile?quoteCcy=USD&accountId=demo&limit=5")).json
        assert in_dollars["positions"]["USDJPY"]["valueInQuoteCcy"] == 1000
        unknown = (await office.get("/reconcile?quoteCcy=CHF", "other")).json
        assert (unknown["positions"]["BTC"]["valueInQuoteCcy"] is None) == ("BTC" in unknown["unvalued"])
        nothing = (await office.get("/reconcile?quoteCcy=NOK")).json
        assert (nothing["unvalued"], nothing["balances"]["JPY"]["cashInQuoteCcy"]) == (["JPY", "USDJPY"], None)
        assert (await office.get("/reconcile?accountId=other")).status == 404
        assert (await office.get("/reconcile", account=None)).status == 401
        for query in ("quoteCcy=yen", "limit=0", "limit=1001", "colour=red"):
            assert (await office.get(f"/reconcile?{query}")).status == 422, query
        await site.in_books("UPDATE balances SET amount = '1' WHERE account_id = 'demo' AND account = 'cash'")
        [found] = (await site.compare()).values()
        [own] = (await office.get("/reconcile")).json["breaks"]
        assert (own["breakId"], own["class"], own["state"]) == (found.break_id, "amount", "suspected")
        assert (await office.get("/reconcile", "other")).json["breaks"] == []
        for symbol, qty in (("ETH", 2), ("EURUSD", 2_000)):
            await site.filled("other", symbol=symbol, qty=qty)
        await site.compare()
        shown = (await office.get("/reconcile", "other")).json["positions"]
        assert {symbol: row["gatewayQty"] for symbol, row in shown.items()} == {"BTC": 1, "ETH": 2, "EURUSD": 2_000}


async def test_operators_list_explain_and_follow_breaks(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        await site.filled()
        assert await site.compare() == {}  # and so the books have read the fill
        await site.in_books("UPDATE balances SET amount = '1' WHERE account = 'cash'")
        assert (await site.office.get("/admin/breaks")).status == 403
        for limit, status in ((1000, 200), (1001, 422)):
            assert (await site.office.operate("GET", f"/admin/breaks?limit={limit}")).status == status
        run = await site.office.operate("POST", "/admin/reconcile?full=true")
        assert (run.status, run.json["differences"], run.json["accounts"]) == (200, 1, 1)
        [one] = (await site.office.operate("GET", "/admin/breaks?state=suspected&accountId=demo")).json["breaks"]
        path = f"/admin/breaks/{one['breakId']}"
        reason = {"reason": "the auditor knows"}
        early = await site.office.operate("POST", f"{path}/explain", reason)
        assert (early.status, early.json["reason"]) == (409, "BREAK_STATE")
        await site.office.operate("POST", "/admin/reconcile")
        assert (await site.office.operate("POST", f"{path}/explain", {"reason": " "})).status == 422
        told = (await site.office.operate("POST", f"{path}/explain", reason)).json
        assert [version["state"] for version in told["history"]] == ["explained", "open", "suspected"]
        assert (told["break"]["by"], told["break"]["reason"]) == ("ann", "the auditor knows")
        await site.office.operate("POST", "/admin/reconcile")
        assert (await site.office.operate("GET", path)).json["break"]["state"] == "explained"
        # Another amount is another story; a repaired table closes it, and the history stays.
        await site.in_books("UPDATE balances SET amount = '2' WHERE account = 'cash'")
        await site.office.operate("POST", "/admin/reconcile")
        opened = (await site.office.operate("GET", path)).json["break"]
        assert (opened["state"], opened["by"], opened["firstSeenAt"]) == ("open", None, one["firstSeenAt"])
        await site.in_books(f"UPDATE balances SET amount = '{one['there']}' WHERE account = 'cash'")
        await site.office.operate("POST", "/admin/reconcile")
        assert (await site.office.operate("GET", "/admin/breaks")).json["breaks"] == []
        closed = (await site.office.operate("GET", path)).json
        assert [version["state"] for version in closed["history"]] == [
            "closed",
            "open",
            "explained",
            "open",
            "suspected",
        ]
        assert (await site.office.operate("GET", "/admin/breaks/brk_unknown")).status == 404
        assert (await site.office.operate("POST", f"{path}/adopt", reason)).status == 409
        assert (await site.office.operate("GET", "/admin/breaks?state=gone")).status == 422


async def test_a_fill_that_a_person_reversed_is_a_break_as_long_as_the_venue_has_it(
    tmp_path: Path, engine: dict[str, str]
) -> None:
    async with running_site(tmp_path, **engine) as site:
        kept, lost = [await site.filled(qty=qty) for qty in (10_000, 20_000)]
        assert await site.compare() == {}
        site.at_venue(f"DELETE FROM reports WHERE number = {report_of(await site.client_id(lost))}")
        assert summary(await site.compare(full=True)) == [("fill", "missing_there", Decimal(-20_000), "USDJPY")]
        for order in (kept, lost):
            [fill] = (await site.office.get(f"/ledger?orderId={order}&type=Fill")).json["entries"]
            done = await site.office.enter(key=order, type="Reversal", reverses=fill["entryId"])
            assert done.status == 201
        seeded = [("fill", "missing_here", Decimal(10_000), "USDJPY")]
        assert summary(await site.compare()) == seeded
        [one] = (await site.compare(full=True)).values()
        assert (summary({one.break_id: one}), one.state, one.order_id) == (seeded, "open", kept)
        assert one.here.startswith("reversed by ann")
        assert (await site.office.operate("POST", f"/admin/breaks/{one.break_id}/adopt", {"reason": "x"})).status == 409


async def test_a_foreign_fill_is_adopted_once_whoever_asks(tmp_path: Path, engine: dict[str, str]) -> None:
    async with running_site(tmp_path, **engine) as site:
        known = await site.client_id(await site.filled(qty=50_000))
        await site.filled("other", qty=1_000)
        site.at_venue(
            copied_order(known, "foreign", is_open=False),
            copied_report(known, "'$.venueClientOrderId', 'foreign', '$.execId', 'foreign-1'"),
        )
        await site.compare()
        [one] = (await site.compare()).values()
        path = f"/admin/breaks/{one.break_id}/adopt"
        bodies = [{"reason": "by telephone", "accountId": account} for account in ("demo", "other", "demo", "other")]
        answers = await asyncio.gather(*(site.office.operate("POST", path, body) for body in bodies))
        [winner] = {body["accountId"] for body, answer in zip(bodies, answers, strict=True) if answer.status == 200}
        assert {answer.status for answer in answers} == {200, 409}
        # A repeat books nothing again; another account is rejected.
        for account in ("demo", "other"):
            repeat = await site.office.operate("POST", path, {"reason": "again", "accountId": account})
            assert repeat.status == (200 if account == winner else 409)
        fills = [
            entry
            for account in ("demo", "other")
            for entry in (await site.office.get("/ledger?type=Fill", account)).json["entries"]
            if entry.get("strategy") == "external"
        ]
        assert [(entry["accountId"], entry["qty"]) for entry in fills] == [(winner, 50_000)]
        assert await site.compare() == {}


async def test_long_histories_of_several_venues_are_matched_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_site(tmp_path, SOR_VENUES="sim,simb", SOR_SYMBOL_ROUTES="USDJPY=sim,EURUSD=simb") as site:
        for number in range(20):
            await site.filled(symbol=("USDJPY", "EURUSD")[number % 2], account=("demo", "other")[number % 3 == 0])
        monkeypatch.setattr(matching, "PAGE", 2)
        monkeypatch.setattr(matching, "UNMATCHED_MAX", 9)
        monkeypatch.setattr(matching, "ENTRIES_MAX", 3)
        monkeypatch.setattr(matching, "ORDERS_MAX", 2)
        assert await site.compare(full=True) == {}
        assert site.service.reconciler is not None
        assert site.service.reconciler.last is not None
        assert site.service.reconciler.last.not_compared == ()


async def test_a_posting_that_a_restored_journal_lost_is_one_break(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        await site.filled(qty=10_000)
        settings = site.gateway.engine.settings
    journal = settings.data_dir / "switchyard.db"
    shutil.copy(journal, tmp_path / "backup.db")
    async with running_site(tmp_path) as site:
        await site.filled(qty=20_000)
        assert await site.compare() == {}
    shutil.copy(tmp_path / "backup.db", journal)  # its WAL is empty after a stop
    await accept_restored(settings)
    await adopt_epoch(settings, "ann", "the disk of the gateway was replaced")
    async with running_site(tmp_path) as site:
        # The venue has the fill as well, so that neither its statement nor the order is another difference.
        assert summary(await site.compare()) == [("orphan", "missing_there", Decimal(-20_000), "USDJPY")]
        await site.filled(qty=30_000)
        [one] = (await site.compare()).values()
        assert (one.state, one.account_id) == ("open", "demo")
        [fill] = [
            entry
            for entry in (await site.office.get("/ledger?type=Fill")).json["entries"]
            if entry["entryId"] == one.subject[1]
        ]
        await site.office.enter(type="Reversal", reverses=fill["entryId"])
        # The orphan is gone; that the venue has the fill is said instead.
        assert [each.kind for each in (await site.compare()).values()] == ["fill"]
