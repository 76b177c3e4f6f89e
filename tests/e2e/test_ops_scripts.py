"""The operators' scripts against real processes: what passes, and every way in which they fail."""

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from tests.support.polling import until
from tests.support.process import ROOT, SECRET, Process

SCRIPTS = ROOT / "scripts"
ALL = sorted(SCRIPTS.glob("*/*.sh"))

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """`switchyard up` on a paper exchange that fills in three parts, half a second after an order arrives."""
    started = Process(
        tmp_path_factory.mktemp("scripts"),
        SWITCHYARD_BACKOFFICE="true",
        EXCHANGE_SIM_PARTIAL_STEPS_SIM="3",
        EXCHANGE_SIM_DELAY_MS_SIM="500",
        SWITCHYARD_RECONCILE_QUIET_SEC="0",
        SWITCHYARD_RECONCILE_SEC="1",
    )
    asyncio.run(started.start())
    yield started
    started.close()


@pytest.fixture(scope="module")
def run(process: Process) -> Run:
    """Run a script with the addresses of the process."""

    def script(name: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": os.environ["PATH"],
            "GATEWAY_URL": process.url,
            "BACKOFFICE_URL": process.backoffice_url,
            "JWT_HS256_SECRET": SECRET,
            **variables,
        }
        return subprocess.run(
            ["sh", str(SCRIPTS / name)], env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    return script


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_every_script_is_one_for_a_posix_shell(path: Path) -> None:
    for shell in (["sh", "-n"], ["dash", "-n"]):
        assert subprocess.run([*shell, str(path)], check=False).returncode == 0
    assert not {"[[", "function ", "local ", "pipefail", "<<<"} & set(path.read_text().split())
    assert path.name == "lib.sh" or os.access(path, os.X_OK)


# The tests below run in this order: the first one needs a process without orders.


def test_the_recovery_check_looks_for_the_last_event_in_strict_mode(run: Run) -> None:
    fresh = run("ops/backoffice_recovery_check.sh", BACKOFFICE_PASSFAIL="1")
    assert (fresh.returncode, fresh.stdout.splitlines()[-1]) == (0, "PASS"), fresh.stdout + fresh.stderr
    strict = run("ops/backoffice_recovery_check.sh", BACKOFFICE_PASSFAIL="1", BACKOFFICE_STRICT="1")
    assert (strict.returncode, strict.stdout.splitlines()[-1]) == (1, "FAIL: 1 of 6 checks")
    assert "FAIL  /stats: there is no lastEventAt" in strict.stdout


def test_an_order_passes_from_acceptance_to_the_recovery_check(run: Run, process: Process) -> None:
    done = run("ops/gateway_backoffice_e2e.sh", WAIT_SEC="20", BACKOFFICE_PASSFAIL="1", BACKOFFICE_STRICT="1")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["accepted", "filled", "booked", *["ok"] * 6, "PASS"]
    assert [line.split()[1].rstrip(":") for line in lines[3:9]] == [
        "/health",
        "/stats",
        "/positions",
        "/balances",
        "/ledger",
        "/reconcile",
    ]
    # With a token of its own instead of the secret.
    token = process.headers("desk")["Authorization"].removeprefix("Bearer ")
    own = run("ops/backoffice_recovery_check.sh", BACKOFFICE_JWT=token, JWT_HS256_SECRET="")
    assert (own.returncode, "/positions: 0 open" in own.stdout) == (0, True), own.stdout + own.stderr
    late = run("ops/gateway_backoffice_e2e.sh", WAIT_SEC="0")
    assert late.returncode == 1
    assert "was not filled within 0 s (WAIT_SEC)" in late.stdout


def test_the_position_moves_by_the_order(run: Run) -> None:
    done = run("legacy/gateway_e2e_smoke.sh", BACKOFFICE_ACCOUNT_ID="smoke", QTY="1007")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "PASS  the position in USDJPY went from 0 to 1007"
    again = run("legacy/gateway_e2e_smoke.sh", BACKOFFICE_ACCOUNT_ID="smoke", QTY="1005")
    assert again.stdout.splitlines()[-1] == "PASS  the position in USDJPY went from 1007 to 2012"
    rejected = run("legacy/gateway_e2e_smoke.sh", SYMBOL="NOSUCH")
    assert rejected.returncode == 1
    assert "the order was not accepted: HTTP 422" in rejected.stdout


def test_partial_fills_are_counted_timed_and_booked(run: Run) -> None:
    done = run("legacy/gateway_e2e_partial.sh", PARTS_MIN="3", DELAY_MS_MIN="400")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith("was filled in 3 parts, all of them booked")
    for variables, problem in (({"PARTS_MIN": "4"}, "PARTS_MIN"), ({"DELAY_MS_MIN": "60000"}, "DELAY_MS_MIN")):
        failed = run("legacy/gateway_e2e_partial.sh", **variables)
        assert failed.returncode == 1
        assert problem in failed.stdout


def test_a_script_that_cannot_run_says_why(run: Run) -> None:
    for name, variables, problem in (
        ("ops/backoffice_recovery_check.sh", {"JWT_HS256_SECRET": ""}, "JWT_HS256_SECRET"),
        ("ops/backoffice_recovery_check.sh", {"BACKOFFICE_STALE_SEC": "soon"}, "BACKOFFICE_STALE_SEC"),
        ("ops/gateway_backoffice_e2e.sh", {"WAIT_SEC": "-1"}, "WAIT_SEC"),
        ("ops/backoffice_replay_verify.sh", {"REPLAY_TRIES": "x"}, "REPLAY_TRIES"),
        ("legacy/gateway_e2e_partial.sh", {"PARTS_MIN": ""}, None),
    ):
        done = run(name, **variables)
        assert done.returncode == (2 if problem else 0), done.stdout + done.stderr
        assert (problem or "") in done.stderr


def test_every_check_fails_where_nothing_answers_or_the_token_is_wrong(run: Run) -> None:
    away = run("ops/backoffice_recovery_check.sh", BACKOFFICE_URL="http://127.0.0.1:9", BACKOFFICE_PASSFAIL="1")
    assert (away.returncode, away.stdout.splitlines()[-1]) == (1, "FAIL: 6 of 6 checks")
    assert "no answer" in away.stdout
    forged = run("ops/backoffice_recovery_check.sh", JWT_HS256_SECRET="x" * 40, BACKOFFICE_PASSFAIL="1")
    assert (forged.returncode, forged.stdout.splitlines()[-1]) == (1, "FAIL: 5 of 6 checks")  # /health needs none
    assert "HTTP 401" in forged.stdout
    for name in ("ops/backoffice_replay_verify.sh", "ops/gateway_backoffice_e2e.sh", "legacy/gateway_e2e_smoke.sh"):
        assert run(name, BACKOFFICE_URL="http://127.0.0.1:9", GATEWAY_URL="http://127.0.0.1:9").returncode == 1


async def test_a_stale_back_office_fails_the_freshness_check(run: Run) -> None:
    fresh = run("ops/backoffice_recovery_check.sh", BACKOFFICE_STALE_SEC="3600")
    assert fresh.returncode == 0, fresh.stdout + fresh.stderr

    async def is_stale() -> bool:
        done = await asyncio.to_thread(run, "ops/backoffice_recovery_check.sh", BACKOFFICE_STALE_SEC="1")
        return done.returncode == 1 and "BACKOFFICE_STALE_SEC" in done.stdout

    await until(is_stale)


async def test_a_replay_of_the_ledger_finds_a_changed_balance_and_the_check_finds_its_break(
    run: Run, process: Process
) -> None:
    clean = run("ops/backoffice_replay_verify.sh")
    assert (clean.returncode, clean.stdout.splitlines()[-1]) == (0, "PASS"), clean.stdout + clean.stderr
    connection = apsw.Connection(str(process.folder / "var" / "backoffice.db"))
    connection.execute("UPDATE balances SET amount = '1' WHERE account_id = 'demo' AND account = 'cash'")
    connection.close()
    replayed = run("ops/backoffice_replay_verify.sh")
    assert replayed.returncode == 1
    assert "FAIL  cash JPY: the entries give" in replayed.stdout

    async def is_found() -> bool:
        done = await asyncio.to_thread(run, "ops/backoffice_recovery_check.sh")
        return "FAIL  /reconcile: 1 open breaks" in done.stdout and "FAIL  /balances: JPY" in done.stdout

    await until(is_found)
