"""`outbox list` and `outbox resolve` without a running server, on both engines."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from switchyard.bootstrap import open_database, upgrade_database
from switchyard.domain import decisions
from switchyard.domain.journal.changes import Change
from switchyard.domain.orders.reasons import SendCode
from switchyard.flow.sending.operator import Settling, declaration
from switchyard.settings import Settings, load_settings
from tests.support.build import VENUE, WORKER, an_accept, state_after
from tests.support.cluster import Cluster
from tests.support.memory.clock import START
from tests.support.orders import place, until_statuses
from tests.support.polling import until
from tests.support.process import run_command


@pytest.fixture
def environment(tmp_path: Path, engine_settings: dict[str, str]) -> dict[str, str]:
    return {"SWITCHYARD_DATA_DIR": str(tmp_path / "var"), **engine_settings}


def in_doubt(environment: dict[str, str], *, declares: bool = True, code: SendCode = "NETWORK_TIMEOUT") -> str:
    """Write an uncertain order into a database that no process has open; its worker declared that no lookup decides."""
    accepted = an_accept()
    attempt = decisions.begin_attempt(state_after(accepted), accepted.outbox[0], WORKER, START)
    doubt = decisions.record_doubt(state_after(attempt), attempt.outbox[0], code, None, START)
    settling = Settling(lookup="all", absent_after_seconds=None)
    declared = [Change(cursors=(declaration(VENUE, settling, lookup_decides=False),))] if declares else []
    asyncio.run(write(load_settings(environment), [*declared, accepted, attempt, doubt]))
    return accepted.orders[0].order_id


async def write(settings: Settings, changes: list[Change]) -> None:
    await upgrade_database(settings)
    database = await open_database(settings)
    for number, change in enumerate(changes):
        await database.journal.append(0, f"group-{number}", [change], START)
    await database.close()


def resolve(environment: dict[str, str], order_id: str, verdict: str, *options: str) -> "tuple[int, str]":
    done = run_command(
        "outbox", "resolve", order_id, "--as", verdict, *options,
        "--by", "night desk", "--reason", "seen in the venue's console",
        **environment,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_uncertain_rows_are_listed(environment: dict[str, str]) -> None:
    order_id = in_doubt(environment)
    [row] = json.loads(run_command("outbox", "list", "--json", **environment).stdout)
    assert row["id"] == order_id
    assert row["row"]["last_error"] == "NETWORK_TIMEOUT"
    assert order_id[-8:] in run_command("outbox", "list", **environment).stdout
    assert order_id in run_command("outbox", "list", "--wide", **environment).stdout
    assert json.loads(run_command("outbox", "list", "--status", "dead", "--json", **environment).stdout) == []


BROKER = {"VENUE_URL_SIM": "http://127.0.0.1:1", "VENUE_DEDUPE_SIM": "while_open", "VENUE_WINDOW_SEC_SIM": "10"}


@pytest.mark.parametrize("declares", [True, False])
def test_a_doubt_is_explained_but_not_its_end_while_no_worker_runs(environment: dict[str, str], declares: bool) -> None:
    """The settings of the shell name a broker with a lookup that proves absence: they are not those that decide."""
    order_id = in_doubt(environment, declares=declares)
    environment = {**environment, **BROKER}
    [listed] = json.loads(run_command("outbox", "list", "--json", **environment).stdout)
    assert (listed["nextStep"], listed["ageSeconds"] > 0) == ("unknown", True)
    shown = run_command("outbox", "show", order_id, **environment)
    assert "NETWORK_TIMEOUT; bytes of the order may have reached the venue" in shown.stdout, shown.stderr
    assert "cannot be told here" in shown.stdout and "start the worker that has sim" in shown.stdout
    told = run_command("explain", order_id, "--offline", **environment)
    assert "it cannot be told whether it settles by itself" in told.stdout, told.stderr
    explained = json.loads(run_command("outbox", "show", order_id, "--json", **environment).stdout)
    assert (explained["doubt"]["code"], explained["doubt"]["bytesSent"]) == ("NETWORK_TIMEOUT", True)


@pytest.mark.parametrize(
    ("dedupe", "step", "said"),
    [("none", "report", "it does not settle by itself"), ("open_only", "lookup", "it settles by itself")],
)
async def test_a_shell_without_the_venues_settings_tells_what_the_running_worker_does_about_a_doubt(
    environment: dict[str, str], cluster: Cluster, session: aiohttp.ClientSession, dedupe: Any, step: str, said: str
) -> None:
    broker = await cluster.broker(dedupe=dedupe, faults={"drop_answer": 1.0, "late_reports": 60.0}).start()
    await broker.set_faults(lagging_lookup=60.0)
    process = cluster.process(**broker.client_settings(VENUE_WINDOW_SEC_SIM="60"), **environment)
    await process.start()
    order_id = await place(session, process)
    await until_statuses(session, process, "UNKNOWN")

    async def is_known() -> bool:  # on PostgreSQL the worker reports within seconds
        done = await asyncio.to_thread(run_command, "outbox", "show", order_id, "--json", **environment)
        return bool(json.loads(done.stdout)["nextStep"] == step)

    await until(is_known)
    told = await asyncio.to_thread(run_command, "explain", order_id, "--offline", **environment)
    assert said in told.stdout.splitlines()[-1], told.stdout
    async with session.get(f"{process.url}/orders/{order_id}/explain", headers=process.headers()) as response:
        assert said in (await response.json())["lines"][-1]


async def test_a_gateway_without_workers_tells_what_the_worker_does_about_a_doubt(
    cluster: Cluster, session: aiohttp.ClientSession, database_url: str
) -> None:
    """The gateway's own settings have the paper exchange under the venue's name."""
    broker = await cluster.broker(dedupe="none", faults={"drop_answer": 1.0, "late_reports": 60.0}).start()
    database = {"SWITCHYARD_DATABASE_URL": database_url}
    gateway = await cluster.process("gateway", "gateway", **database).start()
    order_id = await place(session, gateway)

    async def last_line() -> str:
        async with session.get(f"{gateway.url}/orders/{order_id}/explain", headers=gateway.headers()) as response:
            return str((await response.json())["lines"][-1])

    assert (await last_line()).startswith("Now: ACCEPTED")
    worker = await cluster.process("worker", "worker", **broker.client_settings(), **database).start()
    await until_statuses(session, gateway, "UNKNOWN")

    async def is_told() -> bool:  # the gateway reads the worker's report once a second
        return "it does not settle by itself: sim has no lookup" in await last_line()

    await until(is_told)
    worker.kill()

    async def is_unknown() -> bool:  # its last report becomes stale
        return "it cannot be told whether it settles by itself" in await last_line()

    await until(is_unknown)


def test_an_unknown_row_is_not_explained(environment: dict[str, str]) -> None:
    order_id = in_doubt(environment)
    assert run_command("outbox", "show", f"{order_id}:cancel:1", **environment).returncode != 0


@pytest.mark.parametrize(("verdict", "status"), [("sent", "WORKING"), ("not-sent", "CANCELED")])
def test_a_decision_is_made_once_and_recorded_in_the_journal(
    environment: dict[str, str], verdict: str, status: str
) -> None:
    order_id = in_doubt(environment)
    assert resolve(environment, order_id, verdict) == (0, f"{order_id} {status}\n")
    code, output = resolve(environment, order_id, verdict)
    assert code == 1
    assert f"nothing to decide (night desk decided {verdict} at " in output
    [decision] = asyncio.run(decisions_of(load_settings(environment), order_id))
    assert decision == {"verdict": verdict, "by": "night desk", "reason": "seen in the venue's console"}


def test_a_resend_must_be_confirmed_and_is_recorded(environment: dict[str, str]) -> None:
    order_id = in_doubt(environment)
    code, output = resolve(environment, order_id, "sent", "--resend", "--yes")
    assert (code, "not-sent" in output) == (2, True)
    code, output = resolve(environment, order_id, "not-sent", "--resend")
    assert code != 0
    assert "executed twice" in output
    code, output = resolve(environment, order_id, "not-sent", "--resend", "--yes")
    assert (code, f"{order_id} ACCEPTED" in output) == (0, True)
    [decision] = asyncio.run(decisions_of(load_settings(environment), order_id))
    assert isinstance(decision, dict)
    assert decision["resend"] is True


def test_not_sent_is_left_to_the_lookup_that_can_decide(environment: dict[str, str]) -> None:
    order_id = in_doubt(environment)
    venue = {
        "SOR_VENUES": VENUE,
        f"VENUE_URL_{VENUE.upper()}": "http://127.0.0.1:1",
        f"VENUE_WINDOW_SEC_{VENUE.upper()}": "10",
    }
    for options in ((), ("--resend", "--yes")):
        code, output = resolve(environment | venue, order_id, "not-sent", *options)
        assert (code, "can still be asked" in output) == (1, True)
    assert resolve(environment | venue, order_id, "sent")[0] == 0


def test_not_sent_is_not_left_to_a_lookup_that_came_too_late(environment: dict[str, str]) -> None:
    order_id = in_doubt(environment, code="LOOKUP_EXPIRED")
    name = VENUE.upper()
    venue = {"SOR_VENUES": VENUE, f"VENUE_URL_{name}": "http://127.0.0.1:1", f"VENUE_WINDOW_SEC_{name}": "10"}
    code, output = resolve(environment | venue, order_id, "not-sent")
    assert code == 0, output


async def test_a_shell_without_the_venues_settings_leaves_not_sent_to_the_lookup_too(
    environment: dict[str, str], cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    broker = await cluster.broker(dedupe="open_only", faults={"drop_answer": 1.0, "late_reports": 60.0}).start()
    await broker.set_faults(lagging_lookup=30.0)
    process = cluster.process(**broker.client_settings(VENUE_WINDOW_SEC_SIM="30"), **environment)
    await process.start()
    order_id = await place(session, process)
    await until_statuses(session, process, "UNKNOWN")
    assert await asyncio.to_thread(process.stop) == 0
    for options in ((), ("--resend", "--yes")):
        code, output = await asyncio.to_thread(resolve, environment, order_id, "not-sent", *options)
        assert (code, "can still be asked" in output) == (1, True), output


def test_not_sent_needs_the_settings_of_a_venue_that_no_worker_has_declared(environment: dict[str, str]) -> None:
    order_id = in_doubt(environment, declares=False)
    code, output = resolve(environment, order_id, "not-sent")
    assert (code, f"VENUE_URL_{VENUE.upper()}: no worker has opened" in output) == (4, True)
    broker = {"SOR_VENUES": VENUE, f"VENUE_URL_{VENUE.upper()}": "http://127.0.0.1:1"}
    assert resolve(environment | broker, order_id, "not-sent")[0] == 0


async def decisions_of(settings: Settings, order_id: str) -> list[object]:
    database = await open_database(settings)
    events = await database.journal.read(0, 0, 100)
    await database.close()
    lines = [json.loads(event.line) for event in events]
    return [line["data"]["decision"] for line in lines if line["type"] == "OperatorDecision"]


def test_an_unknown_order_cannot_be_decided(environment: dict[str, str]) -> None:
    in_doubt(environment)
    code, output = resolve(environment, "ord_" + "0" * 26, "sent")
    assert code != 0
    assert "not found" in output
