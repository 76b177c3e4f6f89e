"""The example plugin as users install one: two wheels in an environment of their own, and `switchyard up` trades."""

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.acorn import FOLDER, AcornWorld, acorn_settings, acorn_world
from tests.support.cluster import Cluster
from tests.support.orders import MARKET, cancel, get, place, until_all_final, until_statuses
from tests.support.polling import until
from tests.support.process import ROOT, Process

# Resolving and unpacking the dependencies takes its time on a busy machine.
INSTALL_SECONDS_MAX = 600
# The first test waits for all of it.
pytestmark = pytest.mark.timeout(1_800)
FAR = 1


def run(*words: str | Path, cwd: Path) -> str:
    done = subprocess.run(list(map(str, words)), cwd=cwd, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX)
    assert done.returncode == 0, done.stderr
    return done.stdout


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    else:
        target.parent.mkdir(exist_ok=True)
        shutil.copy(source, target)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`switchyard` in an environment that has both wheels and what they need; the processes of a run share it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "venue-plugin"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            install(folder)
            (folder / "complete").touch()
    return folder / "environment/bin/switchyard"


def install(folder: Path) -> None:
    for name, source, members in (
        ("switchyard", ROOT, ("pyproject.toml", "README.md", "LICENSE", "src")),
        ("plugin", FOLDER, ("pyproject.toml", "acorn_venue")),
    ):
        # Of a copy: a build leaves files behind, of which another one at the same time would take some for its own.
        for member in members:
            copy(source / member, folder / name / member)
        wheel = "wheel", "--quiet", "--no-deps", "--wheel-dir"
        run(sys.executable, "-m", "pip", *wheel, folder, folder / name, cwd=folder)
    # A pip of its own, and modules compiled that nobody imports, are most of an installation; `test_wheel.py` has both.
    venv.create(folder / "environment")
    pip = sys.executable, "-m", "pip", "--python", folder / "environment/bin/python"
    install = *pip, "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile"
    run(*install, "--require-hashes", "-r", ROOT / "requirements.txt", cwd=folder)
    run(*install, *folder.glob("*.whl"), cwd=folder)
    run(*pip, "check", cwd=folder)  # the plugin needs nothing but Switchyard


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[AcornWorld]:
    world = acorn_world(tmp_path / "broker")
    await world.start()
    yield world
    world.close()


def installed(cluster: Cluster, command: Path, settings: dict[str, str]) -> Process:
    """A process of the environment: the installed packages, not the sources."""
    process = cluster.process(**settings, PYTHONPATH="")
    process.command = [str(command)]
    return process


async def test_orders_are_traded_through_an_installed_plugin(
    command: Path, world: AcornWorld, cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    settings = acorn_settings(world.url, RISK_MAX_NOTIONAL="1000000")
    process = await installed(cluster, command, settings).start()
    await place(session, process, "key", MARKET)
    [filled] = await until_all_final(session, process)
    assert (filled["status"], filled["filledQty"], filled["avgPrice"]) == ("FILLED", 1000, 150.01)
    assert (filled["venue"], filled["venueOrderId"]) == ("acorn", "A-1")

    # The quote is the plugin's, and risk counts with it: 7,000 at 150.01 is more than a million.
    quote = await get(session, process, "/quotes/USDJPY")
    assert (quote["venue"], quote["bid"], quote["ask"]) == ("acorn", 149.99, 150.01)
    headers = process.headers()
    async with session.post(f"{process.url}/orders", json={**MARKET, "qty": 7000}, headers=headers) as response:
        assert response.status == 422
        assert "RISK_MAX_NOTIONAL" in await response.text()
    assert (await get(session, process, "/venues"))["venues"][0]["kind"] == "acorn"

    # So are the capabilities: no DAY orders, and amends in place.
    day = {**MARKET, "type": "LIMIT", "price": FAR, "timeInForce": "DAY"}
    async with session.post(f"{process.url}/orders", json=day, headers=headers) as response:
        assert response.status == 422
        assert "UNSUPPORTED_BY_VENUE" in await response.text()
    resting = await place(session, process, "resting", price=FAR)
    await until_statuses(session, process, "FILLED", "WORKING", "REJECTED")
    keyed = process.headers(key="amend")
    async with session.patch(f"{process.url}/orders/{resting}", json={"qty": 3000}, headers=keyed) as response:
        assert response.status == 202, await response.text()

    async def is_amended() -> bool:
        return bool((await get(session, process, f"/orders/{resting}"))["qty"] == 3000)

    await until(is_amended, lambda: process.log)
    await cancel(session, process, resting)
    await until_all_final(session, process)
    assert await asyncio.to_thread(process.stop) == 0
    events = [json.loads(line)["what"] for line in world.log.read_text().splitlines()]
    assert events == ["opened", "traded", "opened", "changed", "ended"]


def test_authors_run_cases_of_the_contract_suite_without_pytest(command: Path, tmp_path: Path) -> None:
    script = (
        "import asyncio, pathlib, sys; from acorn_venue import KIND; from acorn_world import AcornWorld\n"
        "from switchyard.testing.venues import cases_of, check\n"
        "[case] = [one for one in cases_of(KIND.descriptor) if one.name == 'quotes_have_an_age']\n"
        "asyncio.run(check(case, AcornWorld(pathlib.Path('.')), KIND)); assert 'pytest' not in sys.modules\n"
        "import switchyard; print(switchyard.__file__)"
    )
    for name in ("acorn_world.py", "acorn_broker.py"):
        copy(FOLDER / name, tmp_path / name)
    assert "/site-packages/" in run(command.with_name("python"), "-c", script, cwd=tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"VENUE_SECRETS_ACORN": "key=key,secrt=secret"}, ("VENUE_SECRETS_ACORN", "a name in it", "key, secret")),
        ({"VENUE_SECRETS_ACORN": "key=key"}, ("VENUE_SECRETS_ACORN", "needs secret")),
        ({"VENUE_OPTIONS_ACORN": "dask=main"}, ("VENUE_OPTIONS_ACORN", "'dask'", "desk")),
        ({"VENUE_DEDUPE_ACORN": "permanent"}, ("VENUE_DEDUPE_ACORN", "while_open", "only weaken")),
        ({"VENUE_URL_ACORN": "acron:"}, ("VENUE_URL_ACORN", "'acron'", "acorn")),
    ],
)
async def test_a_wrong_setting_of_a_plugin_stops_the_start_with_its_name(
    changes: dict[str, str], words: tuple[str, ...], command: Path, cluster: Cluster
) -> None:
    process = installed(cluster, command, acorn_settings("http://127.0.0.1:1", **changes))
    process.spawn()
    assert await asyncio.to_thread(process.wait) != 0
    for word in words:
        assert word in process.log, process.log
    assert "Traceback" not in process.log and "=secret" not in process.log
