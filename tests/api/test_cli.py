"""The commands of `switchyard`, each in its own process, against a running gateway."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.faulty_proxy import faulty_proxy
from tests.support.gateway import RunningGateway
from tests.support.polling import DEADLINE_SECONDS, until
from tests.support.ports import free_port
from tests.support.process import COMMAND, SECRET, Process, clean_environment, run_command

FAR_AWAY = "0.001"  # a limit price that the market never reaches


@pytest.fixture
def gateway_url(embedded: RunningGateway) -> str:
    return embedded.url


async def run(url: str, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a command against the gateway, in a thread, because the gateway runs in the test's event loop."""
    settings = {"JWT_HS256_SECRET": SECRET, **settings}
    return await asyncio.to_thread(run_command, *arguments, "--url", url, **settings)


async def run_json(url: str, *arguments: str) -> Any:
    done = await run(url, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Check that an expected error is one line on stderr and nothing else."""
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    for word in ("switchyard: ", *words):
        assert word in done.stderr


async def test_order_with_wait_follows_the_order_until_it_is_filled(gateway_url: str) -> None:
    order = await run_json(gateway_url, "order", "buy", "USDJPY", "1000", "--wait")
    assert (order["status"], order["side"], order["qty"]) == ("FILLED", "BUY", 1000)


async def test_a_wait_ends_after_its_time_with_the_order_as_it_is_and_what_to_do(gateway_url: str) -> None:
    resting = ("order", "buy", "USDJPY", "1000", "--limit", "1", "--wait", "--timeout", "1s", "--json")
    done = await run(gateway_url, *resting)
    order = json.loads(done.stdout)
    assert (done.returncode, order["status"]) == (3, "WORKING")
    assert "the order is WORKING after 1s and stays in force" in done.stderr
    assert f"switchyard cancel {order['orderId']}" in done.stderr
    done = await run(gateway_url, "order", "buy", "USDJPY", "1000", "--wait", "--timeout", "soon")
    assert (done.returncode, "--timeout" in done.stderr) == (2, True)


async def test_every_option_of_an_order_is_sent(gateway_url: str) -> None:
    options = ["--limit", "9.00001", "--tif", "gtc", "--client-order-id", "mine", "--strategy", "carry"]
    placed = await run_json(gateway_url, "order", "SELL", "EURUSD", "2000", *options, "--tag", "a", "--tag", "b")
    order = (await run_json(gateway_url, "show", placed["orderId"]))["order"]
    assert (order["side"], order["type"], order["price"]) == ("SELL", "LIMIT", 9.00001)
    assert (order["timeInForce"], order["clientOrderId"], order["strategy"]) == ("GTC", "mine", "carry")
    assert order["tags"] == ["a", "b"]
    end = ("--tif", "gtd", "--expire-at", "2099-12-31T17:00:00+09:00")
    placed = await run_json(gateway_url, "order", "buy", "USDJPY", "1000", "--limit", "1", "--post-only", *end)
    order = (await run_json(gateway_url, "show", placed["orderId"]))["order"]
    assert (order["postOnly"], order["timeInForce"], order["expiresAt"]) == (True, "GTD", "2099-12-31T08:00:00Z")
    for lacking, name in ((("--display", "100"), "displayQty"), (("--reduce-only",), "reduceOnly")):
        done = await run(gateway_url, "order", "buy", "USDJPY", "1000", "--limit", "1", *lacking)
        assert (done.returncode, f"does not take {name}" in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize("time", ["tomorrow", "2099-12-31T17:00:00"])
async def test_a_time_without_an_offset_is_no_end_of_an_order(gateway_url: str, time: str) -> None:
    done = await run(gateway_url, "order", "buy", "USDJPY", "1000", "--limit", "1", "--tif", "GTD", "--expire-at", time)
    assert (done.returncode, repr(time) in done.stderr) == (2, True)


async def test_a_repeated_key_returns_the_first_order(gateway_url: str) -> None:
    first = await run_json(gateway_url, "order", "buy", "USDJPY", "1000", "--key", "k-1")
    again = await run_json(gateway_url, "order", "buy", "USDJPY", "1000", "--key", "k-1")
    assert (first["replayed"], again["replayed"]) == (False, True)
    assert first["orderId"] == again["orderId"]
    assert (await run(gateway_url, "order", "buy", "USDJPY", "1000", "--key", "k-1")).stdout.startswith(
        f"{first['orderId']} ACCEPTED (placed before"
    )


async def test_open_orders_are_listed_and_cancelled(gateway_url: str, embedded: RunningGateway) -> None:
    await run_json(gateway_url, "order", "buy", "USDJPY", "1000", "--wait")
    placed = await run_json(gateway_url, "order", "buy", "USDJPY", "1000", "--limit", FAR_AWAY)
    await embedded.until_status(placed["orderId"], "WORKING")
    orders = await run_json(gateway_url, "orders", "--status", "working", "--status", "ACCEPTED", "--symbol", "USDJPY")
    assert [order["orderId"] for order in orders] == [placed["orderId"]]
    cancelled = await run_json(gateway_url, "cancel", placed["orderId"])
    assert cancelled == {"orderId": placed["orderId"], "status": "CANCEL_REQUESTED"}
    await embedded.until_status(placed["orderId"], "CANCELED")


async def test_the_newest_orders_are_listed_up_to_the_limit(gateway_url: str, embedded: RunningGateway) -> None:
    placed = [(await embedded.place()).json["orderId"] for _ in range(3)]
    orders = await run_json(gateway_url, "orders", "--limit", "2")
    assert [order["orderId"] for order in orders] == placed[:0:-1]


async def test_an_order_is_shown_with_its_events(gateway_url: str, embedded: RunningGateway) -> None:
    order_id = (await embedded.place()).json["orderId"]
    await embedded.until_status(order_id, "FILLED")
    shown = await run_json(gateway_url, "show", order_id)
    assert shown["order"]["status"] == "FILLED"
    assert shown["events"] == (await embedded.get(f"/orders/{order_id}/events")).json["events"]


async def test_tables_do_not_truncate_ids_and_amounts(gateway_url: str, embedded: RunningGateway) -> None:
    order_id = (await embedded.place(clientOrderId="[red]not markup[/red]")).json["orderId"]
    await embedded.until_status(order_id, "FILLED")
    listed = await run(gateway_url, "orders", "--wide")
    shown = await run(gateway_url, "show", order_id)
    for done in (listed, shown):
        assert done.returncode == 0
        for text in (order_id, "BUY 1000 USDJPY market IOC", "FILLED"):
            assert text in done.stdout
    assert "[red]not markup[/red]" in shown.stdout
    assert "OrderAccepted" in shown.stdout


async def test_a_printed_token_gives_access_to_its_account_only(gateway_url: str, embedded: RunningGateway) -> None:
    order_id = (await embedded.place(account="first")).json["orderId"]
    for account, code in (("first", 0), ("second", 1)):
        printed = await asyncio.to_thread(run_command, "token", "--account", account, JWT_HS256_SECRET=SECRET)
        assert re.fullmatch(r"[\w-]+\.[\w-]+\.[\w-]+\n", printed.stdout)
        # With a token and an address the command needs neither the secret nor other settings.
        done = await asyncio.to_thread(
            run_command, "show", order_id, "--url", gateway_url, SWITCHYARD_TOKEN=printed.stdout
        )
        assert done.returncode == code, done.stderr


async def test_without_url_the_address_comes_from_the_settings(embedded: RunningGateway) -> None:
    port = embedded.url.rpartition(":")[2]
    done = await asyncio.to_thread(run_command, "orders", "--json", JWT_HS256_SECRET=SECRET, SWITCHYARD_PORT=port)
    assert json.loads(done.stdout) == []


async def test_a_rejection_exits_with_1(gateway_url: str, embedded: RunningGateway) -> None:
    order_id = (await embedded.place()).json["orderId"]
    await embedded.until_status(order_id, "FILLED")
    for arguments, word in (
        (("show", "ord_missing"), "NOT_FOUND"),
        (("watch", "ord_missing"), "NOT_FOUND"),
        (("cancel", order_id), "ORDER_FINAL"),
        (("order", "buy", "USDJPY", "0.5"), "qty"),
    ):
        done = await run(gateway_url, *arguments, "--json")
        assert done.returncode == 1
        assert_one_line(done, word)
    done = await run(gateway_url, "orders", SWITCHYARD_TOKEN="nonsense")
    assert done.returncode == 1
    assert_one_line(done, "TOKEN_")


async def test_a_wait_for_a_rejected_order_exits_with_1(tmp_path: Path) -> None:
    process = Process(tmp_path, EXCHANGE_SIM_REJECT_ALL_SIM="true")
    try:
        await process.start()
        done = await run(process.url, "order", "buy", "USDJPY", "1000", "--wait", "--json")
    finally:
        process.close()
    assert done.returncode == 1
    assert json.loads(done.stdout)["status"] == "REJECTED"


@pytest.mark.parametrize(
    "arguments",
    [
        ("order", "hold", "USDJPY", "1"),
        ("order", "buy", "USDJPY", "much"),
        ("order", "buy", "USDJPY", "0"),
        ("order", "buy", "USDJPY", "1", "--tif", "SOON"),
        ("order", "buy", "USDJPY", "1", "--key", "two words"),
        ("orders", "--status", "GONE"),
        ("orders", "--limit", "0"),
        ("orders", "--url", "nonsense"),
        ("token", "--ttl", "soon"),
        ("token", "--account", "a b"),
        ("no-such-command",),
    ],
)
def test_an_invalid_command_line_exits_with_2(arguments: tuple[str, ...]) -> None:
    done = run_command(*arguments, JWT_HS256_SECRET=SECRET)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_an_unreachable_gateway_exits_with_3() -> None:
    for arguments in (("orders",), ("order", "buy", "USDJPY", "1"), ("watch",)):
        url = f"http://127.0.0.1:{free_port()}"
        done = run_command(*arguments, "--json", "--url", url, JWT_HS256_SECRET=SECRET)
        assert done.returncode == 3
        assert_one_line(done, "Connection refused")
        assert "--key" not in done.stderr


async def test_an_order_without_a_response_exits_with_3_and_names_the_key_for_a_retry(gateway_url: str) -> None:
    async with faulty_proxy(gateway_url) as proxy:
        proxy.lose_answer(times=5)
        done = await run(proxy.url, "order", "buy", "USDJPY", "1000", "--json")
        assert done.returncode == 3
        assert_one_line(done, "retry with --key ")
    key = done.stderr.split()[-1]
    assert (await run_json(gateway_url, "order", "buy", "USDJPY", "1000", "--key", key))["replayed"]


def test_an_invalid_setting_exits_with_4(tmp_path: Path) -> None:
    for settings, word in (
        ({"SWITCHYARD_PORT": "many"}, "SWITCHYARD_PORT"),
        ({"SWITCHYARD_DATA_DIR": str(tmp_path)}, "has no jwt_secret"),
    ):
        done = run_command("orders", **settings)
        assert done.returncode == 4
        assert_one_line(done, word)
    assert list(tmp_path.iterdir()) == []


async def test_watch_follows_all_orders_across_a_restart_without_gap_or_repeat(tmp_path: Path) -> None:
    process = Process(tmp_path)
    try:
        await process.start()
        async with started_command("watch", "--url", process.url, "--json", stdout=PIPE) as watch:
            assert (await message(watch))["event"] == "ready"
            before = await run_json(process.url, "order", "buy", "USDJPY", "1000")
            first = await messages_until_filled(watch, before["orderId"])
            process.stop()
            await process.start()
            after = await run_json(process.url, "order", "buy", "USDJPY", "1000")
            second = await messages_until_filled(watch, after["orderId"])
            assert await interrupt(watch) == 0
    finally:
        process.close()
    for messages in (first, second):
        updates = [each for each in messages if each["event"] == "order_update"]
        assert [update["data"]["version"] for update in updates] == list(range(1, len(updates) + 1))


async def test_watch_shows_a_table_on_a_terminal(gateway_url: str, embedded: RunningGateway) -> None:
    earlier = (await embedded.place(qty=3000)).json["orderId"]
    terminal, inside = os.openpty()
    os.set_blocking(terminal, False)
    screen = {"COLUMNS": "120", "LINES": "40", "TERM": "xterm"}
    try:
        async with started_command("watch", "--url", gateway_url, stdout=inside, settings=screen) as watch:
            await until_shown(terminal, earlier[-8:])
            order_id = (await embedded.place(qty=7000)).json["orderId"]
            await until_shown(terminal, order_id[-8:], "BUY 7000 USDJPY", "FILLED")
            assert await interrupt(watch) == 0
    finally:
        os.close(terminal)
        os.close(inside)


async def test_an_interrupted_wait_exits_with_130(gateway_url: str) -> None:
    arguments = ("order", "buy", "USDJPY", "1000", "--limit", FAR_AWAY, "--wait", "--url", gateway_url)
    async with started_command(*arguments, stderr=PIPE) as waiting:
        assert waiting.stderr is not None
        async with asyncio.timeout(DEADLINE_SECONDS):
            while b"WORKING" not in await waiting.stderr.readline():
                pass
        assert await interrupt(waiting) == 130
        assert b"Traceback" not in await waiting.stderr.read()


def test_the_command_imports_no_heavy_library_at_start() -> None:
    heavy = {"aiohttp", "rich.live", "uvicorn", "starlette", "apsw", "asyncpg"}
    code = f"import sys, switchyard.entrypoints.cli.main; print(*sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@asynccontextmanager
async def started_command(
    *arguments: str, stdout: int | None = None, stderr: int | None = None, settings: Mapping[str, str] | None = None
) -> AsyncGenerator[asyncio.subprocess.Process, None]:
    """A command that runs until it is interrupted; killed when the context ends.

    A shell without job control starts background jobs with SIGINT ignored, and children inherit that. The command is
    started with the default action, as on a terminal, so that the tests also pass under nohup and in CI. `env` sets it:
    Python code between fork and exec may wait for ever for a lock that a thread of the gateway held.
    """
    process = await asyncio.create_subprocess_exec(
        "env",
        "--default-signal=INT",
        COMMAND,
        *arguments,
        env=clean_environment(JWT_HS256_SECRET=SECRET, **(settings or {})),
        stdout=stdout,
        stderr=stderr,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def interrupt(process: asyncio.subprocess.Process) -> int:
    """Send what Ctrl-C sends, and return the exit code."""
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(DEADLINE_SECONDS):
        return await process.wait()


async def message(watch: asyncio.subprocess.Process) -> Any:
    assert watch.stdout is not None
    async with asyncio.timeout(DEADLINE_SECONDS):
        return json.loads(await watch.stdout.readline())


async def messages_until_filled(watch: asyncio.subprocess.Process, order_id: str) -> list[Any]:
    """The order's messages, up to the one with the status FILLED."""
    messages = []
    while True:
        each = await message(watch)
        if each["data"].get("orderId") == order_id:
            messages.append(each)
            if each["event"] == "order_update" and each["data"]["status"] == "FILLED":
                return messages


async def until_shown(terminal: int, *words: str) -> None:
    """Wait until the terminal has shown all of these words since the call."""
    screen = ""

    def are_shown() -> bool:
        nonlocal screen
        with contextlib.suppress(BlockingIOError):
            screen += os.read(terminal, 65536).decode("utf-8", "replace")
        return all(word in screen for word in words)

    await until(are_shown)
