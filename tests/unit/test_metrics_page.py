"""`/metrics`: rendered at most once a second, once for all concurrent readers."""

import asyncio
from datetime import timedelta

import pytest
from starlette.requests import Request

from switchyard.domain.errors import Unauthorized
from switchyard.entrypoints.http import monitoring
from switchyard.entrypoints.http.monitoring import MetricsPage
from switchyard.telemetry.metrics import Metrics
from tests.support.memory.clock import ManualClock


class Site:
    """A page whose renderings are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, token: str | None = None) -> None:
        self.clock = ManualClock()
        self.renderings = 0
        self.refreshed = asyncio.Event()
        self.refreshed.set()
        self.page = MetricsPage(Metrics(), self._refresh, clock=self.clock, token=token)
        monkeypatch.setattr(monitoring, "generate_latest", self._render)

    async def _refresh(self) -> None:
        await self.refreshed.wait()

    def _render(self, _registry: object) -> bytes:
        self.renderings += 1
        return b"rendering %d" % self.renderings

    async def read(self, **headers: str) -> bytes:
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        answer = await self.page.show(Request({"type": "http", "headers": raw}))
        return bytes(answer.body)


async def test_a_rendering_is_kept_for_a_second_of_the_monotonic_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch)
    assert {await site.read() for _ in range(30)} == {b"rendering 1"}
    site.clock.advance(timedelta(seconds=0.9))
    assert await site.read() == b"rendering 1"
    site.clock.advance(timedelta(seconds=0.1))
    assert await site.read() == b"rendering 2"


async def test_concurrent_readers_share_one_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch)
    site.refreshed.clear()
    readers = [asyncio.create_task(site.read()) for _ in range(30)]
    await asyncio.sleep(0)
    site.clock.advance(timedelta(seconds=3))  # the database was slow
    site.refreshed.set()
    assert set(await asyncio.gather(*readers)) == {b"rendering 1"}


async def test_a_reader_that_leaves_takes_no_rendering_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch)
    site.refreshed.clear()
    first, second = (asyncio.create_task(site.read()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    site.refreshed.set()
    assert await second == b"rendering 1"


async def test_a_kept_rendering_still_needs_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch, token="right")
    assert await site.read(x_metrics_token="right") == b"rendering 1"
    for headers in ({}, {"x_metrics_token": "wrong"}):
        with pytest.raises(Unauthorized):
            await site.read(**headers)
