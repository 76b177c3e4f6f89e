"""A venue that revokes a key: one order ends, the others are rejected or wait, and a new key in its file is enough to
go on. The broker is that of the example plugin, and once the simulator; their own logs and counts are the judge.
"""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.acorn import SYMBOLS, AcornWorld, acorn_settings, acorn_world, plugin_path
from tests.support.cluster import Cluster
from tests.support.orders import PATIENT, all_orders, get, place, until_all_final, until_statuses
from tests.support.polling import until
from tests.support.process import Process
from tests.support.scripted_server import reply
from tests.support.serving import serving

ORDERS = 12


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[AcornWorld]:
    world = acorn_world(tmp_path / "broker")
    await world.start()
    yield world
    world.close()


class Keys:
    """The file with the secrets, as an operator replaces it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, key: str, secret: str) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(f"# of the desk\n\nkey={key}\nsecret={secret}\n")
        new.replace(self.path)


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    keys = Keys(tmp_path / "acorn.keys")
    keys.write("key", "secret")
    return keys


@pytest.fixture
def venue_settings(tmp_path: Path, world: AcornWorld, keys: Keys) -> dict[str, str]:
    settings = acorn_settings(world.url, PYTHONPATH=plugin_path(tmp_path / "plugin"))
    del settings["VENUE_SECRETS_ACORN"]
    return {**settings, "VENUE_SECRETS_ACORN_FILE": str(keys.path)}


@pytest.fixture
def settings(venue_settings: dict[str, str], engine_settings: dict[str, str]) -> dict[str, str]:
    return {**venue_settings, **engine_settings}


async def post(
    session: aiohttp.ClientSession, process: Process, key: str, account: str = "demo"
) -> tuple[int, str | None]:
    """Place an order; returns the status and the reason."""
    headers = process.headers(account, key=key)
    async with session.post(f"{process.url}/orders", json=PATIENT, headers=headers) as response:
        body = await response.json()
        return response.status, body.get("reason")


async def state_of(session: aiohttp.ClientSession, process: Process) -> tuple[str, str | None]:
    [venue] = (await get(session, process, "/venues"))["venues"]
    return venue["state"], venue["reason"]


async def until_paused(session: aiohttp.ClientSession, process: Process) -> None:
    async def is_paused() -> bool:
        return await state_of(session, process) == ("closed", "CREDENTIAL_PAUSED")

    await until(is_paused, lambda: process.log)


async def until_placed(session: aiohttp.ClientSession, process: Process, key: str, account: str = "demo") -> None:
    """Place an order that was rejected until now: its key was not used."""

    async def is_placed() -> bool:
        return (await post(session, process, key, account))[0] == 202

    await until(is_placed, lambda: process.log)


async def counts(session: aiohttp.ClientSession, process: Process) -> Counter[str]:
    return Counter(order["status"] for order in await all_orders(session, process))


async def test_a_revoked_key_costs_one_order_and_a_new_one_trades_without_a_restart(
    cluster: Cluster, session: aiohttp.ClientSession, world: AcornWorld, keys: Keys, settings: dict[str, str]
) -> None:
    process = await cluster.process(**settings).start()
    await place(session, process, "before")
    await until_statuses(session, process, "FILLED")

    await world.change_keys("second", "another secret")
    await world.fault("delay", 1)  # meanwhile the others are accepted
    answers = Counter(await asyncio.gather(*(post(session, process, f"key-{number}") for number in range(ORDERS))))
    assert set(answers) <= {(202, None), (503, "CREDENTIAL_PAUSED")}
    await until_paused(session, process)
    assert await post(session, process, "late") == (503, "CREDENTIAL_PAUSED")
    assert await post(session, process, "before") == (202, None), "a repeat gets its order"
    waiting = answers[202, None] - 1
    assert waiting > 0
    # Those that were under way go back to the queue, so that one order alone has met it.
    await until_statuses(session, process, "FILLED", "REJECTED", "ACCEPTED")
    assert await counts(session, process) == Counter({"FILLED": 1, "REJECTED": 1, "ACCEPTED": waiting})

    process.kill()
    await process.start()
    await until_paused(session, process)
    assert await post(session, process, "late") == (503, "CREDENTIAL_PAUSED")
    assert (await counts(session, process))["REJECTED"] == 1, "the restart cost no other order"

    keys.write("second", "another secret")
    await until_placed(session, process, "late")
    orders = await until_all_final(session, process)
    assert Counter(order["status"] for order in orders) == Counter({"FILLED": waiting + 2, "REJECTED": 1})
    assert await world.all_requests() >= len(orders)
    executions = [json.loads(line)["what"] for line in world.log.read_text().splitlines()].count("traded")
    assert executions == waiting + 2
    assert "another secret" not in process.log and "second" not in process.log.replace("seconds", "")


async def test_a_key_without_the_permission_to_trade_costs_one_order_although_it_may_ask(
    cluster: Cluster, session: aiohttp.ClientSession, world: AcornWorld, keys: Keys, settings: dict[str, str]
) -> None:
    process = await cluster.process(**settings).start()
    await place(session, process, "before")
    await until_statuses(session, process, "FILLED")
    await world.let_trade(False)
    await place(session, process, "met")
    await until_paused(session, process)
    await until_statuses(session, process, "FILLED", "REJECTED")
    process.kill()
    await process.start()
    await until_paused(session, process)
    # All questions are answered, so only changed keys, or the trial after a minute, open it.
    assert await post(session, process, "late") == (503, "CREDENTIAL_PAUSED")
    await world.change_keys("second", "another secret")
    await world.let_trade(True)
    keys.write("second", "another secret")
    await until_placed(session, process, "late")
    orders = await until_all_final(session, process)
    assert Counter(order["status"] for order in orders) == Counter({"FILLED": 2, "REJECTED": 1})


async def test_gateways_reject_what_a_worker_must_not_send(
    cluster: Cluster,
    session: aiohttp.ClientSession,
    world: AcornWorld,
    keys: Keys,
    venue_settings: dict[str, str],
    database_url: str,
) -> None:
    settings = {**venue_settings, "SWITCHYARD_DATABASE_URL": database_url}
    gateway = await cluster.process("gateway", "gateway", **settings).start()
    worker = await cluster.process("worker", "worker", **settings).start()
    await place(session, gateway, "before")
    await until_statuses(session, gateway, "FILLED")
    await world.change_keys("second", "another secret")
    await place(session, gateway, "met")
    await until_paused(session, gateway)
    await until_statuses(session, gateway, "FILLED", "REJECTED")
    worker.kill()
    assert await post(session, gateway, "late") == (503, "CREDENTIAL_PAUSED")
    worker = await cluster.process("worker", "another", **settings).start()
    assert await post(session, gateway, "late") == (503, "CREDENTIAL_PAUSED")
    keys.write("second", "another secret")
    await until_placed(session, gateway, "late")
    orders = await until_all_final(session, gateway)
    assert Counter(order["status"] for order in orders) == Counter({"FILLED": 2, "REJECTED": 1})
    assert await world.all_requests() == 3


class TokenDoor:
    """Lets requests with the present token through to a broker, and answers all others with 401."""

    def __init__(self, port: int, token: str) -> None:
        self.token = token
        self.rejected_orders = 0
        self._port = port

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            if f"X-Api-Key: {self.token}\r\n".encode() not in head:
                self.rejected_orders += head.startswith(b"POST /orders ")
                writer.write(reply(401, {"error": "BAD_TOKEN", "message": "unknown token"}))
                await writer.drain()
                return
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
            back.write(head)
            await asyncio.gather(_copy(reader, back), _copy(there, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def test_the_token_of_a_broker_of_our_protocol_rotates_in_its_file(
    cluster: Cluster, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    broker = await cluster.broker(dedupe="open_only").start()  # a connection for each request
    door = TokenDoor(broker.port, "first-token")
    token = tmp_path / "token"
    token.write_text("first-token\n")
    async with serving(door.serve) as port:
        settings = broker.client_settings(VENUE_URL_SIM=f"http://127.0.0.1:{port}", VENUE_TOKEN_HEADER_SIM="X-Api-Key")
        process = await cluster.process(**settings, VENUE_TOKEN_SIM_FILE=str(token)).start()
        await place(session, process, "before")
        await until_statuses(session, process, "FILLED")
        door.token = "second-token"
        await place(session, process, "met")
        await until_paused(session, process)
        await until_statuses(session, process, "FILLED", "REJECTED")
        assert await post(session, process, "late") == (503, "CREDENTIAL_PAUSED")
        token.write_text("second-token\n")
        await until_placed(session, process, "late")
        await until_all_final(session, process)
        assert await counts(session, process) == Counter({"FILLED": 2, "REJECTED": 1})
        assert door.rejected_orders == 1
        assert "second-token" not in process.log
        assert await asyncio.to_thread(process.stop) == 0
    assert sum(broker.check_nothing_twice().values()) == 2


async def test_accounts_with_keys_of_their_own_trade_with_them_and_one_that_is_revoked_stops_its_account_alone(
    cluster: Cluster, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    # The same broker, as far as the settings can tell; each process of it knows one key.
    worlds = {name: acorn_world(tmp_path / name) for name in ("a", "b")}
    settings = {"SOR_VENUES": "acorn_a,acorn_b", "SOR_ACCOUNT_ROUTES": "demo=acorn_a,desk=acorn_b"}
    keys = {name: Keys(tmp_path / f"{name}.keys") for name in worlds}
    for name, world in worlds.items():
        await world.start()
        await world.change_keys(f"key-of-{name}", f"secret-of-{name}")
        keys[name].write(f"key-of-{name}", f"secret-of-{name}")
        settings |= {
            f"VENUE_URL_ACORN_{name.upper()}": f"acorn:{world.url}",
            f"VENUE_SECRETS_ACORN_{name.upper()}_FILE": str(keys[name].path),
            f"VENUE_SYMBOLS_ACORN_{name.upper()}": SYMBOLS,
        }
    try:
        process = await cluster.process(**settings, PYTHONPATH=plugin_path(tmp_path / "plugin")).start()
        for account in ("demo", "desk"):
            assert await post(session, process, "first", account) == (202, None)
        await until(lambda: all(b"traded" in world.log.read_bytes() for world in worlds.values()))
        await worlds["b"].change_keys("new", "new secret")

        assert await post(session, process, "met", "desk") == (202, None)

        async def is_paused() -> bool:
            states = {each["venue"]: each["reason"] for each in (await get(session, process, "/venues"))["venues"]}
            return states == {"acorn_a": None, "acorn_b": "CREDENTIAL_PAUSED"}

        await until(is_paused, lambda: process.log)
        assert await post(session, process, "late", "desk") == (503, "CREDENTIAL_PAUSED")
        assert await post(session, process, "second", "demo") == (202, None)
        orders = await until_all_final(session, process)
        assert {order["venue"] for order in orders} == {"acorn_a"}
        assert Counter(order["status"] for order in orders) == Counter({"FILLED": 2})
        keys["b"].write("new", "new secret")
        await until_placed(session, process, "last", "desk")
    finally:
        for world in worlds.values():
            world.close()
