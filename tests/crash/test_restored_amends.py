"""A restore loses amends: their orders go on as they are at the venue, and every fill counts once."""

import asyncio
import shutil
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from tests.support.amending import RESTING, amend, amending_settings, broker_orders, until_equal, until_settled
from tests.support.backups import PostgresBackup, SqliteBackup, declare_restored
from tests.support.cluster import Cluster
from tests.support.evidence import check_audit, tool_settings
from tests.support.hop_proxy import hop_proxy
from tests.support.orders import all_orders, cancel, get, place, until_all
from tests.support.polling import until
from tests.support.postgres import PostgresServer
from tests.support.process import Process, run_command
from tests.support.venue_process import VenueProcess

# Far above the market: an order with this price is filled at once.
MARKETABLE = 1000
ORDERS = (
    "amended",
    "amended_twice",
    "amended_and_cancelled",
    "amended_and_filled",
    "amended_then_cancelled",
    "amended_then_again",
    "cancelled",
    "untouched",
)


class Site:
    """A process with its venue, and the orders that its backup has."""

    def __init__(self, cluster: Cluster, mode: str, dedupe: str, **settings: str) -> None:
        self.broker: VenueProcess = cluster.broker("--amend", mode, dedupe=dedupe)
        self.process: Process = cluster.process(**amending_settings(self.broker, mode, **settings))
        self.orders: dict[str, str] = {}

    async def place_and_back_up(self, session: aiohttp.ClientSession, take: Callable[[], None]) -> None:
        """Place the orders and make a backup in which the venue has all of them."""
        await self.broker.start()
        await self.process.start()
        for name in ORDERS:
            self.orders[name] = await place(session, self.process, name, body=RESTING, qty=10_000)
        await until_all(session, self.process, lambda order: order["status"] == "WORKING")
        assert await asyncio.to_thread(self.process.stop) == 0
        take()
        await self.process.start()

    async def make_history(self, session: aiohttp.ClientSession) -> None:
        """Amend, cancel and fill orders after the backup."""
        for name in ORDERS:
            if name.startswith("amended"):
                await self.amended(session, name, "first", qty=5000, price=90)
        await self.amended(session, "amended_twice", "second", qty=15000, price=80)
        await self.amended(session, "amended_and_filled", "second", qty=7000, price=MARKETABLE)
        for name in ("amended_and_cancelled", "cancelled"):
            await cancel(session, self.process, self.orders[name])
        await until_equal(session, self.process, self.broker)
        assert await asyncio.to_thread(self.process.stop) == 0

    async def amended(self, session: aiohttp.ClientSession, name: str, key: str, **body: Any) -> None:
        answers = await until_settled(session, self.process, [(self.orders[name], f"{name}_{key}", body)])
        assert [answer["status"] for answer in answers.values()] == ["AMENDED"]

    async def fill_at_broker(self, session: aiohttp.ClientSession, name: str) -> None:
        """Let the market reach the order's present price at the broker."""
        url = f"{self.broker.url}/orders/{self.present_id(name)}"
        async with session.patch(url, json={"limit_price": MARKETABLE}) as response:
            assert response.status == 200, await response.text()

    def present_id(self, name: str) -> str:
        """The client order id that the broker has the order under now."""
        events = self.broker.events()
        [newest] = [line for line in events if line.get("trace_id") == self.orders[name]]
        for line in events:
            if line["event"] == "amend" and line.get("replaces") == newest["venue_order_id"]:
                newest = line
        return str(newest["client_order_id"])

    async def shown(self, session: aiohttp.ClientSession) -> dict[str, tuple[Any, ...]]:
        """Status, quantity and filled quantity of each order, by its name."""
        found = {order["orderId"]: order for order in await all_orders(session, self.process)}
        named = {name: found[order_id] for name, order_id in self.orders.items()}
        return {name: (order["status"], order["qty"], order["filledQty"]) for name, order in named.items()}


async def lose_and_check(site: Site, session: aiohttp.ClientSession, restore: Callable[[], None]) -> None:
    await site.make_history(session)
    await asyncio.to_thread(restore)
    await site.process.start()

    await until_equal(session, site.process, site.broker)
    assert await site.shown(session) == {
        "amended": ("WORKING", 5000, 0),
        "amended_twice": ("WORKING", 15000, 0),
        "amended_and_cancelled": ("CANCELED", 5000, 0),
        "amended_and_filled": ("FILLED", 7000, 7000),
        "amended_then_cancelled": ("WORKING", 5000, 0),
        "amended_then_again": ("WORKING", 5000, 0),
        "cancelled": ("CANCELED", 10000, 0),
        "untouched": ("WORKING", 10000, 0),
    }

    # A repeated key finds its amend, also with another body, and the next amend refers to it.
    order_id, key = site.orders["amended_then_again"], "amended_then_again_first"
    status, answer, replayed = await amend(session, site.process, order_id, key, qty=5000, price=90)
    assert (status, answer["status"], replayed) == (202, "AMENDED", True)
    status, answer, _ = await amend(session, site.process, order_id, key, qty=6000, price=90)
    assert (status, answer["reason"]) == (409, "IDEMPOTENCY_CONFLICT")
    await site.amended(session, "amended_then_again", "second", qty=8000, price=MARKETABLE)
    await cancel(session, site.process, site.orders["amended_then_cancelled"])
    await until_equal(session, site.process, site.broker)
    for name in ("amended", "amended_twice"):
        await site.fill_at_broker(session, name)
    await until_all(session, site.process, lambda order: order["status"] != "CANCEL_REQUESTED")

    async def is_filled() -> bool:
        shown = await site.shown(session)
        return [shown[name][0] for name in ("amended", "amended_twice")] == ["FILLED", "FILLED"]

    await until(is_filled, lambda: site.process.log)
    assert (await site.shown(session))["amended"] == ("FILLED", 5000, 5000)
    assert (await site.shown(session))["amended_twice"] == ("FILLED", 15000, 15000)
    [position] = (await get(session, site.process, "/positions"))["positions"]
    filled = sum(line["qty"] for line in site.broker.events("fill"))
    assert position["qty"] == filled == 5000 + 15000 + 7000 + 8000
    health = await get(session, site.process, "/health")
    assert health["status"] == "ok", health
    for alarm in (
        "order_overfilled",
        "quantity_gap",
        "order_quantity_differs",
        "execution_id_reused",
        "audit_file_cut",
    ):
        assert alarm not in site.process.log, site.process.log
    site.broker.check_nothing_twice()
    await check_audit(site.process, site.process.folder)


@pytest.mark.parametrize(("mode", "dedupe"), [("cancel_replace", "forever"), ("in_place", "open_only")])
async def test_orders_follow_the_amends_that_a_restored_sqlite_database_has_lost(
    cluster: Cluster, session: aiohttp.ClientSession, mode: str, dedupe: str
) -> None:
    site = Site(cluster, mode, dedupe)
    backup = SqliteBackup(cluster.folder)
    await site.place_and_back_up(session, backup.take)

    def restore() -> None:
        backup.restore()
        declare_restored(site.process)

    await lose_and_check(site, session, restore)


async def test_orders_follow_the_amends_that_a_restored_postgresql_database_has_lost(
    cluster: Cluster, session: aiohttp.ClientSession, postgres_server: PostgresServer
) -> None:
    url = postgres_server.create_database()
    site = Site(cluster, "cancel_replace", "open_only", SWITCHYARD_DATABASE_URL=url)
    backup = PostgresBackup(postgres_server, url)
    await site.place_and_back_up(session, backup.take)

    def restore() -> None:
        backup.restore()
        declare_restored(site.process)

    await lose_and_check(site, session, restore)


async def test_orders_follow_the_amends_that_a_database_rebuilt_from_an_audit_file_lacks(
    cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    site = Site(cluster, "cancel_replace", "open_only")
    live, audit = cluster.folder / "var", cluster.folder / "audit.log"

    def take() -> None:
        shutil.copy(live / "gateway/audit.log", audit)

    def rebuild() -> None:
        live.rename(cluster.folder / "replaced")
        replayed = run_command("replay", str(audit), **tool_settings(site.process))
        assert replayed.returncode == 0, replayed.stderr

    await site.place_and_back_up(session, take)
    await lose_and_check(site, session, rebuild)


async def test_cancels_of_repeated_orders_and_amends_reach_what_the_lost_history_has_made_of_them(
    cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    site, backup = Site(cluster, "cancel_replace", "forever"), SqliteBackup(cluster.folder)
    await site.place_and_back_up(session, backup.take)
    await site.amended(session, "amended", "first", qty=5000, price=90)
    site.orders["late"] = late = await place(session, site.process, "late", body=RESTING, qty=10_000)
    await until_all(session, site.process, lambda order: order["status"] == "WORKING")
    await site.amended(session, "late", "first", qty=4000, price=85)
    assert await asyncio.to_thread(site.process.stop) == 0
    await asyncio.to_thread(backup.restore)
    declare_restored(site.process)
    await site.process.start()

    # While the venue is closed: nothing that may be there ends here.
    await amend(session, site.process, site.orders["amended"], "amended_first", qty=5000, price=90)
    site.orders["late"] = await place(session, site.process, "late", body=RESTING, qty=10_000)
    for name in ("amended", "late"):
        await cancel(session, site.process, site.orders[name])
    shown = await site.shown(session)
    assert (shown["amended"][0], shown["late"][0]) == ("CANCEL_REQUESTED", "UNKNOWN")

    async def is_cancelled() -> bool:
        shown = await site.shown(session)
        return (shown["amended"], shown["late"]) == (("CANCELED", 5000, 0), ("CANCELED", 4000, 0))

    await until(is_cancelled, lambda: site.process.log)
    at_broker = broker_orders(site.broker)
    assert [at_broker[order_id]["status"] for order_id in (site.orders["amended"], late)] == ["CANCELED", "CANCELED"]
    site.broker.check_nothing_twice()


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
async def test_a_repeated_amend_does_not_undo_a_later_one_if_the_broker_answers_with_the_order_as_it_was(
    cluster: Cluster, session: aiohttp.ClientSession, engine: str, request: pytest.FixtureRequest
) -> None:
    """The restored database lacks both amends; the client repeats the first one's key, and the broker its answer."""
    broker = cluster.broker("--amend", "in_place", dedupe="open_only")
    async with hop_proxy(broker.port) as broker_with_memory:
        broker_with_memory.remember(b"PATCH /orders/")
        settings = amending_settings(broker, "in_place", VENUE_URL_SIM=broker_with_memory.url)
        backup: SqliteBackup | PostgresBackup = SqliteBackup(cluster.folder)
        if engine == "postgresql":
            server: PostgresServer = request.getfixturevalue("postgres_server")
            url = settings["SWITCHYARD_DATABASE_URL"] = server.create_database()
            backup = PostgresBackup(server, url)
        process = cluster.process(**settings)
        await broker.start()
        await process.start()
        order_id = await place(session, process, "amended", body=RESTING, qty=10_000)
        await until_all(session, process, lambda order: order["status"] == "WORKING")
        assert await asyncio.to_thread(process.stop) == 0
        await asyncio.to_thread(backup.take)
        await process.start()
        for key, amounts in (("first", {"qty": 5000, "price": 90}), ("second", {"qty": 15_000, "price": 80})):
            answers = await until_settled(session, process, [(order_id, key, amounts)])
            assert answers[key]["status"] == "AMENDED"
        assert await asyncio.to_thread(process.stop) == 0
        await asyncio.to_thread(backup.restore)
        declare_restored(process)
        await process.start()

        await until_equal(session, process, broker)
        answers = await until_settled(session, process, [(order_id, "first", {"qty": 5000, "price": 90})])
        assert answers["first"]["status"] == "REFUSED", process.log
        [order] = await until_equal(session, process, broker)
        assert (order["qty"], order["price"]) == (15_000, 80)
        answers = await until_settled(session, process, [(order_id, "third", {"qty": 9000, "price": MARKETABLE})])
        assert answers["third"]["status"] == "AMENDED"
        await until_all(session, process, lambda order: order["status"] == "FILLED")
        [position] = (await get(session, process, "/positions"))["positions"]
        assert position["qty"] == sum(line["qty"] for line in broker.events("fill")) == 9000
        assert (await get(session, process, "/health"))["status"] == "ok"
        broker.check_nothing_twice()
        await check_audit(process, process.folder)
