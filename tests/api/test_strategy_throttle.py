"""The repeated-execution throttle: a strategy that is filled too often is suspended until a person clears it."""

from pathlib import Path

from tests.support.gateway import RunningGateway, running_gateway
from tests.support.polling import until


async def active_kills(gateway: RunningGateway) -> list[dict[str, object]]:
    """The active kills as an operator sees them."""
    token = gateway.token(scopes=["admin:kill"], subject="ann")
    answer = await gateway.request("GET", "/admin/kills", headers={"Authorization": f"Bearer {token}"})
    return [kill for kill in answer.json["kills"] if kill["active"]]


async def fill(gateway: RunningGateway, strategy: str) -> None:
    """Place a market order and wait until it is filled."""
    order_id = (await gateway.place(strategy=strategy)).json["orderId"]
    await gateway.until_status(order_id, "FILLED")


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
