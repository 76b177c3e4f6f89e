"""Who sees and changes what over the PDCA API: what belongs to others looks, byte for byte, as if there were none."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from switchyard.domain.strategies.registry import StrategyKey, tenant_of_client
from switchyard.domain.strategies.requests import Filter
from tests.support.gateway import CheckedResponse, running_gateway
from tests.support.pdca import FILLS, NOW, RECHECK, RESULT, a_recheck, add_strategies, strategy_key
from tests.support.pdca_client import PdcaClient

ANN: dict[str, Any] = {"client": "ann-gui", "accounts": ("ann",)}
BOB: dict[str, Any] = {"client": "bob-gui", "accounts": ("bob",)}
BOTH: dict[str, Any] = {"client": "desk", "accounts": ("ann", "bob")}
ALL: dict[str, Any] = {"client": "ops", "accounts": "*"}
NOBODY: dict[str, Any] = {"client": "robot", "accounts": None}
BULK = {"window": {"lookback_days": 7}, "reason": "bulk"}
OF_BOB = "01J8TPZ7YJ1E1X4C5N9ZP3M3QB"
OF_BOTH = "01J8TPZ7YJ1E1X4C5N9ZP3M3QC"
MISSING = "01J8TPZ7YJ1E1X4C5N9ZP3M3QZ"


@pytest.fixture
async def pdca(tmp_path: Path) -> AsyncIterator[PdcaClient]:
    """`shared` is a strategy of both accounts, `secret` of bob's; both rechecks have ended."""
    async with running_gateway(tmp_path, PDCA_RECHECK_ALL_RATE_PER_MIN="100") as gateway:
        client = PdcaClient(gateway)
        store = client.store
        await add_strategies(store, "shared", account="ann")
        await add_strategies(store, "shared", "secret", account="bob")
        bobs = a_recheck(OF_BOB, runner="airflow", client_id="bob-gui")
        await store.create(bobs, "k", "digest", ["secret"], frozenset({strategy_key("secret", "bob").tenant}))
        everything = a_recheck(OF_BOTH, operation="pdca.recheck_all", runner="airflow", filter=Filter())
        await store.create(everything, "k", "digest", None)
        for request_id in (OF_BOB, OF_BOTH):
            for item in await store.claim_items("w", 9, now=NOW, lease=timedelta(minutes=1), request_id=request_id):
                await store.finish_item(item.fence, RESULT, NOW, [FILLS])
        yield client


def shown(answer: CheckedResponse, *names: str) -> tuple[int, bytes, list[tuple[str, str]]]:
    """All of an answer that a caller can compare; the names that it sent stand for each other."""
    body = answer.body
    for name in names:
        body = body.replace(name.encode(), b"NAME")
    volatile = ("x-request-id", "date", "x-ratelimit-remaining", "x-ratelimit-reset")
    return answer.status, body, sorted((k, v) for k, v in answer.headers.items() if k.lower() not in volatile)


async def test_what_is_of_another_account_looks_missing_on_every_route(pdca: PdcaClient) -> None:
    pairs: list[tuple[str, str, Any, str]] = [
        # Method, the path with a place for the name, the body, and what a missing thing gets.
        ("GET", "/gui/strategies/{}", None, "404"),
        ("GET", "/gui/strategies/{}?account=bob", None, "404"),
        ("GET", "/gui/strategies?q={}", None, "200"),
        ("GET", "/gui/strategies?account=bob&q={}", None, "200"),
        ("DELETE", "/pdca/strategies/{}", None, "200"),
        ("DELETE", "/pdca/strategies/{}?account=bob", None, "200"),
        ("PUT", "/pdca/strategies/{}?account=bob", {}, "400"),
        ("GET", f"/pdca/downloads/{OF_BOTH}/{{}}/{FILLS.name}", None, "404"),
        ("POST", "/pdca/recheck", "{}", "404"),
    ]
    for method, path, body, status in pairs:
        answers = []
        for name in ("secret", "absent"):
            sent = {**RECHECK, "strategies": [name]} if body == "{}" else body
            answers.append(shown(await pdca.call(method, path.format(name), sent, key=f"k-{name}", **ANN), name))
        assert answers[0] == answers[1], path
        assert answers[0][0] == int(status), path
    for path in (
        "/pdca/recheck/{}",
        f"/pdca/downloads/{{}}/secret/{FILLS.name}",
        f"/pdca/downloads/{{}}/shared/{FILLS.name}",
        f"/pdca/downloads/{{}}/secret/{FILLS.name}?account=bob",
    ):
        foreign, absent = [shown(await pdca.call("GET", path.format(each), **ANN)) for each in (OF_BOB, MISSING)]
        assert foreign == absent and foreign[0] == 404, path
    # Nothing of it was touched, and its owner has it.
    assert (await pdca.call("GET", "/gui/strategies/secret", **BOB)).status == 200
    assert (await pdca.call("GET", f"/pdca/recheck/{OF_BOB}", **BOB)).status == 200
    assert (await pdca.call("GET", f"/pdca/downloads/{OF_BOB}/secret/{FILLS.name}", **BOB)).status == 200


async def test_lists_and_bulk_rechecks_have_the_own_strategies_only(pdca: PdcaClient) -> None:
    listed = (await pdca.call("GET", "/gui/strategies", **ANN)).json
    assert ([(one["id"], one["account"]) for one in listed["items"]], listed["total"]) == ([("shared", "ann")], 1)
    bulk = await pdca.call("POST", "/pdca/recheck_all", BULK, key="k", **ANN)
    progress = (await pdca.call("GET", f"/pdca/recheck/{bulk.json['request_id']}", **ANN)).json
    assert [(item["strategy"], item["account"]) for item in progress["items"]] == [("shared", "ann")]
    # Of a recheck over all accounts each sees its own part.
    part = (await pdca.call("GET", f"/pdca/recheck/{OF_BOTH}", **ANN)).json
    assert [(item["strategy"], item["account"]) for item in part["items"]] == [("shared", "ann")]
    assert (part["total"], part["progress"]["total"], part["progress"]["succeeded"]) == (1, 1, 1)
    whole = (await pdca.call("GET", f"/pdca/recheck/{OF_BOTH}", **ALL)).json
    assert (whole["total"], [item["account"] for item in whole["items"]]) == (3, ["bob", "ann", "bob"])


async def test_a_key_is_the_clients_own(pdca: PdcaClient) -> None:
    body = {**RECHECK, "strategies": ["shared"]}
    first = await pdca.call("POST", "/pdca/recheck", body, key="same", **ANN)
    other = await pdca.call("POST", "/pdca/recheck", {**body, "reason": "other"}, key="same", **BOB)
    assert (first.status, other.status) == (202, 202)
    assert first.json["request_id"] != other.json["request_id"]
    assert "idempotent-replayed" not in other.headers


async def test_keys_and_rates_of_clients_of_one_name_with_other_accounts_are_apart(pdca: PdcaClient) -> None:
    body = {**RECHECK, "strategies": ["shared"]}
    bobs = await pdca.call("POST", "/pdca/recheck", body, key="same", client="ops", accounts=("bob",))
    anns = await pdca.call("POST", "/pdca/recheck", body, key="same", client="ops", accounts=("ann",))
    assert "idempotent-replayed" not in anns.headers
    assert (await pdca.call("GET", anns.headers["location"], client="ops", accounts=("ann",))).status == 200
    assert bobs.headers["x-ratelimit-remaining"] == anns.headers["x-ratelimit-remaining"]
    other = {**body, "reason": "other"}
    assert (await pdca.call("POST", "/pdca/recheck", other, key="same", client="ops", accounts="*")).status == 202
    # A new token for the same accounts is the same client, whatever the order of its accounts.
    both = await pdca.call("POST", "/pdca/recheck", body, key="same", client="ops", accounts=("ann", "bob"))
    renewed = await pdca.call("POST", "/pdca/recheck", body, key="same", client="ops", accounts=("bob", "ann", "bob"))
    assert renewed.headers["idempotent-replayed"] == "true"
    assert renewed.json["request_id"] == both.json["request_id"]
    assert int(renewed.headers["x-ratelimit-remaining"]) == int(both.headers["x-ratelimit-remaining"]) - 1
    conflict = await pdca.call("POST", "/pdca/recheck", other, key="same", client="ops", accounts=("bob",))
    assert conflict.status == 409


async def test_a_client_without_accounts_sees_what_it_registered_and_requested_itself(pdca: PdcaClient) -> None:
    assert (await pdca.call("GET", "/gui/strategies", **NOBODY)).json["total"] == 0
    assert (await pdca.call("GET", f"/pdca/recheck/{OF_BOTH}", **NOBODY)).status == 404
    put = await pdca.call("PUT", "/pdca/strategies/shared", {"owner": "robot"}, **NOBODY)
    assert (put.status, put.json["account"]) == (201, None)
    mine = await pdca.call("POST", "/pdca/recheck", {**RECHECK, "strategies": ["shared"]}, key="k", **NOBODY)
    path = f"/pdca/recheck/{mine.json['request_id']}"
    assert [item["account"] for item in (await pdca.call("GET", path, **NOBODY)).json["items"]] == [None]
    assert [one["id"] for one in (await pdca.call("GET", "/gui/strategies", **NOBODY)).json["items"]] == ["shared"]
    for others in (ANN, BOB, {"client": "robot2", "accounts": None}, {"client": "robot", "accounts": ("ann",)}):
        assert (await pdca.call("GET", path, **others)).status == 404
    assert (await pdca.call("GET", path, **ALL)).status == 200
    # An account that is named like a client is not that client.
    named = await pdca.call("GET", path, client="x", accounts=("client:robot", "robot"))
    assert named.status == 404
    owned = await pdca.store.strategy(StrategyKey(tenant_of_client("robot"), "shared"))
    assert owned is not None and owned.owner == "robot"


async def test_a_recheck_of_nothing_exists_for_its_client_alone(pdca: PdcaClient) -> None:
    nothing = {**BULK, "filter": {"tags_any": ["none"]}}
    made = await pdca.call("POST", "/pdca/recheck_all", nothing, key="k", **ANN)
    path = f"/pdca/recheck/{made.json['request_id']}"
    assert (await pdca.call("GET", path, **ANN)).json["total"] == 0
    for others in (BOB, {"client": ANN["client"], "accounts": ("bob",)}):
        foreign, absent = [shown(await pdca.call("GET", each, **others)) for each in (path, f"/pdca/recheck/{MISSING}")]
        assert foreign == absent


async def test_an_id_that_several_of_the_accounts_have_needs_the_account(pdca: PdcaClient) -> None:
    for method, path in (
        ("GET", "/gui/strategies/shared"),
        ("DELETE", "/pdca/strategies/shared"),
        ("PUT", "/pdca/strategies/shared"),
        ("PUT", "/pdca/strategies/new"),
        ("GET", f"/pdca/downloads/{OF_BOTH}/shared/{FILLS.name}"),
    ):
        body: dict[str, Any] | None = {} if method == "PUT" else None
        answer = await pdca.call(method, path, body, **BOTH)
        assert (answer.status, answer.json["message"][:8]) == (400, "account:"), path
        answer = await pdca.call(method, f"{path}?account=bob", body, **BOTH)
        assert answer.status in (200, 201), path
        if method == "DELETE":
            await add_strategies(pdca.store, "shared", account="bob")
    changed = await pdca.call("PUT", "/pdca/strategies/secret", {"owner": "desk"}, **BOTH)
    assert (changed.status, changed.json["account"]) == (200, "bob")
    rechecked = await pdca.call("POST", "/pdca/recheck", {**RECHECK, "strategies": ["shared"]}, key="k", **BOTH)
    progress = (await pdca.call("GET", f"/pdca/recheck/{rechecked.json['request_id']}", **BOTH)).json
    assert [item["account"] for item in progress["items"]] == ["ann", "bob"]
    malformed = await pdca.call("GET", "/gui/strategies/shared?account=a%20b", **BOTH)
    assert malformed.json == {"error": "BAD_REQUEST", "message": "account: must be an account id"}


async def test_a_signed_url_is_for_the_artifact_of_one_account(pdca: PdcaClient) -> None:
    url = (await pdca.call("GET", f"/pdca/downloads/{OF_BOTH}/shared/{FILLS.name}", **ANN)).json["url"]
    assert (await pdca.call("GET", url, token="")).status == 200
    other = await pdca.call("GET", url.replace("account%3Aann", "account%3Abob"), token="")
    assert (other.status, other.json["error"]) == (401, "UNAUTHORIZED")


async def test_a_deletion_can_be_repeated(pdca: PdcaClient) -> None:
    answers = [await pdca.call("DELETE", "/pdca/strategies/shared", **ANN) for _ in range(2)]
    assert [answer.json for answer in answers] == [
        {"id": "shared", "deleted": True},
        {"id": "shared", "deleted": False},
    ]
    assert (await pdca.call("GET", "/gui/strategies/shared", **ANN)).status == 404
    assert (await pdca.call("GET", "/gui/strategies/shared", **BOB)).status == 200
    malformed = await pdca.call("DELETE", "/pdca/strategies/Bad", **ANN, check=False)
    assert malformed.status == 400
