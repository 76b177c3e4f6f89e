"""SIGKILL while orders are filled and booked: the books are those that the venue's own log gives, to the last digit."""

import asyncio
import contextlib
import random
from collections import defaultdict
from decimal import Decimal
from itertools import count
from typing import Any

import aiohttp

from switchyard.domain.market.instruments import DEFAULT_INSTRUMENTS
from tests.support.books import KEEPS_BOOKS, read_books
from tests.support.cluster import Cluster
from tests.support.evidence import tool_settings
from tests.support.orders import until_all_final
from tests.support.polling import until
from tests.support.process import Process, run_command
from tests.support.venue_process import VenueProcess

KILLS = 3
POSTERS = 12
# Quantities that leave positions open, close them and flip them.
ORDERS: list[tuple[str, float]] = [
    ("USDJPY", 1000),
    ("USDJPY", 3000),
    ("EURUSD", 7000),
    ("BTC", 0.00000003),
    ("ETH", 0.7),
]
# A bust or a correction that comes before its execution is set aside, so these come in order.
REVISIONS = {
    "partial_fills": 2,
    "fee_basis_points": 7,
    "duplicate_reports": 0.2,
    "bust_fills": 0.2,
    "correct_fills": 0.2,
}
FAULTS = {"partial_fills": 3, "fee_basis_points": 7, "duplicate_reports": 0.2, "reordered_reports": 0.2}


class Trader:
    """Posts orders in both directions, each until it is acknowledged."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._chance = random.Random(14)
        self._numbers = count()

    async def trade(self, stop: asyncio.Event) -> None:
        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(self._post_until(stop, session) for _ in range(POSTERS)))

    async def _post_until(self, stop: asyncio.Event, session: aiohttp.ClientSession) -> None:
        while not stop.is_set():
            symbol, qty = self._chance.choice(ORDERS)
            side = self._chance.choice(["BUY", "SELL"])
            body = {"symbol": symbol, "side": side, "type": "MARKET", "qty": qty}
            headers = self._process.headers(key=f"key-{next(self._numbers)}")
            with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                async with session.post(f"{self._process.url}/orders", json=body, headers=headers) as response:
                    assert response.status in (202, 503), await response.text()
            await asyncio.sleep(0.05)  # slow enough that a worker on a busy machine keeps up


class VenueBooks:
    """Cash, fees and positions out of the venue's own fills."""

    def __init__(self, broker: VenueProcess) -> None:
        self.cash: dict[str, Decimal] = defaultdict(Decimal)
        self.fees: dict[str, Decimal] = defaultdict(Decimal)
        self.qty: dict[str, Decimal] = defaultdict(Decimal)
        orders = {line["venue_order_id"]: line["order"] for line in broker.events("order")}
        fills = {line["exec_id"]: line for line in broker.events("fill")}
        newest = {exec_id: exec_id for exec_id in fills}
        for line in broker.events("revise"):
            del fills[newest[line["ref_exec_id"]]]
            if line["exec_type"] == "CORRECT":
                newest[line["ref_exec_id"]] = line["exec_id"]
                fills[line["exec_id"]] = line
        for line in fills.values():
            order = orders[line["venue_order_id"]]
            symbol = order["symbol"]
            currency = str(DEFAULT_INSTRUMENTS[symbol].quote)
            qty, price, fee = (Decimal(str(line[name])) for name in ("qty", "price", "fee"))
            signed = qty if order["side"] == "BUY" else -qty
            self.qty[symbol] += signed
            self.cash[currency] -= signed * price + fee
            assert line["fee_currency"] == currency
            self.fees[currency] += fee

    async def until_booked(self, session: aiohttp.ClientSession, process: Process) -> dict[str, Any]:
        """Wait until the books agree, and return what they show."""
        shown: dict[str, Any] = {}

        async def agree() -> bool:
            shown["positions"] = (await read_books(session, process, "/positions?flat=true"))["positions"]
            shown["balances"] = (await read_books(session, process, "/balances"))["balances"]
            return (
                {row["symbol"]: row["qty"] for row in shown["positions"]} == self.qty
                and {row["currency"]: row["cash"] for row in shown["balances"]} == self.cash
                and {row["currency"]: row["fees"] for row in shown["balances"]} == self.fees
            )

        await until(agree, lambda: f"the venue has {vars(self)}, the books {shown}")
        return shown


async def test_books_of_a_process_that_is_killed_several_times_are_those_of_the_venues_log(
    cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    broker = await cluster.broker(faults=FAULTS).start()
    settings = broker.client_settings(**KEEPS_BOOKS)
    process = await cluster.process(name="office", **settings).start()
    trader, chance = Trader(process), random.Random(15)
    for _ in range(KILLS):
        stop = asyncio.Event()
        trading = asyncio.create_task(trader.trade(stop))
        booked = await fills(session, process)
        await until_booked(session, process, booked + 90)
        await asyncio.sleep(chance.uniform(0.0, 0.2))  # a different moment of each round
        process.kill()
        stop.set()
        await trading
        await process.start()
    await until_all_final(session, process)
    expected = VenueBooks(broker)
    assert len(expected.qty) == 4
    shown = await expected.until_booked(session, process)
    for row in shown["balances"]:
        assert row["cash"] + row["trading"] + row["fees"] == 0
        results = [each for each in shown["positions"] if each["currency"] == row["currency"]]
        assert sum(each["costBasis"] - each["realisedPnl"] for each in results) == row["trading"]
    assert process.stop() == 0
    done = await asyncio.to_thread(run_command, "backoffice", "rebuild", "--verify", **tool_settings(process))
    assert (done.returncode, "no difference" in done.stdout) == (0, True), done.stderr


async def fills(session: aiohttp.ClientSession, process: Process) -> int:
    """The number of the newest entry of a fill."""
    newest = (await read_books(session, process, "/ledger?type=Fill&limit=1"))["entries"]
    return int(newest[0]["number"]) if newest else 0


async def until_booked(session: aiohttp.ClientSession, process: Process, number: int) -> None:
    async def is_booked() -> bool:
        return await fills(session, process) >= number

    await until(is_booked, lambda: process.log)


async def test_of_two_back_offices_one_keeps_the_books_and_the_other_takes_over_when_it_is_killed(
    cluster: Cluster, database_url: str, session: aiohttp.ClientSession
) -> None:
    broker = await cluster.broker(faults=REVISIONS).start()
    settings = broker.client_settings(SWITCHYARD_DATABASE_URL=database_url, SWITCHYARD_LOG_LEVEL="info")
    gateway, worker = [cluster.process(role, role, **settings) for role in ("gateway", "worker")]
    offices = [cluster.process("backoffice", name, **settings) for name in ("office", "standby")]
    for office in offices:
        office.port = office.backoffice_port  # where its health is
    await asyncio.gather(*(process.start() for process in (gateway, worker)))
    for office in offices:
        await office.start()
    first, standby = offices
    stop = asyncio.Event()
    trading = asyncio.create_task(Trader(gateway).trade(stop))
    await until_booked(session, first, 40)
    assert "backoffice_turn_taken" not in standby.log
    assert await fills(session, standby) >= 40  # it shows what the other has booked
    first.kill()
    booked = await fills(session, standby)
    await until_booked(session, standby, booked + 40)
    stop.set()
    await trading
    # Another one comes back, all events are read again from zero while both run, and nothing is booked twice.
    await first.start()
    turns = turns_taken(offices)
    done = await asyncio.to_thread(run_command, "backoffice", "reset", **tool_settings(standby))
    assert (done.returncode, done.stdout) == (0, "journal: is read again from its start\n"), done.stderr
    # The reset takes the books from the office that reads: until one of the two has the turn again, a rebuild gets it.
    await until(lambda: turns_taken(offices) > turns, lambda: first.log + standby.log)
    await until_all_final(session, gateway)
    expected = VenueBooks(broker)
    assert {line["exec_type"] for line in broker.events("revise")} == {"CORRECT", "CANCEL"}
    await expected.until_booked(session, first)
    assert "backoffice_halted" not in first.log + standby.log
    rejected = await asyncio.to_thread(run_command, "backoffice", "rebuild", **tool_settings(standby))
    assert (rejected.returncode, "another process keeps the books" in rejected.stderr) == (4, True), rejected.stderr
    assert [office.stop() for office in offices] == [0, 0]
    verified = await asyncio.to_thread(run_command, "backoffice", "rebuild", "--verify", **tool_settings(standby))
    assert (verified.returncode, "no difference" in verified.stdout) == (0, True), verified.stderr
    rebuilt = await asyncio.to_thread(run_command, "backoffice", "rebuild", **tool_settings(standby))
    assert (rebuilt.returncode, "backoffice_replaced_1" in rebuilt.stdout) == (0, True), rebuilt.stderr
    hash_of = [text.partition("hash ")[2][:64] for text in (verified.stdout, rebuilt.stdout)]
    assert hash_of[0] == hash_of[1]


def turns_taken(offices: list[Process]) -> int:
    """How often one of the offices has begun to keep the books."""
    return sum(office.log.count("backoffice_turn_taken") for office in offices)
