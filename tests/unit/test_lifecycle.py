"""The lifecycle table: evidence is applied in every status, and nothing is sent after the end."""

from typing import get_args

import pytest

from switchyard.domain.orders.lifecycle import FINAL, ImpossibleStep, Status, Step, is_final, next_status

STATUSES: tuple[Status, ...] = get_args(Status)
EVIDENCE: tuple[Step, ...] = ("acknowledge", "part_fill", "fill", "canceled", "reject", "expire")


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("step", EVIDENCE)
def test_evidence_from_a_venue_is_applied_in_every_status(status: Status, step: Step) -> None:
    assert next_status(status, step) in STATUSES


@pytest.mark.parametrize("status", STATUSES)
def test_a_complete_fill_leads_to_filled_from_every_status(status: Status) -> None:
    assert next_status(status, "fill") == "FILLED"


@pytest.mark.parametrize("status", sorted(FINAL))
def test_only_a_report_of_the_venue_leads_from_a_final_status_to_another(status: Status) -> None:
    for step in set(get_args(Step)) - {"reopen", "reopen_part_filled"}:
        try:
            after = next_status(status, step)
        except ImpossibleStep:
            continue
        assert is_final(after)


@pytest.mark.parametrize("status", sorted(FINAL))
@pytest.mark.parametrize("step", ["attempt", "cancel", "unsent"])
def test_nothing_is_sent_after_the_end(status: Status, step: Step) -> None:
    with pytest.raises(ImpossibleStep):
        next_status(status, step)


def test_doubt_is_not_a_rejection() -> None:
    assert next_status("SENDING", "doubt") == "UNKNOWN"
    assert next_status("UNKNOWN", "cancel") == "UNKNOWN"
    assert not is_final("UNKNOWN")


def test_an_order_that_was_never_sent_is_cancelled_at_once() -> None:
    assert next_status("ACCEPTED", "cancel") == "CANCELED"
    assert next_status("CANCEL_REQUESTED", "unsent") == "CANCELED"
