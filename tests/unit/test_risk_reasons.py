"""The reference page shows the one table of risk reasons."""

import re
from pathlib import Path

from switchyard.domain.risk.checks import RISK_REASONS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "risk.md"


def test_the_reference_page_has_every_reason_with_its_meaning() -> None:
    shown = dict(re.findall(r"^\| `([A-Z_]+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE))
    assert shown == RISK_REASONS
