"""A dry run: the paper exchange fills at the live quotes of a broker, to which nothing is sent."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.acorn import AcornWorld, acorn_settings, acorn_world, plugin_path
from tests.support.cluster import Cluster
from tests.support.orders import MARKET, get, place, until_all_final, until_statuses
from tests.support.polling import until
from tests.support.process import Process, run_command

DRY = {"SOR_VENUES": "paper,acorn", "VENUE_QUOTES_PAPER": "venue:acorn"}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[AcornWorld]:
    world = acorn_world(tmp_path / "broker")
    await world.start()
    yield world
    world.close()


async def status_of_quote(session: aiohttp.ClientSession, process: Process) -> int:
    async with session.get(f"{process.url}/quotes/USDJPY", headers=process.headers()) as response:
        return response.status


async def test_orders_fill_at_the_quotes_of_the_broker_and_never_reach_it(
    world: AcornWorld, cluster: Cluster, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    installed = plugin_path(tmp_path / "plugin")
    process = await cluster.process(**acorn_settings(world.url, PYTHONPATH=installed, **DRY)).start()
    await place(session, process, "bought", MARKET)
    [filled] = await until_all_final(session, process)
    # The broker's ask, which stands still: the market of the paper exchange moves.
    assert (filled["venue"], filled["status"], filled["avgPrice"]) == ("paper", "FILLED", 150.01)
    assert (await get(session, process, "/quotes/USDJPY"))["bid"] == 149.99

    # Without quotes there is no market: nothing is filled until the broker is back.
    world.close()

    async def has_no_quote() -> bool:
        return await status_of_quote(session, process) != 200

    await until(has_no_quote, lambda: process.log)
    await place(session, process, "waiting", price=1000)
    await until_statuses(session, process, "FILLED", "WORKING")
    await world.start()
    await until_statuses(session, process, "FILLED", "FILLED")
    assert await asyncio.to_thread(process.stop) == 0
    assert world.log.read_text() == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"VENUE_QUOTES_PAPER": "venue:oak"}, "VENUE_QUOTES_PAPER: 'oak' is not another venue with quotes of its own"),
        ({"VENUE_QUOTES_PAPER": "venue:paper"}, "quotes of its own: acorn"),
        ({"VENUE_QUOTES_ACORN": "none"}, "quotes of its own: none"),
        (
            {"VENUE_QUOTES_ACORN": "venue:paper", "VENUE_QUOTES_PAPER": "venue"},
            "VENUE_QUOTES_ACORN: only a paper exchange",
        ),
        ({"VENUE_QUOTES_PAPER": "venue:"}, "must be venue, venue:NAME, none or file:PATH"),
    ],
)
def test_a_wrong_source_stops_the_start_with_its_name(changes: dict[str, str], said: str, tmp_path: Path) -> None:
    settings = acorn_settings(
        "http://127.0.0.1:1",
        SWITCHYARD_DATA_DIR=str(tmp_path / "var"),
        PYTHONPATH=plugin_path(tmp_path / "plugin"),
        **{**DRY, **changes},
    )
    ended = run_command("up", **settings)
    assert ended.returncode != 0 and said in ended.stderr, ended.stderr
