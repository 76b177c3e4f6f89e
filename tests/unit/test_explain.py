"""A doubt in words: the next step and the time of its decision follow from what the venue promises."""

from datetime import timedelta
from typing import Any

import pytest

from switchyard.adapters.memory.clock import START
from switchyard.domain.decisions import record_doubt
from switchyard.domain.outbox import OutboxRow
from switchyard.domain.reasons import DoubtCode
from switchyard.flow.sending.explain import explain
from switchyard.ports.venue import Capabilities
from tests.support.build import an_accept, state_after

SECOND = timedelta(seconds=1)
PROVABLE: dict[str, Any] = {"dedupe": "while_open", "lookup": "all", "acceptance_window": 10 * SECOND}


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
    explained = explain(a_doubt(), Capabilities(**{**PROVABLE, **changes}), 5 * SECOND, START + 90 * SECOND)
    assert (explained.next_step, explained.decided_after_seconds, explained.age_seconds) == (step, seconds, 90)
    assert ("never by itself" in explained.decided) is (seconds is None)
    assert ("outbox resolve" in explained.can_do, "--as sent" in explained.can_do) == (True, True)


def test_a_venue_that_is_not_configured_leaves_the_decision_to_a_person() -> None:
    explained = explain(a_doubt(), None, 5 * SECOND, START)
    assert (explained.next_step, "not in this configuration" in explained.awaited) == ("operator", True)


def test_an_order_that_the_venue_reported_before_is_not_proven_absent() -> None:
    explained = explain(a_doubt("EXECUTED_BEFORE"), Capabilities(**PROVABLE), 5 * SECOND, START)
    assert (explained.next_step, explained.decided_after_seconds) == ("found", None)


def test_a_row_that_was_never_sent_waits_for_its_attempt() -> None:
    explained = explain(an_accept().outbox[0], Capabilities(**PROVABLE), 5 * SECOND, START)
    assert (explained.next_step, "no byte of the order was written" in explained.happened) == ("send", True)
