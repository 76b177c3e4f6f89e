"""The violation of an order that a kill covers."""

from switchyard.domain.kills import Kill
from switchyard.domain.risk.reasons import Violation


def killed(kill: Kill) -> Violation:
    """Why the order is rejected; the operator's name and reason are not for the account that sent it."""
    return Violation(kill.block_reason, f"the kill switch is on for {kill.described_scope} ({kill.kill_id})")
