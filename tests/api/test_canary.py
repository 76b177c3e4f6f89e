"""`switchyard canary`: a marked order through gateway, venue and books, with a result that follows its contract."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.contract import problems
from tests.support.contract_files import CANARY
from tests.support.gateway import running_gateway
from tests.support.ports import free_port
from tests.support.process import Process, run_command

ALL_STEPS = ["ready", "accepted", "repeated", "sent", "ended", "booked"]


async def run_canary(*arguments: str, **settings: str) -> tuple[int, Any]:
    done = await asyncio.to_thread(run_command, "canary", *arguments, **settings)
    assert done.stdout, done.stderr
    result = json.loads(done.stdout)
    assert problems(CANARY, result) == []
    return done.returncode, result


def steps_of(result: Any) -> list[tuple[str, bool]]:
    return [(step["step"], step["ok"]) for step in result["steps"]]


async def test_a_canary_is_filled_and_booked_or_cancelled_as_asked(tmp_path: Path) -> None:
    process = Process(tmp_path, SWITCHYARD_BACKOFFICE="true")
    try:
        await process.start()
        code, filled = await run_canary("buy", "USDJPY", "1000", **process.settings)
        assert steps_of(filled) == [(step, True) for step in ALL_STEPS]
        assert (code, filled["ok"], filled["status"]) == (0, True, "FILLED")
        assert filled["steps"][-1]["detail"] == "1 fills of 1000"
        # Far from the market: nothing is traded, and the books have the memo of the order.
        code, rested = await run_canary("sell", "USDJPY", "1000", "--limit", "900", **process.settings)
        assert (code, rested["ok"], rested["status"]) == (0, True, "CANCELED")
        code, rejected = await run_canary("buy", "NOSUCH", "1000", **process.settings)
        assert (code, rejected["ok"], rejected["orderId"]) == (1, False, None)
        assert steps_of(rejected) == [("ready", True), ("accepted", False)]
        assert "UNKNOWN_SYMBOL" in rejected["steps"][-1]["detail"]
    finally:
        process.close()


async def test_a_canary_names_the_step_at_which_the_path_ends(tmp_path: Path) -> None:
    venue = f"http://127.0.0.1:{free_port()}"
    async with running_gateway(tmp_path, VENUE_URL_SIM=venue) as gateway:
        token = gateway.token("canary")
        # Long enough for the steps before the send on a busy machine.
        waits = ("buy", "USDJPY", "1000", "--limit", "1", "--no-books", "--seconds", "15", "--url", gateway.url)
        code, result = await run_canary(*waits, SWITCHYARD_TOKEN=token)
        assert (code, result["status"]) == (1, "ACCEPTED")
        assert steps_of(result) == [("ready", True), ("accepted", True), ("repeated", True), ("sent", False)]
        order = await gateway.order(result["orderId"], account="canary")
        assert (order["strategy"], order["tags"]) == ("canary", ["canary"])
        # It must not be sent to the venue hours later, when nobody looks at the canary any more.
        assert "its cancel was requested" in result["steps"][-1]["detail"]
        await gateway.until_status(result["orderId"], "CANCELED", account="canary")


@pytest.mark.parametrize("arguments", [("buy", "USDJPY", "0"), ("hold", "USDJPY", "1")])
def test_a_wrong_argument_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    assert run_command("canary", *arguments).returncode == 2
