"""A venue that cannot be reached is logged when it goes and when it comes back, not with every try."""

import asyncio
import contextlib
from pathlib import Path

import aiohttp

from tests.support.polling import until
from tests.support.process import Process
from tests.support.serving import serving
from tests.support.venue_process import VenueProcess


class DeafBroker:
    """Closes each connection after the first line; counts the tries."""

    def __init__(self) -> None:
        self.tries = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            self.tries += b"open=true" in await reader.readline()


async def test_a_broker_is_logged_when_it_goes_and_when_it_comes_back(
    tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    broker = VenueProcess(tmp_path / "broker")
    settings = broker.client_settings(VENUE_SWEEP_SEC_SIM="0.5", SWITCHYARD_LOG_LEVEL="info")
    process = Process(tmp_path, **settings)
    try:
        deaf = DeafBroker()
        async with serving(deaf.serve, broker.port):
            await process.start()
            await until(lambda: deaf.tries >= 4, lambda: process.log)
        assert process.log.count("venue_not_synced") == 1
        await broker.start()
        await until(lambda: "venue_synced" in process.log)
        order = {"symbol": "USDJPY", "side": "BUY", "type": "LIMIT", "qty": 1000, "price": 1, "timeInForce": "GTC"}
        async with session.post(f"{process.url}/orders", json=order, headers=process.headers()) as placed:
            assert placed.status == 202
        await until(lambda: len(broker.orders()) == 1)
        await until(lambda: answering_seconds(process, session), lambda: process.log)
        broker.kill()
        deaf = DeafBroker()
        async with serving(deaf.serve, broker.port):
            # The open order is compared with the broker again and again.
            await until(lambda: deaf.tries >= 4 and "venue_unheard" in process.log, lambda: process.log)
            await until(lambda: "venue_not_answering" in process.log)
        await broker.start()
        await until(lambda: "venue_answering_again" in process.log and "venue_heard_again" in process.log)
        for event in ("venue_not_answering", "venue_unheard", "sweep_skipped", "venue_not_synced"):
            assert process.log.count(event) == 1, process.log
    finally:
        process.close()
        broker.close()


async def answering_seconds(process: Process, session: aiohttp.ClientSession) -> bool:
    """Whether the watch of the venue has had a good probe."""
    async with session.get(f"{process.url}/metrics") as response:
        return 'venue_answering_seconds{venue="sim"} 0.0' not in await response.text()
