"""SIGKILL during a recheck of 200 strategies: each ends once, and progress is true before, between and after."""

import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from switchyard.adapters.pdca.store import SqlPdcaStore
from switchyard.adapters.system_clock import SystemClock
from switchyard.domain.strategies.registry import StrategyBody
from switchyard.domain.strategies.requests import RecheckItem
from switchyard.ports.strategies import PAGE_MAX, PdcaStore, StoredRequest, StrategyQuery
from tests.support.books import KEEPS_BOOKS
from tests.support.cluster import Cluster
from tests.support.pdca import strategy_key
from tests.support.polling import until
from tests.support.process import Process, run_command

STRATEGIES = 200
KILL_AT = 60
BODY = {"filter": {"tags_any": ["daily"]}, "batch_size": 25, "window": {"lookback_days": 7}, "reason": "daily-bulk"}


async def opened(process: Process, engine_settings: dict[str, str]) -> PdcaStore:
    """The store of the process, as another process sees it."""
    url = engine_settings.get("SWITCHYARD_DATABASE_URL")
    if url is not None:
        return await SqlPdcaStore.on_postgres(url)
    return await SqlPdcaStore.on_file(Path(process.settings["SWITCHYARD_DATA_DIR"]) / "pdca.db")


async def stored(store: PdcaStore, request_id: str) -> StoredRequest:
    found = await store.request(request_id)
    assert found is not None
    progress = found.progress
    assert progress.queued + progress.running + progress.succeeded + progress.failed == progress.total == STRATEGIES
    return found


async def all_items(store: PdcaStore, request_id: str) -> list[RecheckItem]:
    items: list[RecheckItem] = []
    while page := await store.items(request_id, len(items), PAGE_MAX):
        if not page.items:
            return items
        items += page.items
    raise AssertionError("the request is gone")


@pytest.fixture
async def process(cluster: Cluster, engine_settings: dict[str, str]) -> AsyncIterator[Process]:
    # One at a time, so that the kill comes in the middle.
    settings = {**KEEPS_BOOKS, **engine_settings, "PDCA_PARALLELISM": "1"}
    yield await cluster.process(name="office", **settings).start()


async def test_each_of_200_strategies_is_rechecked_once_across_a_kill(
    process: Process, engine_settings: dict[str, str], session: aiohttp.ClientSession
) -> None:
    store = await opened(process, engine_settings)
    try:
        for number in range(STRATEGIES):
            await store.put_strategy(strategy_key(f"s{number:03}"), StrategyBody(tags=("daily",)), SystemClock().now())
        token = run_command("token", "--aud", "pdca", "--scope", "pdca:recheck_all", **process.settings)
        headers = {"Authorization": f"Bearer {token.stdout.strip()}", "Idempotency-Key": "bulk-1"}
        async with session.post(f"{process.url}/pdca/recheck_all", json=BODY, headers=headers) as response:
            assert response.status == 202, await response.text()
            request_id = (await response.json())["request_id"]

        async def is_under_way() -> bool:
            return (await stored(store, request_id)).progress.succeeded >= KILL_AT

        await until(is_under_way)
        process.kill()
        before = await stored(store, request_id)
        ended = {item.key.strategy_id: item for item in await all_items(store, request_id) if item.finished_at}
        assert KILL_AT <= before.progress.succeeded == len(ended) < STRATEGIES
        assert before.progress.state == "running" and before.finished_at is None

        await process.start()
        # The same request again, as a client does that lost its connection: nothing new is begun.
        async with session.post(f"{process.url}/pdca/recheck_all", json=BODY, headers=headers) as response:
            assert (response.status, (await response.json())["request_id"]) == (202, request_id)
        reached = before.progress.succeeded

        async def has_ended() -> bool:
            nonlocal reached
            now = await stored(store, request_id)
            assert now.progress.succeeded >= reached, "progress went back"
            reached = now.progress.succeeded
            return now.finished_at is not None

        await until(has_ended, lambda: process.log[-2000:], pause_seconds=0.05)
        after = await stored(store, request_id)
        assert (after.progress.succeeded, after.progress.state) == (STRATEGIES, "succeeded")
        items = await all_items(store, request_id)
        assert {
            item.key.strategy_id: item for item in items if item.key.strategy_id in ended
        } == ended  # not touched again
        repeated = [item for item in items if item.attempts > 1]
        assert len(repeated) <= 1  # at most the one that the killed process had begun
        lines = Counter(re.findall(r"strategy_rechecked .*strategy=(\S+)", process.log))
        assert set(lines.values()) == {1}
        # The process may have been killed between the commit of one and its line.
        assert STRATEGIES - 1 <= len(lines) <= STRATEGIES
        page = await store.strategies(StrategyQuery(limit=1))
        assert page.total == STRATEGIES and page.strategies[0].last_request_id == request_id
    finally:
        await store.close()
