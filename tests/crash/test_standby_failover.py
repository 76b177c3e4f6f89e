"""A failover to a synchronous standby loses nothing that was acknowledged, by whichever gateway.

The standby is away, a gateway commits a request and is killed before it has an answer, and the wait of its commit ends:
the order is visible on the primary alone when its key is repeated at another gateway.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from switchyard.adapters.postgres import reader
from tests.support.cluster import Cluster
from tests.support.do_order import PATIENT
from tests.support.gateway import CheckedResponse, RunningGateway, running_gateway
from tests.support.orders import MARKET, place, until_all_final
from tests.support.polling import until
from tests.support.postgres import PostgresServer
from tests.support.process import Process
from tests.support.replication import Exposure, Replicated, replicated_database, two_servers

KEY = "repeated"
DO_ORDER = {"order_id": "ord-1", "instrument": "USDJPY", "side": "BUY", "qty": 0.1, "idempotency_key": KEY, **PATIENT}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "order": ("/orders", MARKET),
    "do_order": ("/do/order", DO_ORDER),
    "close": ("/positions/USDJPY/close", {}),
}
# A bucket of one order that is never filled again.
ONE_ORDER = {"RISK_RATE_PER_SEC": "0.001", "RISK_RATE_BURST": "1"}

Answer = tuple[int, dict[str, Any]]


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    with two_servers() as pair:
        yield pair


@pytest.fixture
def own_pair() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """For a test that promotes the standby."""
    with two_servers() as pair:
        yield pair


class Site:
    """Two gateways that share the database, and a position to close."""

    def __init__(self, servers: Replicated, cluster: Cluster, session: aiohttp.ClientSession) -> None:
        self.servers = servers
        self.cluster = cluster
        self.session = session

    async def start(self, **second_settings: str) -> None:
        """Start the gateways and fill an order through the second one; the worker then ends, so that nothing else
        writes."""
        broker = await self.cluster.broker().start()
        settings = broker.client_settings(SWITCHYARD_DATABASE_URL=self.servers.both_url, DO_RATE_PER_MIN="10000")
        self.first = self.cluster.process("gateway", "first", **settings)
        self.second = self.cluster.process("gateway", "second", **settings, **second_settings)
        worker = self.cluster.process("worker", "worker", **settings)
        await asyncio.gather(*(process.start() for process in (self.first, self.second, worker)))
        await place(self.session, self.second, body=MARKET)
        await until_all_final(self.session, self.second)
        worker.stop()

    async def post(self, gateway: Process, request: str) -> Answer:
        path, body = REQUESTS[request]
        headers = gateway.headers(key=KEY)
        async with self.session.post(gateway.url + path, json=body, headers=headers) as response:
            return response.status, await response.json()

    async def get(self, gateway: Process, path: str) -> Answer:
        async with self.session.get(gateway.url + path, headers=gateway.headers()) as response:
            return response.status, await response.json()

    async def expose(self, request: str, by: Exposure) -> None:
        """Let the first gateway commit the request on the primary alone, and kill it."""
        await asyncio.to_thread(self.servers.standby.stop)
        posting = asyncio.create_task(self.post(self.first, request))
        while not await self.stored(self.servers.url):
            await self.servers.until_waiting()  # it may be another commit, which the one of the request waits for
            await self.servers.expose(by)
        self.first.kill()
        [answer] = await asyncio.gather(posting, return_exceptions=True)
        assert isinstance(answer, aiohttp.ClientError) or (isinstance(answer, tuple) and answer[0] == 503), answer

    async def stored(self, url: str) -> list[str]:
        """The orders of the key."""
        found = await self.servers.run(url, "SELECT order_id FROM idempotency_keys WHERE idempotency_key = $1", KEY)
        return [record["order_id"] for record in found]


@pytest.mark.parametrize(
    ("request_name", "by", "second_settings"),
    [
        ("order", "cancelled", {}),
        ("do_order", "terminated", {}),
        ("order", "crashed", {}),
        ("order", "cancelled", ONE_ORDER),
    ],
    ids=["cancelled", "do_order", "crashed", "order over the rate"],
)
async def test_a_repeat_is_acknowledged_only_once_the_standby_has_the_order(
    pair: tuple[PostgresServer, PostgresServer],
    cluster: Cluster,
    session: aiohttp.ClientSession,
    request_name: str,
    by: Exposure,
    second_settings: dict[str, str],
) -> None:
    site = Site(await replicated_database(*pair), cluster, session)
    await site.start(**second_settings)
    await site.expose(request_name, by)
    [order_id] = await site.stored(site.servers.url)

    repeat, one, many, events = await asyncio.gather(
        site.post(site.second, request_name),
        site.get(site.second, f"/orders/{order_id}"),
        site.get(site.second, "/orders"),
        site.get(site.second, "/accounts/demo/events"),
    )

    assert repeat[0] == 503 and "OUTCOME_UNKNOWN" in repeat[1].values(), repeat
    for status, answer in (one, many, events):
        assert (status, answer["reason"]) == (503, "JOURNAL_UNAVAILABLE")

    site.servers.standby.start()
    await site.servers.until_synchronous()
    status, answer = await site.post(site.second, request_name)
    assert status in (200, 202), answer
    assert answer.get("orderId", order_id) == order_id
    assert (await site.get(site.second, f"/orders/{order_id}"))[0] == 200


@pytest.mark.parametrize("request_name", ["order", "do_order"])
async def test_after_a_promotion_the_order_is_there_or_was_never_acknowledged(
    own_pair: tuple[PostgresServer, PostgresServer],
    cluster: Cluster,
    session: aiohttp.ClientSession,
    request_name: str,
) -> None:
    site = Site(await replicated_database(*own_pair), cluster, session)
    await site.start()
    await site.expose(request_name, "cancelled")
    status, _ = await site.post(site.second, request_name)
    assert status == 503

    await asyncio.to_thread(site.servers.primary.kill)
    site.servers.standby.start()
    await asyncio.to_thread(site.servers.standby.promote)

    assert await site.stored(site.servers.standby_url) == []
    answers: list[Answer] = []

    async def is_acknowledged() -> bool:
        answers[:] = [await site.post(site.second, request_name)]
        return answers[0][0] < 300

    await until(is_acknowledged, lambda: f"{answers}\n{site.second.log}", pause_seconds=0.1)
    assert site.second.is_running, "it saw nothing that the standby does not have"
    assert len(await site.stored(site.servers.standby_url)) == 1


# Method, path and body. None of them places an order; only the first has a key.
WRITES: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "amend": ("PATCH", "/orders/{order_id}", {"qty": 2000}),
    "amend by content": ("PATCH", "/orders/{order_id}", {"qty": 2000}),
    "cancel": ("POST", "/orders/{order_id}/cancel", None),
    "cancel all": ("POST", "/orders/cancel-all", {}),
    "kill": ("POST", "/admin/kill?wait=0", {"symbol": "EURUSD", "reason": "a test"}),
    "clear": ("POST", "/admin/kill/{kill_id}/clear", {"reason": "a test"}),
}
HEADERS = {"amend": {"Idempotency-Key": KEY}, "amend by content": {"Idempotency-Derive": "true"}}


async def _write(gateway: RunningGateway, name: str, **ids: str) -> CheckedResponse:
    method, path, body = WRITES[name]
    token = gateway.token(scopes=["admin:kill"], subject="ann")
    headers = {"Authorization": f"Bearer {token}", **HEADERS.get(name, {})}
    return await gateway.request(method, path.format(**ids), body=body, headers=headers)


async def _newest(servers: Replicated) -> int:
    [(seq,)] = await servers.on_primary("SELECT seq FROM journal_heads")
    return int(seq)


@pytest.mark.parametrize("name", WRITES)
async def test_a_repeat_of_a_write_that_only_the_primary_has_is_not_told_that_nothing_was_written(
    pair: tuple[PostgresServer, PostgresServer], tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is read before a write counts as confirmed only once the servers have had their configuration for so long.
    monkeypatch.setattr(reader, "SETTLED_SECONDS", 0.0)
    servers = await replicated_database(*pair)
    settings = {"SWITCHYARD_DATABASE_URL": servers.url, "SWITCHYARD_WORKER": "false"}
    async with (
        running_gateway(tmp_path / "one", **settings) as one,
        running_gateway(tmp_path / "two", **settings) as two,
    ):
        order_id = (await one.place(type="LIMIT", price=1)).json["orderId"]
        ids = {"order_id": order_id, "kill_id": (await _write(one, "kill")).json["killId"] if name == "clear" else ""}
        await asyncio.to_thread(servers.standby.stop)
        before = await _newest(servers)
        first = asyncio.create_task(_write(one, name, **ids))
        while await _newest(servers) == before:
            await servers.until_waiting()  # it may be another commit, which the one of the request waits for
            await servers.expose("cancelled")

        repeat = await _write(two, name, **ids)

        assert (repeat.status, repeat.json["status"], repeat.json["reason"]) == (503, "UNKNOWN", "OUTCOME_UNKNOWN")
        shown = await two.get(f"/orders/{order_id}")
        assert (shown.status, shown.json["reason"]) == (503, "JOURNAL_UNAVAILABLE")
        servers.standby.start()
        await servers.until_synchronous()
        await first
        again = await _write(two, name, **ids)
        assert again.status in (200, 202) or again.json["reason"] in ("ORDER_FINAL", "KILL_CLEARED")
        assert ("Idempotent-Replayed" in again.headers) == name.startswith("amend")
