"""A doubt in words: the next step and the time of its decision are those of the worker that settles it."""

from datetime import timedelta
from typing import Any

import pytest

from switchyard.domain.decisions import record_doubt
from switchyard.domain.orders.outbox import OutboxRow
from switchyard.domain.orders.reasons import DoubtCode
from switchyard.flow.sending.operator import Decider, Settling, explain, standing
from switchyard.flow.sending.resolve import waiting_time
from switchyard.ports.venue import Capabilities
from tests.support.build import an_accept, state_after
from tests.support.memory.clock import START

SECOND = timedelta(seconds=1)
PROVABLE: dict[str, Any] = {"dedupe": "while_open", "lookup": "all", "acceptance_window": 10 * SECOND}


def a_decider(*, is_running: bool = True, **changes: Any) -> Decider:
    capabilities = Capabilities(**{**PROVABLE, **changes})
    wait = waiting_time(capabilities, 5 * SECOND)
    seconds = None if wait is None else wait.total_seconds()
    settling = Settling(lookup=capabilities.lookup, absent_after_seconds=seconds)
    return Decider(settling=settling, is_running=is_running)


def a_doubt(code: DoubtCode = "SENDER_DIED") -> OutboxRow:
    accepted = an_accept()
    return record_doubt(state_after(accepted), accepted.outbox[0], code, None, START).outbox[0]


@pytest.mark.parametrize(
    ("changes", "step", "seconds"),
    [
        ({}, "lookup", 15),
        ({"hop_hold": 20 * SECOND}, "lookup", 35),
        ({"request_expiry": True}, "lookup", 12),
        ({"acceptance_window": None}, "found", None),
        ({"dedupe": "none"}, "found", None),
        ({"lookup": "open"}, "found", None),
        ({"lookup": "none"}, "report", None),
    ],
)
def test_the_next_step_and_the_time_of_the_decision(changes: dict[str, Any], step: str, seconds: float | None) -> None:
    explained = explain(a_doubt(), a_decider(**changes), START + 90 * SECOND)
    assert (explained.next_step, explained.decided_after_seconds, explained.age_seconds) == (step, seconds, 90)
    assert ("never by itself" in explained.decided) is (seconds is None)
    assert ("outbox resolve" in explained.can_do, "--as sent" in explained.can_do) == (True, True)
    assert ("settles by itself" in (standing([a_doubt()], a_decider(**changes)) or "")) is (seconds is not None)


@pytest.mark.parametrize("decider", [Decider(), Decider(is_running=True), a_decider(is_running=False)])
def test_without_a_worker_nothing_is_said_about_how_a_doubt_ends(decider: Decider) -> None:
    explained = explain(a_doubt(), decider, START)
    assert (explained.next_step, explained.decided_after_seconds) == ("unknown", None)
    assert "cannot be told" in explained.decided and "wait;" not in explained.can_do
    assert "start the worker" in explained.can_do and "outbox resolve" in explained.can_do
    assert "cannot be told whether it settles by itself" in (standing([a_doubt()], decider) or "")


def test_an_order_without_a_doubt_has_nothing_to_settle() -> None:
    assert standing([an_accept().outbox[0]], a_decider()) is None


def test_an_order_that_the_venue_reported_before_is_not_proven_absent() -> None:
    explained = explain(a_doubt("EXECUTED_BEFORE"), a_decider(), START)
    assert (explained.next_step, explained.decided_after_seconds) == ("found", None)


def test_a_doubt_that_is_older_than_the_venues_lookup_names_that_reason_and_its_setting() -> None:
    explained = explain(a_doubt("LOOKUP_EXPIRED"), a_decider(), START)
    assert (explained.next_step, explained.decided_after_seconds) == ("found", None)
    assert "VENUE_LOOKUP_KEEPS_SEC_" in explained.decided and "outbox resolve" in explained.can_do
    assert "no longer keeps orders of this age" in (standing([a_doubt("LOOKUP_EXPIRED")], a_decider()) or "")


def test_a_row_that_was_never_sent_waits_for_its_attempt() -> None:
    explained = explain(an_accept().outbox[0], a_decider(), START)
    assert (explained.next_step, "no byte of the order was written" in explained.happened) == ("send", True)
