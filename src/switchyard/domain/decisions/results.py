"""The final answer to a request, kept beside its idempotency key."""

import msgspec

from switchyard.domain.changes import Change
from switchyard.domain.events import ResultFact, event
from switchyard.domain.idempotency import KeyEntry


def record_result(entry: KeyEntry, http_status: int, response: str, result_digest: str) -> Change:
    """Keep the final answer to a request, so that every repeat of it gets the same one."""
    kept = msgspec.structs.replace(
        entry,
        status="succeeded" if http_status < 400 else "failed",
        http_status=http_status,
        response_payload_json=response,
        result_digest=result_digest,
        version=entry.version + 1,
    )
    fact = ResultFact(
        operation=kept.operation,
        key=kept.idempotency_key,
        status=kept.status,
        http_status=http_status,
        response=response,
        result_digest=result_digest,
        version=kept.version,
    )
    return Change(events=(event("ResultRecorded", kept.account_id, kept.order_id, fact),), keys=(kept,))
