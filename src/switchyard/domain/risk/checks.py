"""A check: a name and a pure function from a subject to a violation or none; the list of checks is judged in order."""

from collections.abc import Callable

import msgspec

from switchyard.domain.risk.reasons import Violation
from switchyard.domain.risk.subject import Subject

Judge = Callable[[Subject], Violation | None]


class Check(msgspec.Struct, frozen=True):
    """One check; its name is its main reason code."""

    name: str
    judge: Judge


class CheckResult(msgspec.Struct, frozen=True):
    """A check as the dry run shows it."""

    name: str
    violation: Violation | None
    """None: passed."""
