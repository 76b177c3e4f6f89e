"""Each dependency is killed under load: the alert that fires, the readiness answer, and recovery without a restart.

Real processes and a real Prometheus; `make test-operate` runs it, because it needs Debian's package `prometheus`.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.cluster import Cluster
from tests.support.orders import PATIENT
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.process import run_command
from tests.support.prometheus import PrometheusServer
from tests.support.redis import RedisServer
from tests.support.upgraded import upgraded_database

# Orders in doubt for a minute: the age is part of the metric and cannot be scaled down.
DOUBT_SECONDS_MAX = 150


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with RedisServer() as started:
        yield started


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as started:
        yield started


class Site:
    """Gateway, worker and back office on PostgreSQL and Redis, with a venue of class A and one of class C."""

    def __init__(self, cluster: Cluster, database_url: str, redis_url: str) -> None:
        self.safe = cluster.broker(dedupe="forever", name="safe")
        self.unsafe = cluster.broker(dedupe="none", name="unsafe")
        metrics_port = free_port()
        settings = {
            "SWITCHYARD_DATABASE_URL": database_url,
            "SWITCHYARD_REDIS_URL": redis_url,
            "SWITCHYARD_METRICS_PORT": str(metrics_port),
            "SWITCHYARD_LOG_LEVEL": "warning",
            "SOR_VENUES": "safe,unsafe",
            "SOR_SYMBOL_ROUTES": "EURUSD=unsafe",
            "VENUE_URL_SAFE": self.safe.url,
            "VENUE_DEDUPE_SAFE": "forever",
            "VENUE_WINDOW_SEC_SAFE": "2",
            "VENUE_URL_UNSAFE": self.unsafe.url,
            "VENUE_DEDUPE_UNSAFE": "none",
            "VENUE_LOOKUP_UNSAFE": "none",
            "RISK_MAX_OPEN_NOTIONAL": "1000000000000",
        }
        self.settings = settings
        self.gateway = cluster.process("gateway", "gateway", **settings)
        self.worker = cluster.process("worker", "worker", **settings)
        self.backoffice = cluster.process("backoffice", "backoffice", **settings)
        self.urls = [self.gateway.url, f"http://127.0.0.1:{metrics_port}", self.backoffice.backoffice_url]

    async def start(self) -> None:
        await asyncio.gather(self.safe.start(), self.unsafe.start())
        await self.gateway.start()
        await self.worker.start()
        self.backoffice.spawn()

    async def checks(self, session: aiohttp.ClientSession) -> dict[str, str]:
        """The gateway's readiness checks that are not ok."""
        async with session.get(f"{self.gateway.url}/health/ready") as response:
            found = await response.json()
        return {check["check"]: check["status"] for check in found["checks"] if check["status"] != "ok"}

    async def order(self, session: aiohttp.ClientSession, **changes: object) -> int:
        headers = self.gateway.headers()
        async with session.post(f"{self.gateway.url}/orders", json={**PATIENT, **changes}, headers=headers) as response:
            await response.read()
            return response.status


@contextlib.asynccontextmanager
async def load(site: Site, session: aiohttp.ClientSession) -> AsyncIterator[None]:
    """A few orders a second, whatever becomes of them, and some of each other kind of request."""

    async def post() -> None:
        for number in range(1_000_000):
            with contextlib.suppress(aiohttp.ClientError):
                await site.order(session)
                if number % 10 == 0:
                    body = {"order_id": f"o-{number}", "idempotency_key": f"k-{number}", "instrument": "USDJPY"}
                    body |= {"side": "BUY", "qty": 0.01}  # type: ignore[dict-item]
                    headers = site.gateway.headers(key=f"k-{number}")
                    async with session.post(f"{site.gateway.url}/do/order", json=body, headers=headers) as response:
                        await response.read()
            await asyncio.sleep(0.2)

    task = asyncio.create_task(post())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_every_dependency_that_is_killed_raises_its_alert_and_comes_back_by_itself(
    cluster: Cluster, tmp_path: Path, postgres: PostgresServer, redis: RedisServer, session: aiohttp.ClientSession
) -> None:
    site = Site(cluster, await upgraded_database(postgres), redis.url)
    await site.start()
    prometheus = PrometheusServer(tmp_path / "prometheus", site.urls).start()
    try:
        async with load(site, session):
            await prometheus.until_quiet(session)
            await redis_away(site, prometheus, redis, session)
            await venue_away(site, prometheus, session)
            await database_away(site, prometheus, postgres, session)
            await worker_away(site, prometheus, session)
            await killed(site, prometheus, session)
        await in_doubt(site, prometheus, session)
    finally:
        prometheus.close()


async def recovered(site: Site, prometheus: PrometheusServer, session: aiohttp.ClientSession) -> None:
    """Wait until no alert fires and every check is ok."""
    await prometheus.until_quiet(session)
    found: dict[str, str] = {}

    async def is_ready() -> bool:
        found.clear()
        found.update(await site.checks(session))
        return not found

    await until(is_ready, lambda: f"{found}", pause_seconds=0.5)


async def redis_away(
    site: Site, prometheus: PrometheusServer, redis: RedisServer, session: aiohttp.ClientSession
) -> None:
    redis.stop()
    await prometheus.until_firing(session, "IdempotencyCacheUnavailable")
    assert await site.checks(session) == {"cache": "degraded"}
    assert await site.order(session) == 202  # the database decides
    redis.start()
    await recovered(site, prometheus, session)


async def venue_away(site: Site, prometheus: PrometheusServer, session: aiohttp.ClientSession) -> None:
    site.safe.kill()
    await prometheus.until_firing(session, "VenueBreakerOpen", "VenueUnheard")
    assert (await site.checks(session)).keys() == {"venues"}
    await site.safe.start()
    await recovered(site, prometheus, session)


async def database_away(
    site: Site, prometheus: PrometheusServer, postgres: PostgresServer, session: aiohttp.ClientSession
) -> None:
    postgres.kill()
    await prometheus.until_firing(session, "JournalUnavailable")
    assert (await site.checks(session))["journal"] == "failed"
    postgres.start()
    await recovered(site, prometheus, session)


async def worker_away(site: Site, prometheus: PrometheusServer, session: aiohttp.ClientSession) -> None:
    site.worker.kill()
    await prometheus.until_firing(session, "ProcessDown")

    async def is_noticed() -> bool:
        return (await site.checks(session)).get("worker") == "degraded"

    await until(is_noticed, pause_seconds=0.5)
    assert await site.order(session) == 202  # it waits for a worker
    await site.worker.start()
    await recovered(site, prometheus, session)


async def killed(site: Site, prometheus: PrometheusServer, session: aiohttp.ClientSession) -> None:
    """The kill switch, set and cleared as its page says."""
    by = ("--by", "ann", "--reason", "test")
    made = await asyncio.to_thread(run_command, "kill", "--symbol", "GBPUSD", *by, "--json", **site.settings)
    kill_id = json.loads(made.stdout)["killId"]
    await prometheus.until_firing(session, "KillSwitchOn")
    await asyncio.to_thread(run_command, "kills", "clear", kill_id, *by, **site.settings)
    await prometheus.until_quiet(session)


async def in_doubt(site: Site, prometheus: PrometheusServer, session: aiohttp.ClientSession) -> None:
    """A doubt that only a person can end, resolved by the commands of its page alone."""
    await site.unsafe.set_faults(refused_5xx=1)
    assert await site.order(session, symbol="EURUSD", price=2) == 202
    await prometheus.until_firing(session, "OrderInDoubt", seconds_max=DOUBT_SECONDS_MAX)
    listed = await asyncio.to_thread(run_command, "outbox", "list", "--json", **site.settings)
    [row] = json.loads(listed.stdout)
    shown = await asyncio.to_thread(run_command, "outbox", "show", row["id"], **site.settings)
    client_order_id = row["row"]["venue_client_order_id"]
    assert client_order_id in shown.stdout and "outbox resolve" in shown.stdout
    assert not [line for line in site.unsafe.events("order") if line["client_order_id"] == client_order_id]
    verdict = ("--as", "not-sent", "--by", "ann", "--reason", "not on the venue's screen")
    done = await asyncio.to_thread(run_command, "outbox", "resolve", row["id"], *verdict, **site.settings)
    assert done.returncode == 0, done.stderr
    await prometheus.until_quiet(session)
