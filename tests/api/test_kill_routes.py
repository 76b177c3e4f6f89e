"""The kill switch over HTTP, in the clients and on the command line, on each database."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from switchyard.bootstrap import upgrade_database
from switchyard.client import ApiError, AsyncClient, Client
from switchyard.domain.errors import JournalUnavailable
from switchyard.settings import load_settings
from tests.support.cluster import Cluster
from tests.support.do_order import do_order
from tests.support.gateway import CheckedResponse, RunningGateway, running_gateway
from tests.support.polling import until
from tests.support.process import run_command

EVERYTHING = {"everything": True, "reason": "exchange outage"}
RESTING: dict[str, Any] = {"type": "LIMIT", "price": 1, "timeInForce": "GTC"}


async def admin(
    gateway: RunningGateway, method: str, path: str, body: dict[str, Any] | None = None, **token: Any
) -> CheckedResponse:
    """A request of an operator."""
    granted = {"scopes": ["admin:kill"], "subject": "ann", **token}
    headers = {"Authorization": f"Bearer {gateway.token(**granted)}"}
    return await gateway.request(method, path, body=body, headers=headers)


async def test_a_kill_cancels_open_orders_and_rejects_new_ones(gateway: RunningGateway) -> None:
    order_id = (await gateway.place(**RESTING)).json["orderId"]
    await gateway.until_status(order_id, "WORKING")

    answer = await admin(gateway, "POST", "/admin/kill?wait=20", EVERYTHING)

    assert answer.status == 200
    told = answer.json
    assert (told["active"], told["everything"], told["by"], told["reason"]) == (True, True, "ann", "exchange outage")
    assert (told["drained"], told["inFlight"], told["counts"]) == (True, [], {"CANCELED": 1})
    assert [(order["orderId"], order["fate"]) for order in told["orders"]] == [(order_id, "CANCELED")]
    [event] = await gateway.database.journal.read(0, told["position"] - 1, 1)
    assert (event.type, event.seq) == ("KillSwitchSet", told["position"])

    rejected = await gateway.place(key="under-a-kill")
    assert rejected.status == 422
    assert rejected.json["reason"] == "KILL_SWITCH"
    assert told["killId"] in rejected.json["detail"]
    assert "ann" not in rejected.json["detail"]
    order = await gateway.order(rejected.json["orderId"])
    assert (order["status"], order["version"], order["venueOrderId"]) == ("REJECTED", 1, None)


async def test_a_rejection_stays_the_answer_to_its_key_after_the_kill_is_cleared(gateway: RunningGateway) -> None:
    kill_id = (await admin(gateway, "POST", "/admin/kill", EVERYTHING)).json["killId"]
    first = await gateway.place(key="lost-answer")
    cleared = await admin(gateway, "POST", f"/admin/kill/{kill_id}/clear", {"reason": "it is over"}, subject="bob")
    assert cleared.status == 200
    assert (cleared.json["active"], cleared.json["clearedBy"]) == (False, "bob")

    again = await gateway.place(key="lost-answer")

    assert (again.status, again.json) == (422, first.json)
    assert (await gateway.place(key="another")).status == 202


async def test_a_kill_whose_orders_cannot_be_read_may_have_been_set(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any) -> None:
        raise JournalUnavailable("the database is down")

    with monkeypatch.context() as patch:
        patch.setattr(gateway.engine.kill_switch, "find", fails)
        unknown = await admin(gateway, "POST", "/admin/kill", EVERYTHING)
        assert (unknown.status, unknown.json["reason"]) == (503, "OUTCOME_UNKNOWN")

    [kill] = (await admin(gateway, "GET", "/admin/kills")).json["kills"]
    assert kill["active"]


async def test_every_way_to_place_an_order_is_blocked(gateway: RunningGateway) -> None:
    before = (await gateway.place(key="before")).json
    await admin(gateway, "POST", "/admin/kill", EVERYTHING)

    done = await do_order(gateway, "by-do")
    derived = await gateway.request(
        "POST",
        "/orders",
        body={"symbol": "USDJPY", "side": "BUY", "type": "MARKET", "qty": 1000},
        headers={"Idempotency-Derive": "true"},
    )

    assert (done.status, done.json["reason_code"]) == (422, "KILL_SWITCH")
    assert (derived.status, derived.json["reason"]) == (422, "KILL_SWITCH")
    assert (await gateway.place()).status == 422
    # A known key is answered before the kill is asked.
    again = await gateway.place(key="before")
    assert (again.status, again.json) == (202, before)


async def test_only_covered_orders_are_stopped(gateway: RunningGateway) -> None:
    scope = {"account": "demo", "symbol": "EURUSD", "reason": "bad feed"}
    told = (await admin(gateway, "POST", "/admin/kill", scope)).json
    assert (told["everything"], told["account"], told["symbol"]) == (False, "demo", "EURUSD")

    assert (await gateway.place(symbol="EURUSD")).status == 422
    assert (await gateway.place(symbol="EURUSD", account="other")).status == 202
    assert (await gateway.place()).status == 202


async def test_reduce_only_rejects_with_its_own_reason_while_no_venue_enforces_it(embedded: RunningGateway) -> None:
    await admin(embedded, "POST", "/admin/kill", {**EVERYTHING, "mode": "reduce_only"})

    assert (await embedded.place()).json["reason"] == "REDUCE_ONLY"


async def test_a_token_without_the_scope_is_forbidden(embedded: RunningGateway) -> None:
    kill_id = (await admin(embedded, "POST", "/admin/kill", {"symbol": "EURUSD", "reason": "x"})).json["killId"]
    for method, path, body in (
        ("POST", "/admin/kill", EVERYTHING),
        ("GET", "/admin/kills", None),
        ("GET", f"/admin/kill/{kill_id}", None),
        ("POST", f"/admin/kill/{kill_id}/clear", {"reason": "over"}),
    ):
        for scopes in ([], ["admin"], ["admin:kills"], ["orders", "admin:risk"]):
            answer = await admin(embedded, method, path, body, scopes=scopes)
            assert (answer.status, answer.json["reason"]) == (403, "FORBIDDEN")
        assert (await embedded.request(method, path, body=body, account=None)).status == 401
    assert (await embedded.place()).status == 202


async def test_the_scope_may_be_one_of_several(embedded: RunningGateway) -> None:
    assert (await admin(embedded, "GET", "/admin/kills", scopes=["orders", "admin:kill"])).status == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"reason": "x"}, "everything"),
        ({"everything": True}, "reason"),
        ({"everything": True, "symbol": "USDJPY", "reason": "x"}, "everything"),
        ({"everything": True, "reason": ""}, "reason"),
        ({"everything": "yes", "reason": "x"}, "everything"),
        ({"venue": "nowhere", "reason": "x"}, "venue"),
        ({"symbol": "usd", "reason": "x"}, "symbol"),
        ({"everything": True, "reason": "x", "mode": "soft"}, "mode"),
        ({"everything": True, "reason": "x", "by": "somebody"}, "by"),
    ],
)
async def test_a_malformed_kill_names_the_field(embedded: RunningGateway, body: dict[str, Any], field: str) -> None:
    answer = await admin(embedded, "POST", "/admin/kill", body)
    assert (answer.status, answer.json["field"]) == (422, field)
    assert (await admin(embedded, "GET", "/admin/kills")).json == {"kills": [], "nextCursor": None}


async def test_a_token_in_the_name_of_a_program_sets_no_kill(embedded: RunningGateway) -> None:
    answer = await admin(embedded, "POST", "/admin/kill", EVERYTHING, subject="pdca")
    assert (answer.status, answer.json["field"]) == (422, "by")
    assert "the subject of the token" in answer.json["message"]
    assert (await admin(embedded, "GET", "/admin/kills")).json["kills"] == []


async def test_kills_are_listed_in_pages_and_a_missing_one_is_404(embedded: RunningGateway) -> None:
    ids = [
        (await admin(embedded, "POST", "/admin/kill", {"symbol": symbol, "reason": "x"})).json["killId"]
        for symbol in ("AAA", "BBB", "CCC")
    ]
    first = (await admin(embedded, "GET", "/admin/kills?limit=2")).json
    second = (await admin(embedded, "GET", f"/admin/kills?limit=2&cursor={first['nextCursor']}")).json

    assert [kill["killId"] for kill in (*first["kills"], *second["kills"])] == ids[::-1]
    assert second["nextCursor"] is None
    assert (await admin(embedded, "GET", "/admin/kill/kill_0")).status == 404
    for limit, status in ((0, 422), (1000, 200), (1001, 422)):
        assert (await admin(embedded, "GET", f"/admin/kills?limit={limit}")).status == status
    assert (await admin(embedded, "GET", "/admin/kills?limit=3")).json["nextCursor"] is None


async def test_a_kill_is_cleared_once(embedded: RunningGateway) -> None:
    kill_id = (await admin(embedded, "POST", "/admin/kill", EVERYTHING)).json["killId"]
    path = f"/admin/kill/{kill_id}/clear"
    assert (await admin(embedded, "POST", path, {"reason": ""})).status == 422
    assert (await admin(embedded, "POST", path, {"reason": "over"})).status == 200

    again = await admin(embedded, "POST", path, {"reason": "over"})

    assert (again.status, again.json["reason"]) == (409, "KILL_CLEARED")


async def test_a_kill_holds_over_a_restart(tmp_path: Path, engine_settings: dict[str, str]) -> None:
    async with running_gateway(tmp_path, **engine_settings) as gateway:
        await admin(gateway, "POST", "/admin/kill", EVERYTHING)
    async with running_gateway(tmp_path, **engine_settings) as gateway:
        assert (await gateway.place()).status == 422
        [kill] = (await admin(gateway, "GET", "/admin/kills")).json["kills"]
        assert kill["active"]
        assert b"kill_switch_active 1.0" in (await gateway.get("/metrics", account=None)).body


async def test_the_clients_set_show_list_and_clear_kills(embedded: RunningGateway) -> None:
    token = embedded.token(scopes=["admin:kill"], subject="ann")
    async with AsyncClient(embedded.url, token) as client:
        told = await client.kill(symbol="USDJPY", reason="drill")
        assert (told.by, told.drained, told.symbol) == ("ann", True, "USDJPY")
        assert [kill.kill_id for kill in await client.kills()] == [told.kill_id]
        assert (await client.kill_state(told.kill_id)).active

    def in_a_thread() -> bool:
        with Client(embedded.url, token) as sync:
            cleared = sync.clear_kill(told.kill_id, reason="over")
            with pytest.raises(ApiError, match="KILL_CLEARED"):
                sync.clear_kill(told.kill_id, reason="over")
            return cleared.active

    assert not await asyncio.to_thread(in_a_thread)


def set_kill(environment: dict[str, str], *options: str) -> Any:
    done = run_command("kill", *options, "--by", "night desk", "--reason", "drill", "--json", **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def test_the_command_works_while_no_server_runs(
    tmp_path: Path, engine_settings: dict[str, str], cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    process = cluster.process(**engine_settings)
    await upgrade_database(load_settings(process.settings))

    told = await asyncio.to_thread(set_kill, process.settings, "--everything")
    assert (told["active"], told["drained"], told["by"]) == (True, True, "night desk")

    await process.start()
    body = {"symbol": "USDJPY", "side": "BUY", "type": "MARKET", "qty": 1000}
    async with session.post(f"{process.url}/orders", json=body, headers=process.headers()) as response:
        assert (response.status, (await response.json())["reason"]) == (422, "KILL_SWITCH")

    # While the server runs: on SQLite through its control socket.
    listed = await asyncio.to_thread(run_command, "kills", "list", "--json", **process.settings)
    assert [kill["killId"] for kill in json.loads(listed.stdout)] == [told["killId"]]
    cleared = await asyncio.to_thread(
        run_command, "kills", "clear", told["killId"], "--by", "bob", "--reason", "over", **process.settings
    )
    assert (cleared.returncode, cleared.stdout) == (0, f"{told['killId']} cleared by bob\n")

    async def is_accepted() -> bool:
        async with session.post(f"{process.url}/orders", json=body, headers=process.headers()) as response:
            return response.status == 202

    await until(is_accepted)
    shown = await asyncio.to_thread(run_command, "kills", "show", told["killId"], **process.settings)
    assert "cleared by bob: over" in shown.stdout
    again = await asyncio.to_thread(
        run_command, "kills", "clear", told["killId"], "--by", "ann", "--reason", "over", **process.settings
    )
    assert (again.returncode, "was cleared before, by bob" in again.stderr) == (1, True)
    unknown = await asyncio.to_thread(run_command, "kills", "show", "kill_x", **process.settings)
    assert (unknown.returncode, "`switchyard kills list`" in unknown.stderr) == (1, True)


def test_the_command_names_what_is_wrong(tmp_path: Path) -> None:
    environment = {"SWITCHYARD_DATA_DIR": str(tmp_path / "var")}
    done = run_command("kill", "--by", "ann", "--reason", "x", **environment)
    assert (done.returncode, "everything" in done.stderr) == (2, True)
    done = run_command("kill", "--everything", "--by", "pdca", "--reason", "x", **environment)
    assert (done.returncode, "'pdca' is the name of a program" in done.stderr) == (2, True)
    done = run_command("kill", "--venue", "nowhere", "--by", "ann", "--reason", "x", **environment)
    assert (done.returncode, "nowhere" in done.stderr) == (2, True)


async def test_a_dry_run_shows_the_kill(embedded: RunningGateway) -> None:
    body = {"symbol": "USDJPY", "side": "BUY", "type": "MARKET", "qty": 1000}
    before = await embedded.request("POST", "/orders?dryRun=true", body=body)
    await admin(embedded, "POST", "/admin/kill", EVERYTHING)

    after = await embedded.request("POST", "/orders?dryRun=true", body=body)

    first = [answer.json["checks"][0] for answer in (before, after)]
    assert [(check["check"], check["passed"]) for check in first] == [("KILL_SWITCH", True), ("KILL_SWITCH", False)]
    assert (before.json["accepted"], after.json["accepted"]) == (True, False)
