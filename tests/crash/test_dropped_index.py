"""What keeps one key from standing for two orders is taken away in the real database, and the harness says so.

The look decides, under the lock of the one writer, so that dropping the unique indexes alone makes no second order.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dropped_index import drop_indexes_of_postgres, drop_indexes_of_sqlite, stop_looking_on_postgres
from tests.support.exactly_once import check_acknowledged, settled
from tests.support.load import Client
from tests.support.planted import planted_command
from tests.support.postgres import PostgresServer
from tests.support.process import ROOT, Process, run_command, until
from tests.support.simulator import Simulator, venue_settings

KEYS = [f"key-{number}" for number in range(1, 80, 2)]
# A venue that takes the same id again once its order has ended: it hides no duplicate of ours.
DEDUPE = "open_only"


class House:
    """A process on one engine, and its venue; guards are taken away before it starts."""

    def __init__(self, folder: Path, database_url: str | None) -> None:
        self.simulator = Simulator(folder / "venue", DEDUPE)
        self.database_url = database_url
        settings = {"SWITCHYARD_DATABASE_URL": database_url} if database_url else {}
        self.process = Process(folder, **settings, **venue_settings(DEDUPE, self.simulator), PYTHONPATH=str(ROOT))
        upgraded = run_command("db", "upgrade", SWITCHYARD_DATA_DIR=str(folder / "var"), **settings)
        assert upgraded.returncode == 0, upgraded.stderr

    async def drop_indexes(self) -> None:
        if self.database_url:
            await drop_indexes_of_postgres(self.database_url)
        else:
            drop_indexes_of_sqlite(self.process.folder / "var/switchyard.db")

    async def stop_looking(self) -> None:
        if self.database_url:
            await stop_looking_on_postgres(self.database_url)
        else:
            self.process.command = planted_command("keys_are_not_looked_up")

    def close(self) -> None:
        self.process.close()
        self.simulator.close()


@pytest.fixture(params=["sqlite", "postgres"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    url = None
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = server.create_database()
    made = House(tmp_path, url)
    yield made
    made.close()


async def test_without_the_indexes_one_key_is_still_one_order(house: House) -> None:
    await house.drop_indexes()
    await repeated_over_a_death(house)


async def test_without_indexes_and_look_there_are_two_orders_and_the_harness_fails(house: House) -> None:
    await house.drop_indexes()
    await house.stop_looking()
    with pytest.raises(AssertionError, match="stands for two orders"):
        await repeated_over_a_death(house)


async def repeated_over_a_death(house: House) -> None:
    """Each key again and again, before a death and after it."""
    await asyncio.gather(house.simulator.start(), house.process.start())
    client = Client(house.process)
    await client.insist(KEYS)
    await until(lambda: len(house.simulator.orders()) == len(KEYS))
    house.process.kill()
    await house.process.start()
    await client.insist(KEYS * 3)
    check_acknowledged(client, await settled(house.process, house.simulator, dedupe=DEDUPE))
