"""Whether a process can do its work: one check for each thing that it depends on, and the sum of them."""

from collections.abc import Sequence
from typing import Literal

import msgspec

CheckName = Literal[
    "process", "journal", "worker", "venues", "books", "reconcile", "bus", "cache", "pdca", "disk", "clock"
]
CheckStatus = Literal[
    "ok",
    "degraded",  # a part of the work waits or is slower; requests are still served
    "failed",  # requests should go to another process
]
ReadyStatus = Literal["ready", "degraded", "not_ready"]


class Check(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that the process depends on."""

    check: CheckName
    status: CheckStatus
    detail: str = ""
    """What was found; for operators, since it may name addresses and quote other systems."""


class Readiness(msgspec.Struct, frozen=True):
    """The body of `GET /health/ready`."""

    status: ReadyStatus
    checks: tuple[Check, ...]

    def without_details(self) -> "Readiness":
        """Return what everyone may see."""
        return Readiness(self.status, tuple([Check(each.check, each.status) for each in self.checks]))


def readiness_of(checks: Sequence[Check]) -> Readiness:
    """The checks and the worst of them."""
    found = {check.status for check in checks}
    status: ReadyStatus = "not_ready" if "failed" in found else "degraded" if "degraded" in found else "ready"
    return Readiness(status, tuple(checks))
