"""Accounts are hashed in every log line."""

import json

import pytest
import structlog

from switchyard.telemetry.logs import configure_logs


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_line_names_an_account(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info", form)
    try:
        structlog.get_logger().info("order_risk_rejected", account_id="mary.miller", reason="RISK_RATE")
    finally:
        structlog.reset_defaults()
    line = capsys.readouterr().err
    assert "mary" not in line and "account_id" not in line
    if form == "json":
        # printf %s mary.miller | sha256sum | cut -c1-12
        assert json.loads(line)["account_hash"] == "1b91ca6e3edf"
