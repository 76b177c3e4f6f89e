"""`outbox resolve` beside a running SQLite server, over its control socket: same results as with the server stopped."""

import asyncio
import json
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from switchyard.adapters.sqlite.connections import hold_alone
from switchyard.domain.errors import TooManyKills
from switchyard.entrypoints.control import server
from switchyard.entrypoints.control.messages import REQUEST_BYTES_MAX, Declined
from switchyard.flow.kill.switch import KillSwitch
from tests.support.cluster import Cluster
from tests.support.polling import DEADLINE_SECONDS, until
from tests.support.process import Process, run_command
from tests.support.venue_process import VenueProcess

# Rests at the venue, so that no fill ends the doubt before the operator does.
ORDER = {"symbol": "USDJPY", "side": "BUY", "type": "LIMIT", "price": 1, "timeInForce": "GTC", "qty": 1000}
DECISION = ("--by", "night desk", "--reason", "seen in the venue's console")
UNKNOWN_ORDER = "ord_" + "0" * 26
Result = tuple[int, str, str]


@pytest.fixture
async def broker(cluster: Cluster) -> VenueProcess:
    return await cluster.broker(dedupe="none").start()


@pytest.fixture
async def switchyard(broker: VenueProcess, cluster: Cluster) -> Process:
    return await cluster.process(**broker.client_settings()).start()


async def in_doubt(switchyard: Process, broker: VenueProcess, fault: str = "drop_answer") -> str:
    """Place an order whose send becomes uncertain, at a venue where only an operator can resolve that."""
    async with aiohttp.ClientSession() as session:
        await broker.set_faults(**{fault: 1.0})
        async with session.post(f"{switchyard.url}/orders", json=ORDER, headers=switchyard.headers()) as response:
            order_id = str((await response.json())["orderId"])
        await until_status(session, switchyard, order_id, "UNKNOWN")
        await broker.set_faults(**{fault: 0.0})
    return order_id


async def until_status(session: aiohttp.ClientSession, switchyard: Process, order_id: str, status: str) -> None:
    async def reached() -> bool:
        async with session.get(f"{switchyard.url}/orders/{order_id}", headers=switchyard.headers()) as response:
            return bool((await response.json())["status"] == status)

    await until(reached)


async def resolve(switchyard: Process, row_id: str, verdict: str, *options: str) -> Result:
    settings = {name: value for name, value in switchyard.settings.items() if name != "SWITCHYARD_PORT"}
    done = await asyncio.to_thread(
        run_command, "outbox", "resolve", row_id, "--as", verdict, *(options or DECISION), **settings
    )
    return done.returncode, done.stdout, done.stderr


def socket_of(switchyard: Process) -> Path:
    return Path(switchyard.settings["SWITCHYARD_DATA_DIR"]) / "control.sock"


def ask(path: Path, *pieces: bytes) -> dict[str, Any]:
    """The server's reply to these bytes."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(DEADLINE_SECONDS)
        client.connect(str(path))
        with suppress(BrokenPipeError, ConnectionResetError):
            for piece in pieces:
                client.sendall(piece)
        answer: dict[str, Any] = json.loads(client.makefile("rb").readline())
        return answer


async def test_an_order_decided_as_sent_is_not_sent_again(switchyard: Process, broker: VenueProcess) -> None:
    order_id = await in_doubt(switchyard, broker)
    assert await resolve(switchyard, order_id, "sent") == (0, f"{order_id} WORKING\n", "")
    code, _, stderr = await resolve(switchyard, order_id, "sent")
    assert (code, "nothing to decide" in stderr) == (1, True)
    async with aiohttp.ClientSession() as session:
        await until_status(session, switchyard, order_id, "WORKING")
        path = f"{switchyard.url}/orders/{order_id}/events"
        async with session.get(path, headers=switchyard.headers()) as response:
            events = (await response.json())["events"]
    assert events[-1]["type"] == "OperatorDecision"
    assert events[-1]["data"]["decision"] == {"verdict": "sent", "by": DECISION[1], "reason": DECISION[3]}
    assert broker.executions() == {order_id: 1}


async def test_an_order_decided_as_not_sent_ends_and_is_not_sent(switchyard: Process, broker: VenueProcess) -> None:
    order_id = await in_doubt(switchyard, broker, "refused_5xx")
    code, printed, _ = await resolve(switchyard, order_id, "not-sent", *DECISION, "--json")
    assert code == 0
    order = json.loads(printed)
    assert (order["status"], order["reason"]) == ("CANCELED", "NOT_SENT_BY_DECISION")
    assert not broker.executions()


async def test_a_resend_that_an_operator_confirms_is_made_by_the_running_worker(
    switchyard: Process, broker: VenueProcess
) -> None:
    order_id = await in_doubt(switchyard, broker, "refused_5xx")
    assert not broker.executions()
    code, printed, _ = await resolve(switchyard, order_id, "not-sent", *DECISION, "--resend", "--yes", "--json")
    assert code == 0
    order = json.loads(printed)
    assert (order["orderId"], order["status"], order["qty"]) == (order_id, "ACCEPTED", 1000)
    async with aiohttp.ClientSession() as session:
        await until_status(session, switchyard, order_id, "WORKING")
    assert broker.executions() == {order_id: 1}


async def test_bad_input_gets_the_same_error_with_a_server_and_without(
    switchyard: Process, broker: VenueProcess
) -> None:
    order_id = await in_doubt(switchyard, broker)
    commands = {
        (UNKNOWN_ORDER, "sent"): "was not found; `switchyard outbox list`",
        ("ord_1:modify:1", "sent"): "ID",
        (f"{order_id}:cancel:1", "sent"): "not found",
        (f"{order_id}:amend:1", "sent"): "not found",
        (f"{order_id}:cancel:²", "sent"): "ID",
        ("x" * 100_000, "sent"): "ID",
        (order_id, "perhaps"): "--as",
        (order_id, "sent", "--by", "", "--reason", "why"): "by",
        (order_id, "sent", "--by", "me", "--reason", "r" * 100_000): "reason",
        (order_id, "sent", "--by", "me", "--reason", "two\nlines"): "reason",
    }
    with_server = {command: await resolve(switchyard, *command) for command in commands}
    assert switchyard.stop() == 0
    assert with_server == {command: await resolve(switchyard, *command) for command in commands}
    for command, expected in commands.items():
        code, _, stderr = with_server[command]
        assert code == (1 if "not found" in expected else 2)
        assert expected in stderr
        assert "Traceback" not in stderr


async def test_an_invalid_request_is_declined(tmp_path: Path) -> None:
    process = await Process(tmp_path).start()
    try:
        for line, expected in (
            (b"hello", "not a valid request"),
            (b"\xff", "not a valid request"),
            (b"[]", "not a valid request"),
            (b'{"command":"stop"}', "stop"),
            (b'{"command":"resolve_doubt","id":"ord_1","verdict":"sent","by":"me"}', "reason"),
            (b'{"command":"resolve_doubt","id":"ord_1","verdict":"maybe","by":"me","reason":"x"}', "verdict"),
            (b'{"command":"resolve_doubt","id":7,"verdict":"sent","by":"me","reason":"x"}', "id"),
            (b'{"command":"resolve_doubt","id":"ord_1","verdict":"sent","by":"me","reason":"x","force":1}', "force"),
            (b'{"command":"resolve_doubt","id":"ord_1","verdict":"sent","by":"\\u0000","reason":"x"}', "by"),
        ):
            answer = ask(socket_of(process), line + b"\n")
            assert (answer["answer"], answer["why"]) == ("declined", "request")
            assert expected in answer["message"]
    finally:
        process.close()


async def test_a_request_over_the_maximum_is_declined_and_the_next_one_is_served(
    switchyard: Process, broker: VenueProcess
) -> None:
    order_id = await in_doubt(switchyard, broker)
    piece = b"x" * REQUEST_BYTES_MAX
    answer = await asyncio.to_thread(ask, socket_of(switchyard), *[piece] * 64, b"\n")
    assert (answer["why"], str(REQUEST_BYTES_MAX) in answer["message"]) == ("request", True)
    assert (await resolve(switchyard, order_id, "sent"))[0] == 0


async def test_of_two_concurrent_decisions_the_second_finds_nothing_to_decide(
    switchyard: Process, broker: VenueProcess
) -> None:
    order_id = await in_doubt(switchyard, broker)
    results = await asyncio.gather(*(resolve(switchyard, order_id, verdict) for verdict in ("sent", "not-sent")))
    assert sorted(code for code, _, _ in results) == [0, 1]


async def test_of_two_concurrent_decisions_without_a_server_one_waits_for_the_other(
    switchyard: Process, broker: VenueProcess
) -> None:
    order_id = await in_doubt(switchyard, broker)
    assert switchyard.stop() == 0
    results = await asyncio.gather(*(resolve(switchyard, order_id, "sent") for _ in range(2)))
    assert sorted(code for code, _, _ in results) == [0, 1]


async def test_a_socket_left_behind_by_a_kill_is_ignored_and_then_replaced(
    switchyard: Process, broker: VenueProcess
) -> None:
    first, second = [await in_doubt(switchyard, broker) for _ in range(2)]
    path = socket_of(switchyard)
    switchyard.kill()
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert (await resolve(switchyard, first, "sent"))[0] == 0
    assert path.exists(), "a command must not remove the socket of a server"
    await switchyard.start()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (await resolve(switchyard, second, "sent"))[0] == 0
    assert switchyard.stop() == 0
    assert not path.exists()


async def test_the_data_folders_path_may_be_longer_than_a_socket_address(broker: VenueProcess, tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a folder with a long name"] * 8)
    process = await Process(deep, **broker.client_settings()).start()
    try:
        order_id = await in_doubt(process, broker)
        assert stat.S_IMODE(socket_of(process).stat().st_mode) == 0o600
        assert await resolve(process, order_id, "sent") == (0, f"{order_id} WORKING\n", "")
        assert process.stop() == 0
        assert not socket_of(process).exists()
    finally:
        process.close()


async def test_another_file_at_the_sockets_path_is_kept_and_the_server_runs_without_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "var" / "control.sock"
    path.parent.mkdir()
    path.write_text("another file")
    process = await Process(tmp_path).start()
    try:
        assert "control_socket_unavailable" in process.log
        assert path.read_text() == "another file"
        code, _, stderr = await resolve(process, UNKNOWN_ORDER, "sent")
        assert code == 4
        assert "another process" in stderr
    finally:
        process.close()


async def test_a_server_with_silent_connections_still_stops_cleanly(tmp_path: Path) -> None:
    process = await Process(tmp_path).start()
    silent = [socket.socket(socket.AF_UNIX) for _ in range(server.CONNECTIONS_MAX)]
    try:
        for client in silent:
            client.connect(str(socket_of(process)))
        answer = ask(socket_of(process), b"{}\n")
        assert (answer["why"], answer["message"]) == ("unavailable", "8 commands are open, the maximum: try again")
        assert process.stop() == 0
    finally:
        for client in silent:
            client.close()
        process.close()


async def test_a_server_that_dies_before_its_reply_leaves_the_outcome_unknown(tmp_path: Path) -> None:
    process = Process(tmp_path)
    path = socket_of(process)
    lock = hold_alone(path.with_name("switchyard.db"))
    path.with_name("switchyard.db").touch()

    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.close()

    async with await asyncio.start_unix_server(die, path):
        code, _, stderr = await resolve(process, UNKNOWN_ORDER, "sent")
    os.close(lock)
    assert code == 3
    assert "may or may not be recorded" in stderr


async def test_an_unfinished_request_is_disconnected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS_MAX", 0.01)

    async def not_called(*_: object) -> Any:
        raise AssertionError("there was no complete request")

    listening = server.ControlServer(
        tmp_path / "control.sock", not_called, cast(KillSwitch, None), lambda _: None, lambda: ()
    )
    await listening.start()
    reader, writer = await asyncio.open_unix_connection(tmp_path / "control.sock")
    writer.write(b'{"command":')
    assert await reader.read() == b""
    writer.close()
    await listening.stop()


def test_a_back_office_can_tell_the_bound_of_kills_from_other_errors() -> None:
    error = Declined.of(TooManyKills.of(4, "programs", "clear some")).error()
    assert isinstance(error, TooManyKills)
    assert str(error) == "4 kills set by programs are active, the maximum: clear some"
