"""Settings that stop the start: unknown ones under our own prefixes, and kinds of venues that are not installed.

Under shared prefixes only a misspelt name does.
"""

from pathlib import Path

import pytest

from tests.support.process import Process, run_command


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("SWITCHYARD_PROT", "did you mean SWITCHYARD_PORT?"),
        ("RISK_MAX_QYT", "did you mean RISK_MAX_QTY?"),
        ("SSE_BUFFER", "did you mean SSE_BUFFER_SIZE?"),
        ("OUTBOX_BATCHSIZE", "did you mean OUTBOX_BATCH_SIZE?"),
        ("SOR_VENUE", "did you mean SOR_VENUES?"),
        ("VENUE_URL_OTHER", "did you mean VENUE_URL_SIM?"),
        ("VENUE_TIMEOUT", "; "),
        ("EXCHANGE_SIM_DELAY", "did you mean EXCHANGE_SIM_DELAY_MS_SIM?"),
        ("IDEMPOTENCY_TTL", "did you mean IDEMPOTENCY_TTL_SEC?"),
        ("PDCA_XYZZY", "unset it"),
        ("DO_RATE_PER_MINUTE", "did you mean DO_RATE_PER_MIN?"),
        ("DO_REQUIRE_TOKENS", "did you mean DO_REQUIRE_TOKEN?"),
        ("GATEWAY_AUDIT_PAHT", "did you mean GATEWAY_AUDIT_PATH?"),
        ("GATEWAY_METRIC_TOKEN", "did you mean GATEWAY_METRICS_TOKEN?"),
        ("JWT_HS256_SECRETS", "did you mean JWT_HS256_SECRET?"),
        ("SWITCHYARD_SERVICE_HOST", "enableServiceLinks"),
    ],
)
def test_an_unknown_setting_stops_the_start(name: str, hint: str, tmp_path: Path) -> None:
    for command in ("up", "orders"):
        done = run_command(command, SWITCHYARD_DATA_DIR=str(tmp_path / "var"), **{name: "1"})
        assert done.returncode == 4
        assert done.stderr.startswith(f"switchyard: {name}: is not a setting; ")
        assert hint in done.stderr
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "var").exists()


async def test_names_of_other_programs_are_a_warning(tmp_path: Path) -> None:
    others = ["DO_NOT_TRACK", "GATEWAY_SERVICE_HOST", "GATEWAY_PORT_8081_TCP_ADDR", "KAFKA_OPTS", "BACKOFFICE_URL"]
    process = Process(tmp_path, **dict.fromkeys(others, "1"))
    try:
        await process.start()
        assert process.stop() == 0
    finally:
        process.close()
    warned = [line for line in process.log.splitlines() if "setting_unknown" in line]
    assert [next(name for name in others if f"name={name}" in line) for line in warned] == sorted(others)


def test_a_kind_of_venue_that_is_not_installed_stops_the_start(tmp_path: Path) -> None:
    done = run_command("up", SWITCHYARD_DATA_DIR=str(tmp_path / "var"), VENUE_URL_SIM="nosuch:https://127.0.0.1:1")
    assert done.returncode == 4
    assert done.stderr.startswith(
        "switchyard: VENUE_URL_SIM: 'nosuch' is no kind of venue here; installed: http, paper"
    )
    assert done.stderr.count("\n") == 1
