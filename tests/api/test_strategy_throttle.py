"""The repeated-execution throttle: a strategy that is filled too often is suspended until a person clears it."""

from pathlib import Path

import pytest

from switchyard.domain.ids import AccountId
from switchyard.domain.risk.kills import REPEATED_EXECUTIONS
from switchyard.flow.kill.switch import KillRequest
from tests.support.gateway import RunningGateway, running_gateway
from tests.support.polling import until


async def active_kills(gateway: RunningGateway) -> list[dict[str, object]]:
    """The active kills as an operator sees them."""
    token = gateway.token(scopes=["admin:kill"], subject="ann")
    answer = await gateway.request("GET", "/admin/kills", headers={"Authorization": f"Bearer {token}"})
    return [kill for kill in answer.json["kills"] if kill["active"]]


async def fill(gateway: RunningGateway, strategy: str, account: str = "demo") -> None:
    """Place a market order and wait until it is filled."""
    order_id = (await gateway.place(strategy=strategy, account=account)).json["orderId"]
    await gateway.until_status(order_id, "FILLED", account=account)


async def test_a_strategy_that_is_filled_too_often_is_suspended_until_a_person_clears_it(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, RISK_STRATEGY_FILLS_MAX="3", RISK_STRATEGY_FILLS_SEC="3600") as gateway:
        for _ in range(2):
            await fill(gateway, "runaway")
        await fill(gateway, "calm")
        assert await active_kills(gateway) == []
        await fill(gateway, "runaway")

        async def is_suspended() -> bool:
            return bool(await active_kills(gateway))

        await until(is_suspended)
        [kill] = await active_kills(gateway)
        assert (kill["account"], kill["strategy"], kill["everything"]) == ("demo", "runaway", False)
        assert kill["by"] == "switchyard repeated executions"
        assert "3 orders" in str(kill["reason"])
        rejected = await gateway.place(strategy="runaway")
        assert (rejected.status, rejected.json["reason"]) == (422, "KILL_SWITCH")
        await fill(gateway, "calm")
        await fill(gateway, "other")

        token = gateway.token(scopes=["admin:kill"], subject="ann")
        await gateway.request(
            "POST",
            f"/admin/kill/{kill['killId']}/clear",
            body={"reason": "looked at it"},
            headers={"Authorization": f"Bearer {token}"},
        )
        await fill(gateway, "runaway")
        assert await active_kills(gateway) == [], "after a person cleared it, as many fills are needed again"


async def test_an_account_that_fills_under_many_labels_is_stopped_and_takes_no_kill_of_others_or_of_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switchyard.flow.kill.switch.ACTIVE_KILLS_MAX", 5)
    monkeypatch.setattr("switchyard.flow.kill.switch.AUTOMATIC_ACCOUNT_KILLS_MAX", 3)
    async with running_gateway(tmp_path, RISK_STRATEGY_FILLS_MAX="2", RISK_STRATEGY_FILLS_SEC="3600") as gateway:

        async def is_stopped(account: str, strategy: str) -> None:
            """Place orders, which are filled, until one is rejected."""

            async def is_rejected() -> bool:
                answer = await gateway.place(strategy=strategy, account=account)
                return (answer.status, answer.json.get("reason")) == (422, "KILL_SWITCH")

            await until(is_rejected)

        for number in range(4):
            await is_stopped("many", f"label-{number}")
        kills = await active_kills(gateway)
        assert [kill.get("strategy") for kill in kills] == [None, "label-2", "label-1", "label-0"]
        assert {kill["account"] for kill in kills} == {"many"}
        await is_stopped("many", "label-that-is-new")

        await is_stopped("calm", "runaway")
        await fill(gateway, "other", "third")

        headers = {"Authorization": f"Bearer {gateway.token(scopes=['admin:kill'], subject='ann')}"}
        for scope in ({"account": "calm"}, {"strategy": "other"}, {"venue": "sim"}):
            answer = await gateway.request("POST", "/admin/kill", body={**scope, "reason": "drill"}, headers=headers)
            assert answer.status == 200, answer.json


async def test_readiness_shows_that_programs_have_no_room_for_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switchyard.bootstrap.engine.AUTOMATIC_KILLS_MAX", 1)
    async with running_gateway(tmp_path) as gateway:
        request = KillRequest(account=AccountId("a"), strategy="s", by=REPEATED_EXECUTIONS, reason="fills")
        await gateway.engine.kill_switch.set_by_program(request)

        async def is_degraded() -> bool:
            checks = (await gateway.get("/health/ready")).json["checks"]
            return any((each["check"], each["status"]) == ("process", "degraded") for each in checks)

        await until(is_degraded)
