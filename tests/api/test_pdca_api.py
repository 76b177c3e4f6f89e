"""The PDCA API over HTTP: who may do what, repeats, pages, rates, downloads and failures."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from switchyard.domain.errors import OutcomeUnknown, RunnerDown
from switchyard.domain.strategies.registry import METRICS, Capital, MetricValue, StrategyBody, Threshold
from switchyard.domain.strategies.requests import Filter, ItemResult, RecheckRequest
from switchyard.ports.strategies import NewArtifact, PdcaUnavailable
from tests.support.gateway import running_gateway
from tests.support.pdca import (
    ALL_SCOPES,
    BODY,
    FILLS,
    NOW,
    RECHECK,
    REQUEST_ID,
    STRATEGY,
    a_recheck,
    add_strategies,
    pdca_token,
    strategy_key,
    tell_story,
)
from tests.support.pdca_client import PdcaClient

ALL = {"filter": {"tags_any": ["daily"]}, "window": {"lookback_days": 7}, "reason": "daily-bulk"}
DOWNLOAD = f"/pdca/downloads/{REQUEST_ID}/{STRATEGY}/{FILLS.name}"
ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")


@pytest.fixture
async def pdca(tmp_path: Path) -> AsyncIterator[PdcaClient]:
    async with running_gateway(tmp_path) as gateway:
        client = PdcaClient(gateway)
        await tell_story(client.store)
        yield client


# Method, path, body, the audience and the scope that it needs.
ROUTES: list[tuple[str, str, dict[str, Any] | None, str, str]] = [
    ("POST", "/pdca/recheck", RECHECK, "pdca", "pdca:recheck"),
    ("POST", "/pdca/recheck_all", ALL, "pdca", "pdca:recheck_all"),
    ("PUT", f"/pdca/strategies/{STRATEGY}", BODY, "pdca", "pdca:strategies"),
    ("DELETE", "/pdca/strategies/unused", None, "pdca", "pdca:strategies"),
    ("GET", f"/pdca/recheck/{REQUEST_ID}", None, "pdca pdca.gui", "pdca:read"),
    ("GET", "/gui/strategies", None, "pdca.gui", "pdca:read"),
    ("GET", f"/gui/strategies/{STRATEGY}", None, "pdca.gui", "pdca:read"),
    ("GET", DOWNLOAD, None, "pdca pdca.gui", "pdca:download"),
]


async def test_each_route_needs_its_audience_and_its_scope(pdca: PdcaClient) -> None:
    for method, path, body, audiences, scope in ROUTES:
        for audience in ("pdca", "pdca.gui"):
            allowed = await pdca.call(
                method, path, body, key=f"{path}-{audience}", scopes=(scope,), audiences=(audience,)
            )
            expected = (200, 201, 202) if audience in audiences.split() else (401,)
            assert allowed.status in expected, (path, audience, allowed.body)
        others = tuple(each for each in ALL_SCOPES if each != scope)
        forbidden = await pdca.call(method, path, body, key=path, scopes=others)
        assert (forbidden.status, forbidden.json["error"]) == (403, "FORBIDDEN"), path
        missing = await pdca.call(method, path, body, key=path, token="")
        assert (missing.status, missing.json["error"]) == (401, "UNAUTHORIZED"), path
        assert missing.headers["www-authenticate"] == "Bearer"
        shared_secret = await pdca.call(method, path, body, key=path, token=pdca.gateway.token())
        assert (shared_secret.status, shared_secret.json["error"]) == (401, "UNAUTHORIZED"), path


async def test_a_hundred_equal_requests_at_once_are_one_and_another_body_is_a_conflict(pdca: PdcaClient) -> None:
    answers = await asyncio.gather(*[pdca.recheck(trace_id=f"t{number}") for number in range(50)])
    assert {answer.status for answer in answers} == {202}
    assert len({answer.body for answer in answers}) == 1
    assert sum(answer.headers.get("idempotent-replayed") == "true" for answer in answers) == 49
    assert answers[0].headers["location"] == f"/pdca/recheck/{answers[0].json['request_id']}"
    conflict = await pdca.recheck(reason="another")
    assert (conflict.status, conflict.json["error"]) == (409, "IDEMPOTENCY_CONFLICT")
    other_client = await pdca.call("POST", "/pdca/recheck", RECHECK, key="key", client="another")
    assert other_client.json["request_id"] != answers[0].json["request_id"]
    other_operation = await pdca.call("POST", "/pdca/recheck_all", ALL, key="key")
    assert other_operation.status == 202


async def test_a_recheck_without_exactly_one_valid_key_is_a_bad_request(pdca: PdcaClient) -> None:
    for key in (None, "", "a b", "x" * 256, "é"):
        headers = {} if key is None else {"Idempotency-Key": key}
        answer = await pdca.call("POST", "/pdca/recheck", RECHECK, headers=headers)
        assert (answer.status, answer.json["error"]) == (400, "BAD_REQUEST"), key
        assert answer.json["message"].startswith("Idempotency-Key: ")


async def test_bad_bodies_are_bad_requests_and_long_ones_too_large(pdca: PdcaClient) -> None:
    for body in (b"", b"[]", b"{", b'{"a":1,"a":2}', b"\xff", b'{"reason":NaN}'):
        answer = await pdca.call("POST", "/pdca/recheck", body, key="key")
        assert (answer.status, answer.json["error"]) == (400, "BAD_REQUEST"), body
    invalid = await pdca.recheck(window={"lookback_days": 0})
    assert invalid.json == {"error": "BAD_REQUEST", "message": "window.lookback_days: must be between 1 and 180"}
    long = await pdca.call("POST", "/pdca/recheck", b" " * (64 * 1024 + 1), key="key")
    assert (long.status, long.json["error"]) == (413, "BAD_REQUEST")
    text = await pdca.call("POST", "/pdca/recheck", b"{}", key="key", headers={"Content-Type": "text/plain"})
    assert (text.status, text.json["error"]) == (415, "BAD_REQUEST")


async def test_an_unknown_strategy_is_not_found_and_its_key_stays_free(pdca: PdcaClient) -> None:
    answer = await pdca.recheck(strategies=[STRATEGY, "strat.unknown"])
    assert answer.status == 404
    assert answer.json == {"error": "NOT_FOUND", "message": "strategy not found: strat.unknown"}
    assert (await pdca.recheck()).status == 202


async def test_every_answer_has_an_id_of_the_server_own_making(pdca: PdcaClient) -> None:
    forged = {"X-Request-Id": "forged"}
    answers = [
        await pdca.call("GET", "/gui/strategies", headers=forged),
        await pdca.call("GET", "/gui/strategies", token="", headers=forged),
        await pdca.call("GET", "/gui/nothing", headers=forged, check=False),
        await pdca.call("DELETE", "/gui/strategies", headers=forged, check=False),
        await pdca.call("GET", "/gui/strategies", headers={**forged, "Host": "evil.test"}),
        await pdca.call("POST", "/pdca/recheck", RECHECK, headers={**forged, "Origin": "http://evil.test"}, key="key"),
    ]
    assert [answer.status for answer in answers] == [200, 401, 404, 405, 421, 403]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert len(set(ids)) == len(ids)
    assert all(ULID.fullmatch(one) for one in ids)
    assert all(set(answer.json) == {"error", "message"} for answer in answers[1:])


async def test_pages_are_bounded_and_their_total_is_that_of_all_pages(pdca: PdcaClient) -> None:
    await add_strategies(pdca.store, *(f"s{number:03}" for number in range(25)), tags=("many",))
    seen: list[str] = []
    for page in range(1, 5):
        answer = await pdca.call("GET", f"/gui/strategies?tags_any=many,none&sort=id.desc&page={page}&page_size=10")
        assert (answer.json["page"], answer.json["page_size"], answer.json["total"]) == (page, 10, 25)
        seen += [item["id"] for item in answer.json["items"]]
    assert seen == [f"s{number:03}" for number in reversed(range(25))]
    assert (await pdca.call("GET", "/gui/strategies")).json["page_size"] == 50
    found = await pdca.call("GET", "/gui/strategies?q=MEANREV")
    assert [item["id"] for item in found.json["items"]] == [STRATEGY]
    for wildcard in ("%25", "_", "%5C"):
        assert (await pdca.call("GET", f"/gui/strategies?q={wildcard}")).json["total"] == 0
    for bad in (
        "page=0",
        "page=1.5",
        "page_size=9",
        "page_size=101",
        "page=-1",
        "sort=id",
        "sort=id.up",
        "sort=secret.asc",
        "sort=id;drop.asc",
        "health=sick",
        "health=",
        "health=healthy,healthy",
        "tags_any=a,,b",
        "q=" + "x" * 65,
        "q=%00",
        "limit=5",
    ):
        answer = await pdca.call("GET", f"/gui/strategies?{bad}")
        assert (answer.status, answer.json["error"]) == (400, "BAD_REQUEST"), bad


async def test_the_largest_answer_is_below_a_megabyte(pdca: PdcaClient) -> None:
    number = Decimal("-99999999999999.99999999")
    body = StrategyBody(
        owner="\U0001d538" * 64,
        tags=tuple(f"{tag:064}" for tag in range(16)),
        capital=Capital(amount=-number, currency="X" * 12),
        thresholds={name: Threshold(degraded=number, unhealthy=number) for name in METRICS},
    )
    for one in range(100):
        await pdca.store.put_strategy(strategy_key(f"{one:064}"), body, NOW)
    request = a_recheck(
        operation="pdca.recheck_all", request_id="01J8TPZ7YJ1E1X4C5N9ZP3M3ZZ", runner="airflow", batch_size=100,
        filter=Filter(tags_any=(f"{0:064}",)),
    )  # fmt: skip
    await pdca.store.create(request, "large", "digest", None)
    result = ItemResult(
        health="unhealthy",
        health_reasons=("r" * 4_000,),
        metrics={name: MetricValue(value=number, unit="u" * 12, reason="n" * 40) for name in METRICS},
    )
    files = [NewArtifact(name=f"{file:064}", media_type="m" * 100, content=b"") for file in range(8)]
    for item in await pdca.store.claim_items(
        "w", 100, now=NOW, lease=timedelta(minutes=1), request_id=request.request_id
    ):
        await pdca.store.finish_item(item.fence, result, NOW, files)
    for path in (f"/pdca/recheck/{request.request_id}?page_size=100", "/gui/strategies?health=unhealthy&page_size=100"):
        answer = await pdca.call("GET", path)
        assert len(answer.json["items"]) == 100
        assert 700_000 < len(answer.body) < 1_000_000


async def test_an_artifact_is_downloaded_by_a_url_for_it_alone(pdca: PdcaClient) -> None:
    signed = (await pdca.call("GET", DOWNLOAD)).json
    answer = await pdca.call("GET", signed["url"], token="")
    assert (answer.status, answer.body) == (200, FILLS.content)
    assert answer.headers["content-type"] == "text/csv"
    assert answer.headers["content-disposition"] == 'attachment; filename="fills.csv"'
    assert "sandbox" in answer.headers["content-security-policy"]
    path, _, query = signed["url"].partition("?")
    expires = int(re.findall(r"expires=(\d+)", query)[0])
    for forged in (
        path,
        f"{path}?expires={expires}",
        f"{path}?expires={expires}&signature=",
        f"{path}?expires={expires}&signature={'0' * 64}",
        signed["url"].replace(f"expires={expires}", f"expires={expires + 1}"),
        signed["url"].replace(f"expires={expires}", "expires=9" + "9" * 11),
        signed["url"].replace(FILLS.name, "metrics.json"),
        signed["url"].replace(STRATEGY, "carry"),
        signed["url"].replace("Q", "R"),
        signed["url"] + "%C3%A9",
    ):
        answer = await pdca.call("GET", forged, token="")
        assert answer.status in (400, 401, 404), forged
        assert FILLS.content not in answer.body
    missing = await pdca.call("GET", DOWNLOAD.replace(FILLS.name, "missing.csv"))
    assert missing.json == {"error": "NOT_FOUND", "message": "artifact not found"}


async def test_a_signed_url_expires(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, PDCA_DOWNLOAD_TTL_SEC="1") as gateway:
        pdca = PdcaClient(gateway)
        await tell_story(pdca.store)
        url = (await pdca.call("GET", DOWNLOAD)).json["url"]
        deadline = asyncio.get_running_loop().time() + 30
        while (answer := await pdca.call("GET", url, token="")).status == 200:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.05)
        assert (answer.status, answer.json["error"]) == (401, "UNAUTHORIZED")


async def test_requests_without_the_scope_count_against_the_rate_too(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, PDCA_READ_RATE_PER_MIN="2") as gateway:
        pdca = PdcaClient(gateway)
        answers = [await pdca.call("GET", "/gui/strategies", scopes=("pdca:recheck",)) for _ in range(3)]
        assert [answer.json["error"] for answer in answers] == ["FORBIDDEN", "FORBIDDEN", "RATE_LIMITED"]


async def test_a_parameter_that_is_given_twice_is_a_bad_request(pdca: PdcaClient) -> None:
    answer = await pdca.call("GET", "/gui/strategies?health=healthy&health=degraded")
    assert (answer.status, answer.json["message"]) == (400, "health: must be given once")


async def test_downloads_of_one_ipv6_network_share_a_rate(tmp_path: Path) -> None:
    settings = {"PDCA_READ_RATE_PER_MIN": "1", "SWITCHYARD_TRUSTED_PROXIES": "127.0.0.1"}
    async with running_gateway(tmp_path, **settings) as gateway:
        pdca = PdcaClient(gateway)
        path = DOWNLOAD.replace("downloads", "artifacts")
        for address, status in (("2001:db8::1", 401), ("2001:db8::2", 429), ("2001:db8:0:1::1", 401)):
            answer = await pdca.call("GET", path, token="", headers={"X-Forwarded-For": address})
            assert answer.status == status, address


async def test_each_kind_of_request_has_a_rate_of_its_own_per_client(tmp_path: Path) -> None:
    rates = {"PDCA_READ_RATE_PER_MIN": "3", "PDCA_RECHECK_RATE_PER_MIN": "2", "PDCA_RECHECK_ALL_RATE_PER_MIN": "1"}
    async with running_gateway(tmp_path, **rates) as gateway:
        pdca = PdcaClient(gateway)
        await add_strategies(pdca.store, STRATEGY)
        for limit, method, path, body in (
            (3, "GET", "/gui/strategies", None),
            (2, "POST", "/pdca/recheck", RECHECK),
            (1, "POST", "/pdca/recheck_all", ALL),
        ):
            for left in reversed(range(limit)):
                answer = await pdca.call(method, path, body, key=f"{path}-{left}")
                assert answer.status in (200, 202)
                assert answer.headers["x-ratelimit-limit"] == str(limit)
                assert answer.headers["x-ratelimit-remaining"] == str(left)
            over = await pdca.call(method, path, body, key="over")
            assert (over.status, over.json["error"], over.headers["x-ratelimit-remaining"]) == (
                429,
                "RATE_LIMITED",
                "0",
            )
            assert over.headers["retry-after"] == str(over.json["retry_after"])
            assert 1 <= over.json["retry_after"] <= 60
            assert (await pdca.call(method, path, body, key="other", client="another")).status in (200, 202)
        defaults = gateway.engine.settings.pdca_api
        assert (defaults.read_rate, defaults.recheck_rate, defaults.recheck_all_rate) == (3, 2, 1)


async def test_a_request_that_airflow_could_not_be_told_of_is_stored_and_told_by_its_repeat(pdca: PdcaClient) -> None:
    told: list[str] = []
    is_down = True

    async def submit(request: RecheckRequest) -> None:
        if is_down:
            raise RunnerDown("connection refused: airflow.internal:8080")
        told.append(request.request_id)

    pdca.gateway.engine.pdca.submit = submit
    down = await pdca.recheck()
    assert (down.status, down.json["error"]) == (502, "AIRFLOW_DOWN")
    assert "airflow.internal" not in down.json["message"]
    [waiting] = await pdca.store.unfinished("airflow", submitted=False)
    address = f"/pdca/recheck/{waiting.request.request_id}"
    assert (down.headers["location"], "idempotent-replayed" in down.headers) == (address, False)
    assert (await pdca.call("GET", address)).json["state"] == "queued"
    repeat = await pdca.recheck()
    assert (repeat.status, repeat.headers["location"]) == (502, address)
    assert repeat.headers["idempotent-replayed"] == "true"
    is_down = False
    again = await pdca.recheck()
    assert (again.status, again.json["request_id"]) == (202, waiting.request.request_id)
    assert told == [waiting.request.request_id]


async def test_a_store_that_fails_is_answered_without_its_words(pdca: PdcaClient, monkeypatch: Any) -> None:
    for error, status, code in (
        (PdcaUnavailable("disk /secret is full"), 503, "UNAVAILABLE"),
        (OutcomeUnknown("the answer of db.internal was lost"), 503, "UNAVAILABLE"),
        (RuntimeError("token=abc"), 500, "INTERNAL_ERROR"),
    ):

        async def fail(*_: object, error: Exception = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(pdca.store, "named", fail)
            answer = await pdca.call("GET", f"/gui/strategies/{STRATEGY}", check=status != 500)
        assert (answer.status, answer.json["error"]) == (status, code)
        assert not any(word in answer.body.decode() for word in ("secret", "internal:", "db.internal", "abc"))
        assert ("retry-after" in answer.headers) == (status == 503)


async def test_a_client_that_hangs_up_harms_nobody(pdca: PdcaClient) -> None:
    token = pdca_token(pdca.gateway.engine)
    request = (
        f"POST /pdca/recheck HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        "Idempotency-Key: key\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    host, port = pdca.gateway.url.removeprefix("http://").split(":")
    for _ in range(5):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(request.encode())
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    assert (await pdca.call("GET", "/gui/strategies")).status == 200
