"""Two accounts use the same label for a strategy, against a real process: neither can stop or see the other's."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from switchyard.adapters.postgres.database import PostgresDatabase
from tests.support.books import KEEPS_BOOKS
from tests.support.cluster import Cluster
from tests.support.polling import until
from tests.support.postgres import PostgresServer
from tests.support.process import Process, run_command

STRATEGY = "trend.h1"
SCOPES = ("pdca:read", "pdca:recheck", "pdca:recheck_all", "pdca:strategies", "pdca:download")
THRESHOLDS = {"thresholds": {"reject_rate": {"unhealthy": 0.5}}}
QTY_MAX = 5_000


class Trader:
    """An account with a token for orders and one for the PDCA API."""

    def __init__(self, process: Process, session: aiohttp.ClientSession, account: str, pdca_token: str) -> None:
        self.account = account
        self._process = process
        self._session = session
        self._pdca_token = pdca_token

    async def order(self, qty: int, **more: Any) -> tuple[int, dict[str, Any]]:
        body = {"symbol": "USDJPY", "side": "BUY", "type": "MARKET", "qty": qty, "strategy": STRATEGY, **more}
        headers = self._process.headers(self.account)
        async with self._session.post(f"{self._process.url}/orders", json=body, headers=headers) as response:
            return response.status, await response.json()

    async def pdca(self, method: str, path: str, body: Any = None, key: str | None = None) -> tuple[int, bytes, Any]:
        """Status, the bytes of the body, and the body."""
        headers = {"Authorization": f"Bearer {self._pdca_token}", **({"Idempotency-Key": key} if key else {})}
        async with self._session.request(method, self._process.url + path, json=body, headers=headers) as response:
            return response.status, await response.read(), await response.json(content_type=None)

    async def rechecked(self, key: str) -> dict[str, Any]:
        """The item of this account's strategy, once its recheck has ended."""
        body = {"strategies": [STRATEGY], "window": {"lookback_days": 2}, "reason": "manual"}
        status, _, accepted = await self.pdca("POST", "/pdca/recheck", body, key=key)
        assert status == 202, accepted
        shown: dict[str, Any] = {}

        async def has_ended() -> bool:
            shown.update((await self.pdca("GET", f"/pdca/recheck/{accepted['request_id']}"))[2])
            return shown["state"] not in ("queued", "running")

        await until(has_ended, lambda: self._process.log[-2000:], pause_seconds=0.1)
        [item] = shown["items"]
        return {**item, "request_id": accepted["request_id"]}


@pytest.fixture(params=["sqlite", "postgres"])
async def process(request: pytest.FixtureRequest, cluster: Cluster) -> Process:
    settings = {"PDCA_ENFORCE": "reduce_only", "PDCA_SAMPLE_MIN": "3", "RISK_MAX_QTY": str(QTY_MAX)}
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        settings["SWITCHYARD_DATABASE_URL"] = url = server.create_database()
        await PostgresDatabase.upgrade(url)
    started = cluster.process("up", "site", **KEEPS_BOOKS, **settings)
    await started.start()
    return started


async def trader(process: Process, session: aiohttp.ClientSession, account: str) -> Trader:
    options = [option for scope in SCOPES for option in ("--scope", scope)]
    token = await asyncio.to_thread(
        run_command, "token", "--account", account, "--aud", "pdca", "--aud", "pdca.gui", *options, **process.settings
    )
    assert token.returncode == 0, token.stderr
    return Trader(process, session, account, token.stdout.strip())


async def test_rejected_orders_of_one_account_leave_the_strategy_of_another_healthy(
    process: Process, session: aiohttp.ClientSession
) -> None:
    ann, bob = await trader(process, session, "ann"), await trader(process, session, "bob")
    for each in (ann, bob):
        status, _, shown = await each.pdca("PUT", f"/pdca/strategies/{STRATEGY}", THRESHOLDS)
        assert status in (200, 201), shown
    for _ in range(4):
        assert (await ann.order(1_000))[0] == 202
    for _ in range(8):
        status, shown = await bob.order(QTY_MAX + 1_000)
        assert (status, shown["reason"]) == (422, "RISK_MAX_QTY")

    bobs = await bob.rechecked("k-1")
    anns = await ann.rechecked("k-1")
    assert (anns["health"], anns["metrics"]["reject_rate"]["value"], anns["enforced"]) == ("healthy", 0, None)
    assert (bobs["health"], bobs["metrics"]["reject_rate"]["value"], bobs["enforced"]) == (
        "unhealthy",
        1,
        "reduce_only",
    )
    assert (anns["account"], bobs["account"]) == ("ann", "bob")

    # Bob's strategy is stopped, for bob alone.
    admin = process.headers("ann", scopes=["admin:kill"])
    async with session.get(f"{process.url}/admin/kills", headers=admin) as response:
        [kill] = (await response.json())["kills"]
    assert (kill["account"], kill["strategy"], kill["mode"], kill["by"]) == ("bob", STRATEGY, "reduce_only", "pdca")
    assert (await ann.order(1_000))[0] == 202
    status, shown = await bob.order(1_000)
    assert (status, shown["reason"]) == (422, "REDUCE_ONLY")
    assert (await bob.order(1_000, strategy="other"))[0] == 202

    # What is bob's looks to ann like what there is not, byte for byte.
    missing = "01J8TPZ7YJ1E1X4C5N9ZP3M3QZ"
    for path in ("/pdca/recheck/{}", "/pdca/downloads/{}/" + STRATEGY + "/fills.csv"):
        foreign, absent = [await ann.pdca("GET", path.format(each)) for each in (bobs["request_id"], missing)]
        assert foreign[:2] == absent[:2] and foreign[0] == 404
        assert (await bob.pdca("GET", path.format(bobs["request_id"])))[0] == 200
    assert (await ann.pdca("GET", f"/gui/strategies/{STRATEGY}?account=bob"))[0] == 404
    listed = (await ann.pdca("GET", "/gui/strategies"))[2]
    assert [(each["id"], each["account"]) for each in listed["items"]] == [(STRATEGY, "ann")]

    # A person's kill of a strategy without an account covers all accounts.
    body = {"strategy": STRATEGY, "reason": "drill"}
    async with session.post(f"{process.url}/admin/kill", json=body, headers=admin) as response:
        assert response.status in (200, 201), await response.text()
    status, shown = await ann.order(1_000)
    assert (status, shown["reason"]) == (422, "KILL_SWITCH")


async def test_the_command_line_sees_all_accounts_and_deletes_the_strategy_of_one(
    process: Process, session: aiohttp.ClientSession
) -> None:
    async def run(*arguments: str) -> tuple[int, str, str]:
        done = await asyncio.to_thread(run_command, "strategy", *arguments, **process.settings)
        return done.returncode, done.stdout, done.stderr

    for account in ("ann", "bob"):
        assert (await run("add", STRATEGY, "--account", account, "--tag", account))[0] == 0
    code, listed, _ = await run("list", "--json")
    assert code == 0
    assert [(each["id"], each["account"]) for each in json.loads(listed)["items"]] == [
        (STRATEGY, "ann"),
        (STRATEGY, "bob"),
    ]
    assert json.loads((await run("list", "--account", "bob", "--json"))[1])["total"] == 1
    for command in ("show", "delete"):
        code, _, problem = await run(command, STRATEGY)
        assert code != 0 and "--account" in problem
    assert (await run("delete", STRATEGY, "--account", "bob"))[1] == f"{STRATEGY} of bob was deleted\n"
    code, _, problem = await run("delete", STRATEGY, "--account", "bob")
    assert code != 0 and f"there is no strategy {STRATEGY} of the account bob" in problem
    ann, bob = await trader(process, session, "ann"), await trader(process, session, "bob")
    assert (await bob.pdca("GET", f"/gui/strategies/{STRATEGY}"))[0] == 404
    assert (await ann.pdca("GET", f"/gui/strategies/{STRATEGY}"))[2]["tags"] == ["ann"]
