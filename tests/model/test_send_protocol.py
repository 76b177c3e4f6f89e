"""The send protocol, searched exhaustively: no intent is executed twice, and each rule is there for a reason."""

import sys

import pytest

from switchyard.domain.orders.order import TimeInForce
from tests.model.search import search
from tests.model.state import Assumptions, Budget, Rules

SENDING = Budget(attempts=2, crashes=1, restores=0)
RESTORE = Budget(attempts=2, crashes=1, freezes=0, cuts=0, clock_steps=0, verdicts=0)
FROZEN_RESTORE = RESTORE._replace(freezes=1)

# What each class assumes: with permanent deduplication, and where nothing is ever resent, a request may stay on its way
# for as long as it likes; elsewhere it must have arrived, or be lost, within the documented times.
PERMANENT = Assumptions("permanent", path_stalls=True)
TTL = Assumptions("ttl")
WHILE_OPEN = Assumptions("while_open")
NONE = Assumptions("none", path_stalls=True)
CLASSES = (PERMANENT, TTL, WHILE_OPEN, NONE)
TIMES_IN_FORCE: tuple[TimeInForce, ...] = ("GTC", "IOC")


def ioc(assumptions: Assumptions) -> Assumptions:
    return assumptions._replace(time_in_force="IOC")


def prompt(assumptions: Assumptions) -> Assumptions:
    """The class on a path that keeps to its times: a restored database needs that in every class."""
    return assumptions._replace(path_stalls=False)


@pytest.mark.parametrize("assumptions", CLASSES, ids=lambda given: given.dedupe)
def test_crashes_a_frozen_venue_and_a_partition_lead_to_one_execution_at_most(assumptions: Assumptions) -> None:
    for time_in_force in TIMES_IN_FORCE:
        found = search(Rules(), assumptions._replace(time_in_force=time_in_force), SENDING)
        assert found.trace is None, str(found)


@pytest.mark.parametrize("assumptions", CLASSES, ids=lambda given: given.dedupe)
def test_a_restored_database_leads_to_one_execution_at_most(assumptions: Assumptions) -> None:
    for time_in_force in TIMES_IN_FORCE:
        found = search(Rules(), prompt(assumptions)._replace(time_in_force=time_in_force), RESTORE)
        assert found.trace is None, str(found)


def test_a_restored_database_and_a_frozen_venue_lead_to_one_execution_at_most() -> None:
    found = search(Rules(), WHILE_OPEN, FROZEN_RESTORE)
    assert found.trace is None, str(found)


@pytest.mark.parametrize(
    ("rule", "assumptions", "budget", "step"),
    [
        ("zero_linger", WHILE_OPEN, SENDING, "a request leaves the orphaned"),
        ("answering_since", WHILE_OPEN, SENDING, "the venue is stopped"),
        ("monotonic_window", WHILE_OPEN, SENDING, "the wall clock steps ahead"),
        ("absent_keeps_id", ioc(PERMANENT), SENDING, "the client repeats the key: a new generation"),
        ("errors_are_not_pages", WHILE_OPEN, FROZEN_RESTORE, "the process takes an error for an empty page"),
        ("strays_filed", NONE, RESTORE, "the process reads the venue and opens it"),
        ("restore_is_atomic", WHILE_OPEN, RESTORE, "db restored: the epoch is open"),
        ("old_state_noticed", WHILE_OPEN, RESTORE, "the backup is restored"),
        ("evidence_wins", NONE, SENDING, "an operator says: not sent"),
        ("restored_venue_waits", WHILE_OPEN, RESTORE, "db restored: the rows are in doubt"),
        ("restored_keys_keep_id", ioc(prompt(PERMANENT)), RESTORE, "the send deadline passed"),
        ("strays_of_later_generations", ioc(prompt(PERMANENT)), RESTORE, "the backup is restored"),
        ("queued_strays_doubted", prompt(NONE), RESTORE, "the process reads the venue and opens it"),
        ("ttl_needs_proof", TTL, SENDING, "resend within the venue's deduplication time"),
    ],
)
def test_without_one_rule_an_order_is_executed_twice(
    rule: str, assumptions: Assumptions, budget: Budget, step: str
) -> None:
    found = search(Rules(**{rule: False}), assumptions, budget)
    sys.stdout.write(f"without {rule}, {assumptions}: {found}\n")  # `pytest -s` shows the traces
    assert found.trace is not None, f"the search finds no second execution without {rule}: {found}"
    assert step in found.trace, str(found)


def test_a_path_that_stalls_longer_than_documented_can_not_be_closed_without_permanent_deduplication() -> None:
    found = search(Rules(), WHILE_OPEN._replace(path_stalls=True), SENDING)
    assert found.trace is not None
