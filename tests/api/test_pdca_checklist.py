"""Seed 003, section 14: the implementer's checklist, one test per line."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from switchyard.domain.errors import RunnerDown
from switchyard.entrypoints.http.app import build_gateway
from tests.support.contract import Contract
from tests.support.contract_files import operations, resolved
from tests.support.gateway import CheckedResponse, running_gateway
from tests.support.pdca import BODY, FILLS, RECHECK, REQUEST_ID, STRATEGY, pdca_token, tell_story
from tests.support.pdca_client import PdcaClient

ALL = {
    "filter": {"tags_any": ["daily"], "health": ["unknown"]},
    "batch_size": 25,
    "window": {"lookback_days": 7},
    "reason": "daily-bulk",
    "dry_run": False,
}
UNKNOWN = "01J8TPZ7YJ1E1X4C5N9ZP3M3Q0"


@pytest.fixture
async def pdca(tmp_path: Path) -> AsyncIterator[PdcaClient]:
    async with running_gateway(tmp_path, PDCA_RECHECK_ALL_RATE_PER_MIN="3") as gateway:
        yield PdcaClient(gateway)


async def test_openapi_has_the_same_routes(pdca: PdcaClient) -> None:
    served = {
        (method, route.path)
        for route in build_gateway(pdca.gateway.engine.settings, pdca.gateway.engine).routes
        for method in route.methods or ()
        if method != "HEAD" and route.path.startswith(("/pdca/", "/gui/"))
    }
    documented = {(method, path) for method, path in Contract().operations() if path.startswith(("/pdca/", "/gui/"))}
    assert served == documented
    # And every answer of every test here is checked against the contract.


async def test_a_202_always_has_a_request_id(pdca: PdcaClient) -> None:
    await tell_story(pdca.store)
    for path, body in (("/pdca/recheck", RECHECK), ("/pdca/recheck_all", ALL)):
        for _ in range(2):
            answer = await pdca.call("POST", path, body, key="key")
            assert answer.status == 202
            assert re.fullmatch(r"[0-9A-HJKMNP-TV-Z]{26}", answer.json["request_id"])
            assert (await pdca.call("GET", f"/pdca/recheck/{answer.json['request_id']}")).status == 200


async def test_only_an_equal_digest_is_reused(pdca: PdcaClient) -> None:
    await tell_story(pdca.store)
    first = await pdca.recheck(reason="が", trace_id="one")
    reordered = {"trace_id": "two", "reason": "か\u3099", **{k: RECHECK[k] for k in reversed(RECHECK) if k != "reason"}}
    spaced = json.dumps(reordered, indent=3).replace("14", "14.0").encode()
    again = await pdca.call("POST", "/pdca/recheck", spaced, key="key")
    assert (again.status, again.body) == (202, first.body)
    other = await pdca.recheck(reason="が", dry_run=False)
    assert (other.status, other.json["error"]) == (409, "IDEMPOTENCY_CONFLICT")


async def test_a_429_says_when_to_retry(pdca: PdcaClient) -> None:
    answers = [await pdca.call("POST", "/pdca/recheck_all", ALL, key=f"key-{number}") for number in range(4)]
    assert [answer.status for answer in answers] == [202, 202, 202, 429]
    assert int(answers[-1].headers["retry-after"]) == answers[-1].json["retry_after"] >= 1


async def test_404_409_and_5xx_have_one_form_and_fixed_words(pdca: PdcaClient, monkeypatch: Any) -> None:
    async def down(_request: object) -> None:
        raise RunnerDown("airflow.internal refused the connection")

    async def broken(*_: object) -> None:
        raise RuntimeError("Traceback: secret")

    await tell_story(pdca.store)
    answers = [
        await pdca.call("GET", f"/pdca/recheck/{UNKNOWN}"),
        await pdca.call("GET", "/pdca/recheck/01JABCXYZ-ULID-5678"),
        await pdca.call("GET", "/gui/strategies/missing"),
        await pdca.call("GET", f"/pdca/downloads/{REQUEST_ID}/{STRATEGY}/missing"),
    ]
    await pdca.recheck()
    answers.append(await pdca.recheck(reason="other"))
    pdca.gateway.engine.pdca.submit = down
    answers.append(await pdca.recheck())
    monkeypatch.setattr(pdca.store, "named", broken)
    answers.append(await pdca.call("GET", f"/gui/strategies/{STRATEGY}", check=False))
    assert [answer.json for answer in answers] == [
        {"error": "NOT_FOUND", "message": "request not found"},
        {"error": "NOT_FOUND", "message": "request not found"},
        {"error": "NOT_FOUND", "message": "strategy not found"},
        {"error": "NOT_FOUND", "message": "artifact not found"},
        {"error": "IDEMPOTENCY_CONFLICT", "message": "the Idempotency-Key was used with another body"},
        {
            "error": "AIRFLOW_DOWN",
            "message": "Airflow does not answer; the request is stored (see Location) and will be submitted later",
        },
        {"error": "INTERNAL_ERROR", "message": "internal error"},
    ]
    assert [answer.status for answer in answers] == [404, 404, 404, 404, 409, 502, 500]


async def test_the_log_has_both_ids(pdca: PdcaClient) -> None:
    await tell_story(pdca.store)
    with capture_logs() as lines:
        accepted = await pdca.recheck()
        shown = await pdca.call("GET", f"/pdca/recheck/{accepted.json['request_id']}")
        await pdca.call("GET", "/gui/strategies", token="")
    logged = [line for line in lines if line["event"] == "pdca_api"]
    assert [line["http_status"] for line in logged] == [202, 200, 401]
    assert [line["x_request_id"] for line in logged[:2]] == [each.headers["x-request-id"] for each in (accepted, shown)]
    assert [line["request_id"] for line in logged[:2]] == [accepted.json["request_id"]] * 2
    assert [line["client_id"] for line in logged] == ["ops", "ops", None]
    assert logged[0]["endpoint"] == "POST /pdca/recheck"
    assert all(line["latency_ms"] > 0 for line in logged)
    assert set(logged[0]) >= {"x_request_id", "client_id", "endpoint", "http_status", "latency_ms", "request_id"}


async def test_nothing_sensitive_is_logged_or_answered(pdca: PdcaClient) -> None:
    await tell_story(pdca.store)
    token = pdca_token(pdca.gateway.engine)
    with capture_logs() as lines:
        answers = [
            await pdca.call("GET", "/gui/strategies", token=token + "x"),
            await pdca.call("GET", "/gui/strategies", token=token),
            await pdca.recheck(reason="confidential reason"),
            await pdca.call("POST", "/pdca/recheck", b'{"reason": "confidential reason"', key="key"),
        ]
        url = (await pdca.call("GET", f"/pdca/downloads/{REQUEST_ID}/{STRATEGY}/{FILLS.name}")).json["url"]
        await pdca.call("GET", url, token="")
    signature = url.partition("signature=")[2]
    text = json.dumps(lines, default=str)
    for secret in (token, token.rpartition(".")[2], signature, "confidential", "Bearer"):
        assert secret not in text
    answered = b"".join(answer.body for answer in answers).decode()
    assert not any(word in answered for word in ("Traceback", "File ", token, "confidential"))


async def test_the_total_of_a_page_is_right(pdca: PdcaClient) -> None:
    for number in range(23):
        put = await pdca.call("PUT", f"/pdca/strategies/s{number}", {"tags": ["even" if number % 2 == 0 else "odd"]})
        assert put.status == 201
    for query, total in (
        ("", 23),
        ("tags_any=even", 12),
        ("tags_any=odd,even", 23),
        ("q=s2", 4),
        ("health=healthy", 0),
    ):
        for page in (1, 2, 3, 9):
            answer = (await pdca.call("GET", f"/gui/strategies?page_size=10&page={page}&{query}")).json
            assert answer["total"] == total, (query, page)
            assert len(answer["items"]) == max(0, min(10, total - 10 * (page - 1)))


async def test_the_examples_of_openapi_equal_real_answers(pdca: PdcaClient) -> None:
    real = {name: plain(answer) for name, answer in (await example_answers(pdca)).items()}
    for path, _, method, operation in operations():
        if not path.startswith(("/pdca/", "/gui/")):
            continue
        for status, response in operation["responses"].items():
            if not status.startswith("2"):
                continue
            for name, example in (
                resolved(response)["content"].get("application/json", {"examples": {}})["examples"].items()
            ):
                if name != "metrics":  # an artifact: its content is the job's
                    assert plain(example["value"]) == real[f"{method} {path} {status} {name}"], (path, name)
    errors = (await error_answers(pdca)).items()
    documented = {
        json.dumps(plain(example["value"]))
        for path, _, _, operation in operations()
        if path.startswith(("/pdca/", "/gui/"))
        for status, response in operation["responses"].items()
        if status in ("400", "401", "403", "404", "409", "502")
        for example in resolved(response)["content"]["application/json"]["examples"].values()
    }
    assert {json.dumps(plain(answer.json)) for _, answer in errors} == documented


async def example_answers(pdca: PdcaClient) -> dict[str, Any]:
    """The answers of the contract's examples, by operation, status and name."""
    new = await pdca.call("PUT", f"/pdca/strategies/{STRATEGY}", BODY)
    queued = await pdca.call("POST", "/pdca/recheck_all", ALL, key="all")
    progress = await pdca.call("GET", f"/pdca/recheck/{queued.json['request_id']}")
    accepted = await pdca.recheck("one")
    await tell_story(pdca.store)
    download = f"/pdca/downloads/{REQUEST_ID}/{STRATEGY}/{FILLS.name}"
    show = "get /pdca/recheck/{request_id} 200"
    await pdca.call("PUT", "/pdca/strategies/strat.retired.m1", {})
    return {
        "put /pdca/strategies/{strategy_id} 201 new": new.json,
        "post /pdca/recheck_all 202 accepted": queued.json,
        "post /pdca/recheck 202 accepted": accepted.json,
        f"{show} queued": progress.json,
        f"{show} partial": (await pdca.call("GET", f"/pdca/recheck/{REQUEST_ID}")).json,
        "get /gui/strategies 200 page": (await pdca.call("GET", "/gui/strategies?health=degraded")).json,
        "get /gui/strategies/{strategy_id} 200 checked": (await pdca.call("GET", f"/gui/strategies/{STRATEGY}")).json,
        "put /pdca/strategies/{strategy_id} 200 changed": (
            await pdca.call("PUT", f"/pdca/strategies/{STRATEGY}", BODY)
        ).json,
        "get /pdca/downloads/{request_id}/{strategy_id}/{name} 200 signed": (await pdca.call("GET", download)).json,
        "delete /pdca/strategies/{strategy_id} 200 deleted": (
            await pdca.call("DELETE", "/pdca/strategies/strat.retired.m1")
        ).json,
    }


async def error_answers(pdca: PdcaClient) -> dict[str, CheckedResponse]:
    async def down(_request: object) -> None:
        raise RunnerDown("refused")

    await pdca.recheck("used")
    answers = {
        "window": await pdca.recheck(window={"lookback_days": 0}),
        "key": await pdca.call("POST", "/pdca/recheck", RECHECK),
        "missing": await pdca.call("GET", "/gui/strategies", token=""),
        "audience": await pdca.call("POST", "/pdca/recheck", RECHECK, key="k", audiences=("pdca.gui",)),
        "scope": await pdca.call("POST", "/pdca/recheck_all", ALL, key="k", scopes=("pdca:read",)),
        "strategy": await pdca.call("GET", "/gui/strategies/missing"),
        "request": await pdca.call("GET", f"/pdca/recheck/{UNKNOWN}"),
        "artifact": await pdca.call("GET", f"/pdca/downloads/{UNKNOWN}/a/b"),
        "strategies": await pdca.recheck("u", strategies=["strat.unknown"]),
        "conflict": await pdca.recheck("used", reason="other"),
    }
    pdca.gateway.engine.pdca.submit = down
    return {**answers, "down": await pdca.recheck("d")}


VOLATILE = [
    (r"\b[0-9A-HJKMNP-TV-Z]{26}\b", "ULID"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
    (r"expires=\d+", "expires=N"),
    (r"signature=[0-9a-f]{64}", "signature=HEX"),
]


def plain(value: Any) -> Any:
    """The value without what differs from call to call: ids, times and signatures."""
    text = json.dumps(value, sort_keys=True)
    for pattern, replacement in VOLATILE:
        text = re.sub(pattern, replacement, text)
    return json.loads(text)
