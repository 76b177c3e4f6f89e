"""The checks that give one key one order are removed from a real database, and the harness detects the second order.

The append looks the key up under the lock of the only writer, so dropping the unique indexes alone is not enough.
"""

import pytest

from tests.support.cluster import Cluster
from tests.support.dropped_index import drop_indexes_of_postgres, drop_indexes_of_sqlite, stop_looking_on_postgres
from tests.support.evidence import tool_settings
from tests.support.exactly_once import check_acknowledged, settled
from tests.support.load import LoadClient
from tests.support.planted import planted_command
from tests.support.polling import until
from tests.support.process import Process, run_command
from tests.support.venue_process import VenueProcess

KEYS = [f"key-{number}" for number in range(1, 80, 2)]


@pytest.fixture
async def broker(cluster: Cluster) -> VenueProcess:
    """A venue that accepts a client order id again once its order has ended, so it hides no duplicate."""
    return await cluster.broker(dedupe="open_only").start()


@pytest.fixture
def process(engine_settings: dict[str, str], broker: VenueProcess, cluster: Cluster) -> Process:
    """A process whose database has its schema; not started."""
    process = cluster.process(**engine_settings, **broker.client_settings())
    upgraded = run_command("db", "upgrade", **tool_settings(process))
    assert upgraded.returncode == 0, upgraded.stderr
    return process


async def drop_indexes(process: Process) -> None:
    url = process.settings.get("SWITCHYARD_DATABASE_URL")
    if url:
        await drop_indexes_of_postgres(url)
    else:
        drop_indexes_of_sqlite(process.folder / "var/switchyard.db")


async def stop_looking(process: Process) -> None:
    url = process.settings.get("SWITCHYARD_DATABASE_URL")
    if url:
        await stop_looking_on_postgres(url)
    else:
        process.command = planted_command("keys_are_not_stored")


async def test_without_the_indexes_one_key_is_still_one_order(process: Process, broker: VenueProcess) -> None:
    await drop_indexes(process)
    await repeat_around_a_kill(process, broker)


async def test_the_harness_detects_the_second_order_without_indexes_and_lookup(
    process: Process, broker: VenueProcess
) -> None:
    await drop_indexes(process)
    await stop_looking(process)
    with pytest.raises(AssertionError, match="stands for two orders"):
        await repeat_around_a_kill(process, broker)


async def repeat_around_a_kill(process: Process, broker: VenueProcess) -> None:
    """Post each key before the process is killed, and several times after its restart."""
    await process.start()
    client = LoadClient(process)
    await client.insist(KEYS)
    await until(lambda: len(broker.orders()) == len(KEYS))
    process.kill()
    await process.start()
    await client.insist(KEYS * 3)
    check_acknowledged(client, await settled(process, broker))
