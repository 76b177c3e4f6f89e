"""The two streams: which events they send, where they resume, and which requests they reject."""

import asyncio
import json
import random
from typing import Any, cast

import pytest

from switchyard.adapters.sqlite.database import SqliteDatabase
from switchyard.domain.ids import OrderId
from switchyard.domain.journal.events import JournalEvent, encode
from switchyard.domain.orders.order import snapshot
from switchyard.ports.queries import Queries
from tests.support.polling import until
from tests.support.stream_server import ANN, BOB, get, serving

pytestmark = pytest.mark.usefixtures("no_logged_errors")


async def test_an_account_stream_sends_ready_and_then_the_accounts_events(database: SqliteDatabase) -> None:
    async with serving(database) as gateway:
        head = await gateway.exchange.place("ord_1")
        async with get(gateway, "/stream") as client:
            assert client.status == 200
            assert client.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert client.headers["x-accel-buffering"] == "no"
            assert await client.message() == (head, "ready", {"accountId": ANN})
            await gateway.exchange.place("ord_of_bob", BOB)
            number = await gateway.exchange.fill("ord_1")
            id, name, report = await client.message()
            assert (id, name, report["execId"]) == (number, "execution_report", "fill of ord_1")
            id, name, order = await client.message()
            assert (id, name, order["status"]) == (number + 1, "order_update", "FILLED")


async def test_an_order_stream_sends_a_snapshot_and_then_the_orders_events(database: SqliteDatabase) -> None:
    async with serving(database) as gateway:
        await gateway.exchange.place("ord_1")
        number = await gateway.exchange.touch("ord_1")
        await gateway.exchange.place("ord_2")
        async with get(gateway, "/orders/ord_1/stream") as client:
            assert await client.message() == (None, "ready", {"orderId": "ord_1"})
            order = await database.queries.order(OrderId("ord_1"))
            assert order is not None
            assert await client.message() == (number, "order_snapshot", json.loads(encode(snapshot(order))))
            await gateway.exchange.touch("ord_2")
            number = await gateway.exchange.touch("ord_1")
            id, name, data = await client.message()
            assert (id, name, data["version"]) == (number, "order_update", 3)


async def test_an_order_stream_opened_at_any_time_sends_each_later_change_once(database: SqliteDatabase) -> None:
    chance = random.Random(7)
    changes = 150
    async with serving(database) as gateway:
        await gateway.exchange.place("ord_1")

        async def follow() -> None:
            async with get(gateway, "/orders/ord_1/stream") as client:
                assert (await client.message())[1] == "ready"
                position, name, data = await client.message()
                assert name == "order_snapshot"
                while data["version"] <= changes:
                    if chance.random() < 0.1:
                        break
                    version = data["version"]
                    position, name, data = await client.message()
                    assert (name, data["version"]) == ("order_update", version + 1)
            # It resumes after the last message it received, a snapshot or an update.
            async with get(gateway, "/orders/ord_1/stream", ANN, f"Last-Event-ID: {position}") as client:
                assert (await client.message())[1] == "ready"
                while data["version"] <= changes:
                    version = data["version"]
                    _, name, data = await client.message()
                    assert (name, data["version"]) == ("order_update", version + 1)

        async with asyncio.TaskGroup() as group:
            for _ in range(changes):
                await gateway.exchange.touch("ord_1")
                if chance.random() < 0.3:
                    group.create_task(follow())
        await until(lambda: gateway.hub.subscribers == 0)


class Archived:
    """Queries over a database whose events are archived."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queries, name)

    async def last_events(self, **_wanted: Any) -> list[JournalEvent]:
        return []


async def test_an_order_with_archived_events_gets_a_snapshot_from_its_row(database: SqliteDatabase) -> None:
    async with serving(database, queries=cast(Queries, Archived(database.queries))) as gateway:
        await gateway.exchange.place("ord_1")
        head = await gateway.exchange.place("ord_2")
        async with get(gateway, "/orders/ord_1/stream") as client:
            assert (await client.message())[1] == "ready"
            id, name, data = await client.message()
            assert (id, name, data["version"]) == (head, "order_snapshot", 1)
            number = await gateway.exchange.touch("ord_1")
            assert (await client.message())[:2] == (number, "order_update")


async def test_a_stream_resumes_after_the_last_event_id_on_another_gateway(
    database: SqliteDatabase,
) -> None:
    async with serving(database) as gateway:
        async with get(gateway, "/stream") as client:
            assert (await client.message())[1] == "ready"
            first = await gateway.exchange.place("ord_1")
            assert (await client.message())[:2] == (first, "order_update")
        second = await gateway.exchange.touch("ord_1")
    async with serving(database) as gateway:
        async with get(gateway, "/stream", ANN, f"Last-Event-ID: {first}") as client:
            assert (await client.message())[:2] == (first, "ready")
            assert (await client.message())[:2] == (second, "order_update")
            third = await gateway.exchange.touch("ord_1")
            assert (await client.message())[:2] == (third, "order_update")
        async with get(gateway, f"/orders/ord_1/stream?lastEventId={first}") as client:
            assert (await client.message())[:2] == (None, "ready")
            assert (await client.message())[:2] == (second, "order_update")


async def test_the_last_event_id_header_takes_precedence_over_the_query(database: SqliteDatabase) -> None:
    async with serving(database) as gateway:
        numbers = [await gateway.exchange.place(f"ord_{number}") for number in range(3)]
        async with get(gateway, "/stream?lastEventId=0", ANN, f"Last-Event-ID: {numbers[1]}") as client:
            assert (await client.message())[:2] == (numbers[1], "ready")
            assert (await client.message())[:2] == (numbers[2], "order_update")


async def test_an_id_beyond_the_journals_head_requires_a_resync(database: SqliteDatabase) -> None:
    async with serving(database) as gateway:
        head = await gateway.exchange.place("ord_1")
        async with get(gateway, "/stream", ANN, "Last-Event-ID: 999999999999999999") as client:
            assert (await client.message())[1] == "ready"
            id, name, data = await client.message()
            assert (id, name) == (head, "resync_required")
            assert data == {
                "scope": "account",
                "id": ANN,
                "lastEventId": 999999999999999999,
                "oldestAvailableId": head,
                "eventsEndpoint": "/accounts/ann/events",
            }
            number = await gateway.exchange.touch("ord_1")
            assert (await client.message())[:2] == (number, "order_update")


@pytest.mark.parametrize(
    ("path", "headers", "field"),
    [
        ("/stream", ["Last-Event-ID: -1"], "Last-Event-ID"),
        ("/stream", ["Last-Event-ID: one"], "Last-Event-ID"),
        ("/stream", ["Last-Event-ID: 1.0"], "Last-Event-ID"),
        ("/stream", ["Last-Event-ID:"], "Last-Event-ID"),
        ("/stream", ["Last-Event-ID: ²"], "Last-Event-ID"),
        ("/stream", ["Last-Event-ID: " + "9" * 5_000], "Last-Event-ID"),
        ("/stream", ["Last-Event-ID: 1", "Last-Event-ID: 2"], "Last-Event-ID"),
        ("/stream?lastEventId=", [], "lastEventId"),
        ("/orders/ord_1/stream?lastEventId=x", [], "lastEventId"),
    ],
)
async def test_a_last_event_id_that_is_not_a_number_is_rejected(
    database: SqliteDatabase, path: str, headers: list[str], field: str
) -> None:
    async with serving(database) as gateway:
        await gateway.exchange.place("ord_1")
        async with get(gateway, path, ANN, *headers) as client:
            assert client.status == 400
            body = json.loads(await client.body())
            assert (body["status"], body["reason"], body["field"]) == ("REJECTED", "VALIDATION_ERROR", field)
        assert gateway.hub.subscribers == 0


async def test_another_accounts_order_gets_the_same_response_as_a_missing_one(database: SqliteDatabase) -> None:
    async with serving(database) as gateway:
        await gateway.exchange.place("ord_1")
        answers = []
        for path, account in (("/orders/ord_1/stream", BOB), ("/orders/ord_9/stream", BOB), ("/orders//stream", BOB)):
            async with get(gateway, path, account, "Last-Event-ID: 0") as client:
                headers = {name: value for name, value in client.headers.items() if name != "date"}
                answers.append((client.status, headers, await client.body()))
        assert answers[0][0] == 404
        assert answers[0] == answers[1] == answers[2]
