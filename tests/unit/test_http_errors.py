"""Errors as HTTP responses: one status per error in both body forms."""

from collections.abc import Callable
from datetime import timedelta

import msgspec
import pytest

from switchyard.domain import errors
from switchyard.entrypoints.http.errors import (
    InvalidHeader,
    as_answered,
    do_error_response,
    error_reason,
    error_response,
)

CASES: list[tuple[Exception, int, str, str]] = [
    (errors.InvalidJson("x"), 400, "REJECTED", "INVALID_JSON"),
    (errors.InvalidKey("x"), 400, "REJECTED", "INVALID_IDEMPOTENCY_KEY"),
    (InvalidHeader("Last-Event-ID", "x"), 400, "REJECTED", "VALIDATION_ERROR"),
    (errors.Unauthorized("TOKEN_EXPIRED", "x"), 401, "UNAUTHORIZED", "TOKEN_EXPIRED"),
    (errors.NotFound(), 404, "NOT_FOUND", "NOT_FOUND"),
    (errors.IdempotencyConflict("k"), 409, "REJECTED", "IDEMPOTENCY_CONFLICT"),
    (errors.OrderFinal(), 409, "REJECTED", "ORDER_FINAL"),
    (errors.BodyTooLarge("x"), 413, "REJECTED", "BODY_TOO_LARGE"),
    (errors.InvalidField("qty", "x"), 422, "REJECTED", "VALIDATION_ERROR"),
    (errors.KeyMismatch(), 422, "REJECTED", "IDEMPOTENCY_MISMATCH"),
    (errors.ConstraintViolated("max_dd", "x"), 422, "REJECTED", "VALIDATION_ERROR"),
    (errors.TooManyRequests(timedelta(seconds=6.2)), 429, "REJECTED", "RATE_LIMITED"),
    (errors.QueueFull("x"), 503, "REJECTED", "QUEUE_REJECT"),
    (errors.QueueDelayed("x"), 503, "REJECTED", "QUEUE_DELAY"),
    (errors.CredentialPaused("sim"), 503, "REJECTED", "CREDENTIAL_PAUSED"),
    (errors.BrokerFailed("x"), 503, "REJECTED", "BROKER_DOWN"),
    (errors.JournalUnavailable("x"), 503, "REJECTED", "JOURNAL_UNAVAILABLE"),
    (errors.OutcomeUnknown("x"), 503, "UNKNOWN", "OUTCOME_UNKNOWN"),
    (errors.SwitchyardError("x"), 500, "ERROR", "INTERNAL_ERROR"),
    (RuntimeError("secret"), 500, "ERROR", "INTERNAL_ERROR"),
]


@pytest.mark.parametrize(("error", "http_status", "status", "reason"), CASES, ids=lambda value: repr(value)[:30])
def test_an_error_has_the_same_status_and_code_in_both_forms(
    error: Exception, http_status: int, status: str, reason: str
) -> None:
    response = error_response(error)
    body = msgspec.json.decode(response.body)
    assert (response.status, body["status"], body["reason"]) == (http_status, status, reason)
    do_response, do_body = do_error_response(error)
    do_error = msgspec.json.decode(do_response.body)
    # Seeds 000 and 003 have one code for every bad token, and for every broker that takes no orders; `reason_code` has
    # ours.
    has_own = isinstance(error, errors.Unauthorized | errors.CredentialPaused)
    code = do_error["reason_code"] if has_own else do_error["error"]
    assert (do_response.status, code) == (http_status, reason)
    assert do_body.message
    assert do_response.headers[2:] == response.headers[2:], "the headers after the body's type and length"
    assert b"secret" not in response.body + do_response.body


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("GET", "JOURNAL_UNAVAILABLE"),
        ("HEAD", "JOURNAL_UNAVAILABLE"),
        ("POST", "OUTCOME_UNKNOWN"),
        ("PATCH", "OUTCOME_UNKNOWN"),
    ],
)
def test_what_a_write_was_not_shown_may_be_its_own_first_attempt(method: str, reason: str) -> None:
    assert error_reason(as_answered(errors.NotReplicated("x"), method)) == reason
    assert error_reason(as_answered(errors.JournalUnavailable("x"), method)) == "JOURNAL_UNAVAILABLE"


@pytest.mark.parametrize(
    "error", [errors.OutcomeUnknown("x"), errors.JournalBroken("/srv/x"), errors.JournalUnavailable("x")]
)
def test_a_read_that_the_database_cannot_answer_says_to_read_again(error: Exception) -> None:
    response = error_response(as_answered(error, "GET"))
    body = msgspec.json.decode(response.body)
    assert (response.status, body["status"], body["reason"]) == (503, "REJECTED", "JOURNAL_UNAVAILABLE")
    assert body["message"].endswith(": read again")
    assert b"/srv" not in response.body
    assert (b"retry-after", b"1") in response.headers
    assert as_answered(error, "POST") is error


def test_other_errors_of_a_read_are_those_of_every_request() -> None:
    missing = errors.NotFound()
    assert as_answered(missing, "GET") is missing


def test_a_missing_order_has_no_details_that_could_tell_it_from_another_accounts() -> None:
    assert msgspec.json.decode(error_response(errors.NotFound()).body) == {"status": "NOT_FOUND", "reason": "NOT_FOUND"}


def test_headers_tell_a_client_when_to_retry_and_how_to_authenticate() -> None:
    assert (b"retry-after", b"7") in error_response(errors.TooManyRequests(timedelta(seconds=6.2))).headers
    assert (b"retry-after", b"1") in error_response(errors.QueueFull("x")).headers
    assert (b"www-authenticate", b"Bearer") in error_response(errors.Unauthorized("TOKEN_MISSING", "x")).headers


def test_seed_003s_form_names_the_key_of_a_conflict_and_the_broken_constraint() -> None:
    _, conflict = do_error_response(errors.IdempotencyConflict("k"))
    assert (conflict.message, conflict.idempotency_key) == ("body differs", "k")
    _, violated = do_error_response(errors.ConstraintViolated("max_dd", "x"))
    assert (violated.reason_code, violated.field) == ("MAX_DD", "risk_constraints.max_dd")


@pytest.mark.parametrize("quotes", [str, repr])
def test_an_answer_does_not_quote_a_librarys_error(quotes: Callable[[object], str]) -> None:
    cause = OSError(111, "Connect call failed ('10.0.0.5', 5432)")
    try:
        raise errors.JournalUnavailable(f"the database does not answer: {quotes(cause)}") from cause
    except errors.JournalUnavailable as error:
        bodies = [error_response(error).body, do_error_response(error)[0].body]
    assert all(b"the database does not answer" in body and b"10.0.0.5" not in body for body in bodies)
