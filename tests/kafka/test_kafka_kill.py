"""Gateway, worker, broker, Kafka and back office are killed in turn: the books are those of the venue's own log."""

import asyncio
import contextlib
import random
from collections import defaultdict
from decimal import Decimal
from functools import partial
from itertools import count, islice
from typing import Any

import aiohttp
import pytest

from switchyard.domain.market.instruments import DEFAULT_INSTRUMENTS
from tests.support.books import read_books
from tests.support.cluster import Cluster
from tests.support.contract import decoded, problems
from tests.support.contract_files import EVENT
from tests.support.evidence import tool_settings
from tests.support.kafka import Kafka, bus_settings, stored_messages
from tests.support.polling import until
from tests.support.postgres import PostgresServer
from tests.support.process import Process, run_within
from tests.support.relay import first_occurrences, header
from tests.support.upgraded import upgraded_database
from tests.support.venue_process import VenueProcess

ACCOUNTS = [f"desk-{number}" for number in range(5)]
# Limits far on the other side of the market, so that every order is filled in the end, whoever is away meanwhile.
ORDERS: list[tuple[str, str, float, float]] = [
    ("USDJPY", "BUY", 3000, 1000),
    ("USDJPY", "SELL", 2000, 1),
    ("EURUSD", "BUY", 7000, 100),
    ("BTC", "SELL", 0.03, 1),
    ("ETH", "BUY", 0.7, 1_000_000),
]
FAULTS = {"partial_fills": 3, "fee_basis_points": 7, "duplicate_reports": 0.1, "reordered_reports": 0.1}
POSTERS = 24
# A message is validated in about a millisecond.
VALIDATED_MAX = 2_000


class Traders:
    """Post orders, each until it is acknowledged."""

    def __init__(self, gateway: Process) -> None:
        self._gateway = gateway
        self._numbers = count()
        self._headers = {account: gateway.headers(account)["Authorization"] for account in ACCOUNTS}
        self.account_of: dict[str, str] = {}

    async def trade(self, orders: int) -> None:
        """Return when so many more orders are acknowledged."""
        numbers = list(islice(self._numbers, orders))
        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(self._post_all(session, numbers) for _ in range(POSTERS)))

    async def _post_all(self, session: aiohttp.ClientSession, numbers: list[int]) -> None:
        while numbers:
            number = numbers.pop()
            chance = random.Random(number)
            account = chance.choice(ACCOUNTS)
            symbol, side, qty, price = chance.choice(ORDERS)
            body = {"symbol": symbol, "side": side, "type": "LIMIT", "qty": qty, "price": price, "timeInForce": "GTC"}
            headers = {"Authorization": self._headers[account], "Idempotency-Key": f"key-{number}"}
            await until(partial(self._post, session, body, headers, account), seconds_max=300, pause_seconds=0.1)

    async def _post(
        self, session: aiohttp.ClientSession, body: dict[str, Any], headers: dict[str, str], account: str
    ) -> bool:
        with contextlib.suppress(aiohttp.ClientError, ConnectionError):
            async with session.post(f"{self._gateway.url}/orders", json=body, headers=headers) as response:
                if response.status == 503:
                    return False
                assert response.status == 202, await response.text()
                self.account_of[(await response.json())["orderId"]] = account
                return True
        return False


class VenueBooks:
    """Cash, fees and positions of each account out of the venue's own fills."""

    def __init__(self, broker: VenueProcess, account_of: dict[str, str]) -> None:
        self.cash: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
        self.fees: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
        self.qty: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
        lines = broker.events()
        orders = {line["venue_order_id"]: line for line in lines if line["event"] == "order"}
        left = {key: Decimal(str(line["order"]["qty"])) for key, line in orders.items()}
        for line in lines:
            if line["event"] != "fill":
                continue
            placed = orders[line["venue_order_id"]]
            account, symbol = account_of[placed["trace_id"]], placed["order"]["symbol"]
            currency = str(DEFAULT_INSTRUMENTS[symbol].quote)
            qty, price, fee = (Decimal(str(line[name])) for name in ("qty", "price", "fee"))
            signed = qty if placed["order"]["side"] == "BUY" else -qty
            left[line["venue_order_id"]] -= qty
            self.qty[account, symbol] += signed
            self.cash[account, currency] -= signed * price + fee
            self.fees[account, currency] += fee
        self.filled = sum(not rest for rest in left.values())


async def shown_books(session: aiohttp.ClientSession, office: Process) -> dict[str, dict[tuple[str, str], Decimal]]:
    """The same figures as the back office serves them."""
    shown: dict[str, dict[tuple[str, str], Decimal]] = {"qty": {}, "cash": {}, "fees": {}}
    for account in ACCOUNTS:
        for row in (await read_books(session, office, "/positions?flat=true", account))["positions"]:
            shown["qty"][account, row["symbol"]] = row["qty"]
        for row in (await read_books(session, office, "/balances", account))["balances"]:
            assert row["cash"] + row["trading"] + row["fees"] == 0
            shown["cash"][account, row["currency"]] = row["cash"]
            shown["fees"][account, row["currency"]] = row["fees"]
    return shown


@pytest.mark.timeout(1_800)
async def test_books_over_kafka_are_those_of_the_venues_log_though_everything_is_killed(
    cluster: Cluster, kafka: Kafka, postgres_server: PostgresServer, session: aiohttp.ClientSession
) -> None:
    """Two back offices share the partitions and the books, so that one's are read by the other while it is away."""
    database_url, books_url = await upgraded_database(postgres_server), postgres_server.create_database()
    topic = kafka.create_topic(4)
    bus = bus_settings(kafka.bootstrap, topic)
    broker = await cluster.broker(faults=FAULTS).start()
    settings = {"SWITCHYARD_DATABASE_URL": database_url, **broker.client_settings(), **bus}
    gateway = cluster.process("gateway", "gateway", **settings)
    worker = cluster.process("worker", "worker", **settings)
    books = {**settings, "SWITCHYARD_BACKOFFICE_URL": books_url}
    offices = [cluster.process("backoffice", f"office-{number}", **books) for number in (1, 2)]
    for office in offices:
        office.port = office.backoffice_port
    await asyncio.gather(*(process.start() for process in (gateway, worker, *offices)))
    traders = Traders(gateway)
    orders, rounds = (20_000, 2) if kafka.is_real else (400, 1)
    part = orders // rounds // 5

    async def trade_while_killed(process: Process) -> None:
        before = len(traders.account_of)
        async with asyncio.TaskGroup() as group:
            group.create_task(traders.trade(part))
            await until(lambda: len(traders.account_of) >= before + part // 4)
            process.kill()
            await process.start()

    for _ in range(rounds):
        for process in (worker, offices[0], broker, gateway):
            await trade_while_killed(process)
        await asyncio.to_thread(kafka.crash)
        await traders.trade(part)  # orders go on without it
        await asyncio.to_thread(kafka.recover)
    assert len(traders.account_of) == orders
    expected: list[VenueBooks] = []
    shown: dict[str, dict[tuple[str, str], Decimal]] = {}

    async def all_filled() -> bool:
        expected[:] = [VenueBooks(broker, traders.account_of)]
        return expected[0].filled == orders

    await until(all_filled, lambda: f"{expected[0].filled} filled", seconds_max=600, pause_seconds=1.0)
    broker.check_nothing_twice()

    async def agree() -> bool:
        shown.update(await shown_books(session, offices[0]))
        return all(shown[name] == getattr(expected[0], name) for name in ("qty", "cash", "fees"))

    await until(
        agree,
        lambda: f"venue {vars(expected[0])}, books {shown}, {offices[0].log}",
        seconds_max=600,
        pause_seconds=0.5,
    )
    assert await shown_books(session, offices[1]) == shown
    assert (await read_books(session, offices[0], "/stats", ACCOUNTS[0]))["bus"] == "kafka"
    for process in (gateway, worker, *offices):
        assert process.stop() == 0
    verify = tool_settings(offices[0])
    done = await asyncio.to_thread(run_within, 600, "backoffice", "rebuild", "--verify", **verify)
    assert (done.returncode, "no difference" in done.stdout) == (0, True), done.stdout + done.stderr
    await asyncio.to_thread(check_messages, kafka, topic, orders * 5)


def check_messages(kafka: Kafka, topic: str, expected: int) -> None:
    """Assert that each account's messages follow one another, and that they are as the contract says."""
    by_account = first_occurrences(stored_messages(kafka, topic, expected))
    for messages in by_account.values():
        seqs = [int(header(message, "seq")) for message in messages]
        assert [int(header(message, "previousSeq")) for message in messages] == [0, *seqs[:-1]]
        for message in messages[: VALIDATED_MAX // len(by_account)]:
            value = message.value()
            assert value is not None
            assert problems(EVENT, decoded(value)) == []
