"""The back office's API, its commands and its start, as a user meets them."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import apsw
import pytest

from switchyard.bootstrap import verify_books
from switchyard.domain.errors import AlreadyRunning
from switchyard.entrypoints.http.backoffice import BackOfficeRoutes, ReconcileRoutes
from switchyard.entrypoints.http.reference.page import reference_page
from switchyard.entrypoints.http.transport.auth import TokenVerifier
from switchyard.ports.books import LedgerUnavailable, Posted
from tests.support.books import KEEPS_BOOKS, InnerBackOffice, RunningBackOffice, inner_backoffice
from tests.support.contract import Contract
from tests.support.gateway import RunningGateway, running_gateway
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.process import SECRET, run_command


@asynccontextmanager
async def trading(folder: Path, **settings: str) -> AsyncIterator[tuple[RunningGateway, InnerBackOffice]]:
    """A gateway that keeps the books, with the back office's API."""
    settings = {"SWITCHYARD_BACKOFFICE_PORT": "0", **settings}
    async with running_gateway(folder, **settings) as gateway, inner_backoffice(gateway) as office:
        yield gateway, office


async def filled(gateway: RunningGateway, office: RunningBackOffice, account: str = "demo", **changes: Any) -> str:
    """Place an order, wait until it is filled and booked, and return its id."""
    order_id = str((await gateway.place(account=account, **changes)).json["orderId"])
    await gateway.until_status(order_id, "FILLED", account=account)

    async def is_booked() -> bool:
        path = f"/ledger?orderId={order_id}&type=Fill"
        return bool((await office.get(path, account)).json["entries"])

    await until(is_booked)
    return order_id


async def until_read(gateway: RunningGateway, office: RunningBackOffice) -> None:
    """Wait until the books have read the whole journal."""

    async def is_read() -> bool:
        return bool((await office.get("/stats")).json["lastKafkaOffset"] == await gateway.journal_seq())

    await until(is_read)


def ignore(_done: int, _total: int) -> None:
    """Shows no progress."""


async def all_entries(office: RunningBackOffice, query: str, account: str = "demo") -> list[Any]:
    """The entries of all pages, in the order of the pages."""
    entries: list[Any] = []
    cursor = ""
    while True:
        page = (await office.get(f"/ledger?{query}{cursor}", account)).json
        entries += page["entries"]
        if page["nextCursor"] is None:
            return entries
        cursor = f"&cursor={page['nextCursor']}"


async def test_the_books_show_positions_balances_and_every_entry_of_the_tokens_account_only(tmp_path: Path) -> None:
    async with trading(tmp_path, EXCHANGE_SIM_PARTIAL_STEPS_SIM="4") as (gateway, office):
        first = await filled(gateway, office)
        await filled(gateway, office, side="SELL", qty=3000)
        await filled(gateway, office, symbol="EURUSD", account="other")
        await until_read(gateway, office)
        shown = await office.get("/positions")
        [position] = shown.json["positions"]
        assert shown.json == (await gateway.get("/positions")).json | {"positions": [position]}
        same = ("symbol", "currency", "qty", "averagePrice", "costBasis", "realisedPnl")
        [at_gateway] = (await gateway.get("/positions")).json["positions"]
        assert {name: position[name] for name in same} == {name: at_gateway[name] for name in same}
        assert (position["symbol"], position["currency"], position["qty"]) == ("USDJPY", "JPY", -2000)
        [balance] = (await office.get("/balances")).json["balances"]
        assert balance["cash"] == -balance["trading"]
        assert balance["cash"] == pytest.approx(position["realisedPnl"] - position["costBasis"])
        entries = (await office.get("/ledger?limit=1000")).json["entries"]
        assert [entry["type"] for entry in entries].count("Fill") == 8
        assert {entry["accountId"] for entry in entries} == {"demo"}
        # Paging reaches every entry, backwards and forwards, with every filter.
        assert sorted(await all_entries(office, "limit=3"), key=lambda entry: entry["number"]) == entries
        assert await all_entries(office, "limit=3&since=0") == entries
        fills = [entry for entry in entries if entry["type"] == "Fill"]
        assert await all_entries(office, "limit=2&since=0&type=Fill") == fills
        assert await all_entries(office, f"limit=1&since=0&orderId={first}") == [
            entry for entry in entries if entry["orderId"] == first
        ]
        at = fills[2]["at"]
        assert await all_entries(office, f"since={at}") == [entry for entry in entries if entry["at"] >= at]
        assert await all_entries(office, f"after={at}") == [entry for entry in entries if entry["at"] > at]
        stats = (await office.get("/stats")).json
        assert (stats["bus"], stats["lastKafkaOffset"]) == ("journal", await gateway.journal_seq())
        assert stats["processed"] == stats["lastKafkaOffset"]
        # Another account's books look like books that do not exist.
        foreign = await office.get(f"/ledger?orderId={first}", "other")
        assert foreign.body == (await office.get("/ledger?orderId=ord_unknown", "other")).body
        for path in ("/positions", "/balances", "/ledger"):
            assert (await office.get(f"{path}?accountId=other")).status == 404
            assert (await office.get(f"{path}?accountId=demo")).status == 200
            assert (await office.get(path, account=None)).status == 401
        assert (await office.get("/stats", account=None)).status == 401
        assert (await office.get("/health", account=None)).json == {"status": "ok"}
        for query in (
            "type=Bust",
            "type=fill",
            "limit=0",
            "limit=1001",
            "since=yesterday",
            "cursor=7",
            "colour=red",
            "after=9999-12-31T23:59:59.999999Z",
        ):
            assert (await office.get(f"/ledger?{query}")).status == 422, query


@pytest.mark.parametrize(
    "path", ["/positions?", "/balances?", "/ledger?", "/pnl?", "/pnl?by=strategy&", "/statement?date=2026-01-05&"]
)
async def test_a_cursor_that_no_page_gave_is_named(tmp_path: Path, path: str) -> None:
    async with trading(tmp_path) as (_, office):
        for cursor in ("garbage", "JPY", "7", "%00", "after:", "after:%00", "before:JPY", "brk_x"):
            answer = await office.get(f"{path}cursor={cursor}")
            assert (answer.status, answer.json.get("field")) == (422, "cursor"), cursor
        answer = await office.operate("GET", "/admin/breaks?cursor=garbage")
        assert (answer.status, answer.json["field"]) == (422, "cursor")


async def test_a_method_that_a_path_does_not_have_is_405_with_those_that_it_has(tmp_path: Path) -> None:
    async with trading(tmp_path) as (_, office), aiohttp.ClientSession() as session:
        for path, allow in (("/positions", "GET, HEAD"), ("/admin/ledger", "POST"), ("/health", "GET, HEAD")):
            async with session.delete(office.url + path) as response:
                assert (response.status, response.headers["Allow"]) == (405, allow)


async def test_the_books_of_one_process_say_that_they_read_the_journal_though_it_publishes_to_kafka(
    tmp_path: Path,
) -> None:
    kafka = {"KAFKA_ENABLE": "1", "KAFKA_BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port()}", "KAFKA_LOG_LEVEL": "0"}
    async with trading(tmp_path, **kafka) as (gateway, office):
        await filled(gateway, office)
        await until_read(gateway, office)
        stats = (await office.get("/stats")).json
        assert (stats["bus"], stats["lastKafkaOffset"]) == ("journal", await gateway.journal_seq())


async def test_books_that_cannot_be_written_say_so_until_they_have_caught_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with trading(tmp_path) as (gateway, office):
        yesterday = (datetime.now(UTC).date() - timedelta(days=1)).isoformat()

        async def fail(*_: object) -> Posted:
            raise LedgerUnavailable("no space left")

        monkeypatch.setattr(office.parts.ledger, "post", fail)
        await gateway.place()

        async def shows(status: str) -> bool:
            return bool((await office.get("/health", account=None)).json["status"] == status)

        await until(lambda: shows("degraded"))
        assert (await office.get("/health", account=None)).json["books"] == "NOT_BOOKED"
        assert (await office.operate("GET", "/health")).json["books"] == "no space left"
        assert (await office.get(f"/statement?date={yesterday}")).json["final"] is False
        monkeypatch.undo()
        await until(lambda: shows("ok"))
        await until_read(gateway, office)
        assert (await office.get(f"/statement?date={yesterday}")).json["final"] is True


async def test_pages_of_positions_and_balances_reach_every_row(tmp_path: Path) -> None:
    async with trading(tmp_path) as (gateway, office):
        for symbol in ("USDJPY", "EURUSD", "BTC", "EURJPY"):
            await filled(gateway, office, symbol=symbol, qty=1000)
        for path, name, key, expected in (
            ("/positions", "positions", "symbol", ["BTC", "EURJPY", "EURUSD", "USDJPY"]),
            ("/balances", "balances", "currency", ["JPY", "USD"]),
        ):
            found, cursor = [], ""
            while True:
                page = (await office.get(f"{path}?limit=1{cursor}")).json
                found += [row[key] for row in page[name]]
                if page["nextCursor"] is None:
                    break
                cursor = f"&cursor={page['nextCursor']}"
            assert found == expected


async def test_the_served_routes_are_those_of_the_contract_and_of_the_reference_page(tmp_path: Path) -> None:
    async with trading(tmp_path) as (gateway, office):
        tokens = TokenVerifier(SECRET, clock=gateway.engine.wall_clock)
        books = office.parts
        routes = [*BackOfficeRoutes(books, tokens, None).routes, *ReconcileRoutes(books.reconcile, tokens).routes]
        served = {
            (method, route.path.replace("{break_id}", "{breakId}"))
            for route in routes
            for method in (route.methods or {"GET"}) - {"HEAD"}
        }
        shared = {("GET", path) for path in ("/health", "/health/live", "/health/ready", "/metrics")}
        assert served == Contract().operations(of_backoffice=True) | shared
        shown = reference_page().decode()
        for _, path in Contract().operations(of_backoffice=True) - Contract().operations(of_backoffice=False):
            path = path.replace("{breakId}", "brk_6c98a94efaf92140cdbdf05a")
            assert f'"$BACKOFFICE{path}"' in shown.replace("&quot;", '"').replace("&#34;", '"')
        # A web page whose name resolves to this machine must not read the books.
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{office.url}/positions", headers={"Host": "evil.example"}) as response,
        ):
            assert response.status == 421


async def test_books_that_stopped_say_so_and_orders_go_on(tmp_path: Path) -> None:
    async with trading(tmp_path) as (gateway, office):
        await filled(gateway, office)
    connection = apsw.Connection(str(tmp_path / "var" / "backoffice.db"))
    connection.execute("UPDATE sources SET position = json_set(position, '$.hash', 'x')")
    connection.close()
    async with trading(tmp_path) as (gateway, office):
        health = await office.get("/health", account=None)
        assert (health.status, health.json) == (503, {"status": "halted", "reason": "BOOKS_HALTED"})
        assert "another history" in (await office.operate("GET", "/health")).json["reason"]
        order_id = (await gateway.place()).json["orderId"]
        await gateway.until_status(order_id, "FILLED")
        assert len((await office.get("/positions")).json["positions"]) == 1
        metrics = (await office.get("/metrics", account=None)).body.decode()
        assert "backoffice_halted 1.0" in metrics


async def test_a_rebuild_finds_a_changed_file_and_replaces_it(tmp_path: Path) -> None:
    async with trading(tmp_path) as (gateway, office):
        settings = gateway.engine.settings
        for _ in range(3):
            await filled(gateway, office)
        with pytest.raises(AlreadyRunning):
            await verify_books(settings, ignore)
    verified = await verify_books(settings, ignore)
    assert (verified.entries, verified.differences) == (6, 0)
    books = tmp_path / "var" / "backoffice.db"
    connection = apsw.Connection(str(books))
    connection.execute("UPDATE balances SET amount = '1' WHERE account = 'cash'")
    connection.close()
    environment = {"SWITCHYARD_DATA_DIR": str(settings.data_dir), "SWITCHYARD_STATE_DIR": str(settings.state_dir)}
    checked = await asyncio.to_thread(run_command, "backoffice", "rebuild", "--verify", **environment)
    assert checked.returncode == 1
    assert "balance ('demo', 'cash', 'JPY')" in checked.stderr
    assert "6 entries" in checked.stdout
    assert "1 differences" in checked.stdout
    rebuilt = await asyncio.to_thread(run_command, "backoffice", "rebuild", "--json", **environment)
    assert json.loads(rebuilt.stdout) == {
        "entries": 6,
        "seq": verified.seq,
        "hash": verified.hash,
        "carried": 0,
        "replaced": f"{books}.replaced-1",
    }
    assert await verify_books(settings, ignore) == verified
    assert {path.name for path in books.parent.glob("backoffice*")} == {
        "backoffice.db",
        "backoffice.db.lock",
        "backoffice.db.replaced-1",
    }


async def test_a_port_in_use_is_named_before_any_order_is_sent(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        settings = {"SWITCHYARD_DATA_DIR": str(tmp_path / "var"), "SWITCHYARD_PORT": "0", **KEEPS_BOOKS}
        done = await asyncio.to_thread(run_command, "up", SWITCHYARD_BACKOFFICE_PORT=port, **settings)
    assert done.returncode == 4
    assert "SWITCHYARD_BACKOFFICE_PORT" in done.stderr
    assert "SWITCHYARD_BACKOFFICE=false" in done.stderr
    assert not (tmp_path / "var" / "backoffice.db").exists()
