"""The final answer to a `/do/order` request, kept beside its idempotency key."""

from switchyard.domain.changes import Change
from switchyard.domain.events import event
from switchyard.domain.facts import ResultFact
from switchyard.domain.idempotency import KeyResult
from switchyard.domain.orders import Order
from switchyard.domain.results import answer_status


def record_result(order: Order, http_status: int, response: str, result_digest: str) -> Change:
    """Keep the final answer to the order's request, so that every repeat of it gets the same one."""
    assert order.operation is not None and order.idempotency_key is not None, "the order has no key"
    result = KeyResult(
        account_id=order.account_id,
        operation=order.operation,
        idempotency_key=order.idempotency_key,
        order_id=order.order_id,
        status=answer_status(http_status),
        http_status=http_status,
        response_payload_json=response,
        result_digest=result_digest,
    )
    fact = ResultFact(http_status=http_status, response=response, result_digest=result_digest)
    return Change(events=(event("ResultRecorded", order.account_id, order.order_id, fact),), results=(result,))
