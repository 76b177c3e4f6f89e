"""The contract check of the test suite: it accepts documented answers and names each violation."""

from typing import Any

import pytest

from tests.support.contract import Contract
from tests.support.order_story import ORDER_ID

STREAM = {"content-type": "text/event-stream"}
HEALTH = ("GET", "/health", 200, {"Content-Type": "application/json"}, b'{"status":"ok"}')


def test_the_contract_has_the_operations_of_the_gateway_and_the_back_office() -> None:
    assert Contract().operations() == {
        ("GET", "/health"),
        ("GET", "/health/live"),
        ("GET", "/health/ready"),
        ("POST", "/orders"),
        ("POST", "/do/order"),
        ("GET", "/orders"),
        ("GET", "/orders/{orderId}"),
        ("PATCH", "/orders/{orderId}"),
        ("POST", "/orders/{orderId}/cancel"),
        ("GET", "/orders/{orderId}/events"),
        ("GET", "/orders/{orderId}/stream"),
        ("GET", "/accounts/{accountId}/events"),
        ("GET", "/stream"),
        ("POST", "/orders/cancel-all"),
        ("GET", "/orders/{orderId}/explain"),
        ("GET", "/positions"),
        ("POST", "/positions/{symbol}/close"),
        ("GET", "/account"),
        ("GET", "/risk/exposure"),
        ("GET", "/instruments"),
        ("GET", "/venues"),
        ("GET", "/quotes/{symbol}"),
        ("POST", "/admin/kill"),
        ("GET", "/admin/kills"),
        ("GET", "/admin/kill/{killId}"),
        ("POST", "/admin/kill/{killId}/clear"),
        ("GET", "/positions"),
        ("GET", "/balances"),
        ("GET", "/ledger"),
        ("GET", "/stats"),
        ("GET", "/pnl"),
        ("GET", "/statement"),
        ("POST", "/admin/ledger"),
        ("GET", "/reconcile"),
        ("POST", "/admin/reconcile"),
        ("GET", "/admin/breaks"),
        ("GET", "/admin/breaks/{breakId}"),
        ("POST", "/admin/breaks/{breakId}/explain"),
        ("POST", "/admin/breaks/{breakId}/adopt"),
        ("POST", "/pdca/recheck"),
        ("POST", "/pdca/recheck_all"),
        ("GET", "/pdca/recheck/{request_id}"),
        ("PUT", "/pdca/strategies/{strategy_id}"),
        ("DELETE", "/pdca/strategies/{strategy_id}"),
        ("GET", "/gui/strategies"),
        ("GET", "/gui/strategies/{strategy_id}"),
        ("GET", "/pdca/downloads/{request_id}/{strategy_id}/{name}"),
        ("GET", "/pdca/artifacts/{request_id}/{strategy_id}/{name}"),
        ("GET", "/metrics"),
        ("GET", "/"),
        ("GET", "/docs"),
        ("GET", "/dashboard"),
        ("GET", "/dashboard/{file}"),
        ("GET", "/dashboard/books/{report}"),
        ("GET", "/docs/reference.css"),
        ("GET", "/openapi.json"),
        ("GET", "/openapi.yaml"),
    }


def test_an_answer_that_conforms_to_the_contract_passes() -> None:
    contract = Contract()
    contract.check(*HEALTH)
    headers = {"content-type": "application/json; charset=utf-8", "retry-after": "1"}
    contract.check(
        "post", f"/orders/{ORDER_ID}/cancel?x=/", 503, headers, b'{"status":"UNKNOWN","reason":"OUTCOME_UNKNOWN"}'
    )
    prometheus = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}
    contract.check("GET", "/metrics", 200, prometheus, b"up 1\n")
    unfinished = b': keepalive\n\nevent: ready\ndata: {"accountId":"a"}\n\nevent: order_update\ndata: {'
    contract.check("GET", "/stream?lastEventId=1", 200, STREAM, unfinished)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (("GET", "/nowhere", *HEALTH[2:]), "/nowhere is not in the contract"),
        (("DELETE", *HEALTH[1:]), "DELETE /health is not in the contract"),
        (("GET", "/health", 500, *HEALTH[3:]), "status 500 is not documented"),
        ((*HEALTH[:3], {"content-type": "text/html"}, b"ok"), "content type 'text/html'"),
        ((*HEALTH[:3], {}, b"ok"), "content type ''"),
        ((*HEALTH[:4], b'{"status":"fine"}'), r"\$\.status: 'fine' is not one of \['ok', 'degraded'\]"),
        ((*HEALTH[:4], b'{"status":"ok","uptime":3}'), "'uptime' was unexpected"),
        (("GET", "/metrics", 200, {"content-type": "text/plain"}, b""), "content type 'text/plain'"),
        (
            ("POST", "/orders", 503, HEALTH[3], b'{"status":"UNKNOWN","reason":"QUEUE_REJECT"}'),
            "not valid under any of the given schemas",
        ),
        (
            ("POST", "/orders", 202, HEALTH[3] | {"Idempotent-Replayed": "yes"}, b"{}"),
            "Idempotent-Replayed header: .*'true' was expected",
        ),
        (
            ("GET", "/stream", 200, STREAM, b'event: hello\ndata: {"a":1}\n\n'),
            "message 'hello' is not documented",
        ),
        (
            (
                "GET",
                f"/orders/{ORDER_ID}/stream",
                200,
                {"content-type": "text/event-stream"},
                b"event: ready\ndata: {}\n\n",
            ),
            "ready: .*'orderId' is a required property",
        ),
    ],
)
def test_an_answer_that_violates_the_contract_fails_with_the_violation(answer: tuple[Any, ...], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        Contract().check(*answer)
