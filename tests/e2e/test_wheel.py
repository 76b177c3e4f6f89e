"""The wheel in an empty environment: it installs, prints its version, and `up` serves."""

import asyncio
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import aiohttp
import pytest

from switchyard import __version__
from tests.support.cluster import Cluster
from tests.support.process import ROOT

# Resolving and unpacking the dependencies takes its time on a busy machine.
INSTALL_SECONDS_MAX = 600
pytestmark = pytest.mark.timeout(1_800)


def run(*words: str | Path, cwd: Path) -> str:
    done = subprocess.run(list(map(str, words)), cwd=cwd, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    [built] = folder.glob("event_switchyard-*.whl")
    return built


def test_the_wheel_has_the_contract_the_schemas_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    wanted = (
        "reference/contracts/openapi.yaml",
        "sqlite/schema/0001_journal.sql",
        "reference.css",
        "page.html",
        "py.typed",
    )
    for ending in wanted:
        assert [name for name in names if name.endswith(ending)], ending
    assert not [name for name in names if name.startswith(("tests", "bench", "examples"))]


async def test_the_wheel_works_in_an_empty_environment(
    wheel: Path, tmp_path: Path, cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    venv.create(tmp_path / "environment", with_pip=True)
    binaries = tmp_path / "environment" / "bin"
    locked = ("--require-hashes", "--no-deps", "-r", ROOT / "requirements.txt")
    run(binaries / "pip", "install", "--quiet", "--disable-pip-version-check", *locked, cwd=tmp_path)
    run(binaries / "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", wheel, cwd=tmp_path)
    run(binaries / "pip", "check", cwd=tmp_path)  # the locked packages are all that it declares
    command = binaries / "switchyard"
    assert run(command, "--version", cwd=tmp_path).strip() == f"switchyard {__version__}"
    process = cluster.process()
    process.command = [str(command)]
    process.settings["PYTHONPATH"] = ""  # the installed package, not the sources
    await process.start()
    for path in ("/health/ready", "/docs", "/openapi.json", "/metrics", "/dashboard", "/dashboard/page.js"):
        async with session.get(process.url + path) as response:
            assert response.status == 200, path
    assert await asyncio.to_thread(process.stop) == 0
