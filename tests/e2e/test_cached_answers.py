"""Redis answers repeats without the database, and never with an order that a restored database has lost."""

import asyncio
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.support.backups import SqliteBackup, declare_restored
from tests.support.cluster import Cluster
from tests.support.figures import scrape, scrape_anew
from tests.support.orders import all_orders, cancel, until_all_final
from tests.support.polling import until
from tests.support.postgres import PostgresServer
from tests.support.posts import BODY, bearer, post
from tests.support.process import Process
from tests.support.redis import RedisServer
from tests.support.upgraded import upgraded_database

KEYED = {**bearer("demo"), "Idempotency-Key": "once"}
DERIVED = {**bearer("demo"), "Idempotency-Derive": "true"}
# An hour: within it the same content is the same order, however slow the machine is.
WINDOW = {"IDEMPOTENCY_KEY_GENERATION_TIMESTAMP_RESOLUTION": "3600000"}


@pytest.fixture
def database_server() -> Iterator[PostgresServer]:
    """A server of its own, because the test stops it."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
async def gateways(
    database_server: PostgresServer, redis_server: RedisServer, cluster: Cluster
) -> tuple[Process, Process]:
    redis_server.flush()
    settings = {
        "SWITCHYARD_DATABASE_URL": await upgraded_database(database_server),
        "SWITCHYARD_REDIS_URL": redis_server.url,
        **WINDOW,
    }
    one, two = (cluster.process("gateway", f"gateway-{number}", **settings) for number in range(2))
    await asyncio.gather(one.start(), two.start())
    return one, two


async def until_cached(session: aiohttp.ClientSession, gateway: Process, headers: dict[str, str]) -> None:
    """Repeat the request until a response comes from the cache, which is written after the response."""
    # Rendered anew: the page is kept for a second, and a hit between two looks at the same page would not show.
    before = (await scrape_anew(session, gateway.url))["idempotency_cache_hits_total"]

    async def is_hit() -> bool:
        await post(session, gateway, headers)
        return (await scrape(session, gateway.url))["idempotency_cache_hits_total"] > before

    await until(is_hit)


async def repeated(session: aiohttp.ClientSession, gateway: Process, headers: dict[str, str]) -> dict[str, Any]:
    """The answer to a repeat, sent as often as a client is told to: a lookup on Redis has 5 ms, then it is a miss."""
    answers: list[dict[str, Any]] = []

    async def is_answered() -> bool:
        async with session.post(f"{gateway.url}/orders", json=BODY, headers=headers) as response:
            if response.status == 503 and "Retry-After" in response.headers:
                return False
            response.raise_for_status()
            answers.append(await response.json())
            return True

    await until(is_answered)
    return answers[0]


async def test_another_gateway_answers_a_repeat_while_the_database_is_down(
    gateways: tuple[Process, Process], database_server: PostgresServer, session: aiohttp.ClientSession
) -> None:
    one, two = gateways
    keyed, derived = await post(session, one, KEYED), await post(session, one, DERIVED)
    await cancel(session, one, derived["orderId"])  # under a derived key only an order that has ended is cached
    await until_cached(session, one, KEYED)
    await until_cached(session, one, DERIVED)
    await asyncio.to_thread(database_server.stop)
    for _ in range(3):
        assert (await repeated(session, two, KEYED))["orderId"] == keyed["orderId"]
        again = await repeated(session, two, DERIVED)
        assert (again["orderId"], again["fromCache"]) == (derived["orderId"], True)
        assert (again["status"], again["originalRequestId"]) == ("duplicate_detected", derived["requestId"])
    # A different body under the same key needs the key store, and so does an unused key.
    for headers, changes in ((KEYED, {"qty": 2000}), ({**KEYED, "Idempotency-Key": "new"}, {})):
        async with session.post(f"{two.url}/orders", json={**BODY, **changes}, headers=headers) as response:
            assert response.status == 503


async def test_an_order_that_a_restored_database_has_lost_is_not_acknowledged_from_redis(
    redis_server: RedisServer, cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    redis_server.flush()
    process = cluster.process(SWITCHYARD_REDIS_URL=redis_server.url, **WINDOW)
    backup = SqliteBackup(cluster.folder)
    lost: set[str] = set()

    async def placed() -> set[str]:
        return {(await post(session, process, headers))["orderId"] for headers in (KEYED, DERIVED)}

    await process.start()
    await post(session, process, {**KEYED, "Idempotency-Key": "kept"})
    assert process.stop() == 0
    backup.take()
    # The same backup twice: each restore opens an epoch above all that were ever seen.
    for epoch in (2, 3):
        await process.start()
        order_ids = await placed()
        assert not order_ids & lost, "a lost order was acknowledged"
        assert order_ids < {order["orderId"] for order in await all_orders(session, process)}
        await until_all_final(session, process)  # under a derived key only an order that has ended is cached
        await until_cached(session, process, KEYED)
        await until_cached(session, process, DERIVED)
        assert process.stop() == 0
        lost |= order_ids
        backup.restore()
        assert declare_restored(process)["epoch"] == epoch
        assert redis_server.ask("KEYS", "switchyard:idem:*"), "the cached entries are gone"
    await process.start()
    assert not await placed() & lost, "a lost order was acknowledged"
