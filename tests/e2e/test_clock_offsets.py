"""A broker whose clock differs from ours: the difference is shown, and taken off where times are compared."""

import asyncio

import aiohttp
import pytest

from tests.support.cluster import Cluster
from tests.support.figures import scrape
from tests.support.orders import get, place, until_all_final
from tests.support.polling import until
from tests.support.process import SECRET, run_command


@pytest.mark.parametrize("offset", [-30, 30])
async def test_the_offset_of_a_venue_is_shown_and_is_no_sign_of_a_copy(
    cluster: Cluster, session: aiohttp.ClientSession, offset: int
) -> None:
    broker = await cluster.broker("--clock-offset", str(offset)).start()
    process = await cluster.process(**broker.client_settings()).start()
    shown: dict[str, str] = {}

    async def is_shown() -> bool:
        headers = process.headers(scopes=["admin:health"])
        async with session.get(f"{process.url}/health/ready", headers=headers) as response:
            checks = (await response.json())["checks"]
        [clock] = [check for check in checks if check["check"] == "clock"]
        shown.update(clock)
        return "from sim" in clock.get("detail", "")

    await until(is_shown, lambda: process.log, pause_seconds=0.2)
    assert shown["status"] == "degraded"
    assert "s from database" in shown["detail"]
    figures = await scrape(session, process.url)
    assert abs(figures["clock_offset_seconds{sim}"] + offset) < 2
    assert abs(figures["clock_offset_seconds{database}"]) < 1

    doctor = await asyncio.to_thread(run_command, "doctor", "--url", process.url, JWT_HS256_SECRET=SECRET)
    assert (doctor.returncode, "from sim" in doctor.stdout) == (1, True), doctor.stdout + doctor.stderr

    await place(session, process, "key")
    [order] = await until_all_final(session, process)
    assert order["status"] == "FILLED"
    assert (await get(session, process, "/health"))["status"] == "ok"
    assert "copy_suspected" not in process.log
