"""Which tests `make test` runs: those of single parts, and for every promise one of whole processes on each engine.

`make test-all` runs all. A promise is listed here by name, so that nobody removes its last test from the short run.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

OPTION = "--core"
PARTS = frozenset({"unit", "contract", "api"})
"""Folders of tests that start no process of their own, apart from the modules below."""

PROCESSES = frozenset(
    {
        "test_books_reports.py",
        "test_canary.py",
        "test_cli.py",
        "test_cli_conventions.py",
        "test_contract_fuzz.py",
        "test_file_modes.py",
        "test_generated_client.py",
        "test_ledger_machine.py",
        "test_lost_answers.py",
        "test_standby.py",
    }
)
"""Modules in these folders that start a process for each test, or take as long."""

PROMISES: Mapping[str, Sequence[str]] = {
    "an acknowledged order survives a kill, and is executed once": (
        "crash/test_kill.py::test_a_process_killed_several_times_under_load_loses_and_doubles_nothing[sqlite]",
        "crash/test_kill.py::test_a_process_killed_several_times_under_load_loses_and_doubles_nothing[postgres]",
    ),
    "a lost answer is a doubt, and a doubt is neither a rejection nor a second order": (
        "crash/test_boundaries.py::test_a_single_process_on_sqlite_that_dies_at_a_boundary_executes_nothing_twice_and_"
        "loses_nothing[after_the_request_left]",
        "crash/test_boundaries.py::test_a_worker_that_dies_at_a_boundary_executes_nothing_twice_and_loses_nothing["
        "after_the_request_left]",
    ),
    "the harness notices a sender that sends again without asking": (
        "crash/test_boundaries.py::test_the_harness_detects_a_survivor_that_sends_again_without_asking[none]",
    ),
    "a request that was given up does not arrive later": (
        "crash/test_partition.py::test_an_order_does_not_arrive_after_its_sender_gave_up[time-out]",
    ),
    "one key is one order, over gateways too": (
        "e2e/test_separate_processes.py::test_a_hundred_posts_with_one_key_over_two_gateways_are_one_order",
        "e2e/test_separate_processes.py::test_a_second_process_on_the_same_sqlite_file_does_not_start",
    ),
    "a commit that only the primary has is not acknowledged": (
        "crash/test_standby_failover.py::test_after_a_promotion_the_order_is_there_or_was_never_acknowledged[do_order]",
    ),
    "a second response never decides about another order": (
        "crash/test_second_responses.py::test_a_second_response_never_decides_about_another_order["
        "none-one request each]",
    ),
    "a restored database sends nothing before it is declared": (
        "crash/test_older_state.py::"
        "test_a_data_folder_put_back_as_a_whole_sends_nothing_before_it_is_declared_restored",
        "crash/test_restore.py::test_a_worker_on_an_older_database_sends_nothing_before_db_restored[shared]",
    ),
    "a limit is never exceeded by one": (
        "e2e/test_limits_over_gateways.py::test_partial_fills_and_a_kill_leave_exact_totals[sqlite]",
        "e2e/test_limits_over_gateways.py::test_200_parallel_orders_over_two_gateways_never_exceed_the_open_notional["
        "the limit is between two orders]",
    ),
    "after a kill nothing begins": (
        "e2e/test_kill_switch.py::test_under_load_no_new_order_reaches_the_venue_after_the_answer[up]",
    ),
    "fills are booked once": (
        "crash/test_books_kill.py::test_books_of_a_process_that_is_killed_several_times_are_those_of_the_venues_log",
    ),
}


_LISTED = frozenset(test for tests in PROMISES.values() for test in tests)
_LISTED_MODULES = frozenset(test.partition("::")[0] for test in _LISTED)


def has_core(module: Path) -> bool:
    """Whether `make test` runs some test of the module: to import the others takes as long as many tests."""
    folder, name = module.parent.name, module.name
    return name not in PROCESSES if folder in PARTS else f"{folder}/{name}" in _LISTED_MODULES


def is_core(item: pytest.Item) -> bool:
    """Whether `make test` runs the test."""
    return item.path.parent.name in PARTS or item.nodeid.removeprefix("tests/") in _LISTED
