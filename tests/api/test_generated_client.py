"""A client that a widely used generator makes from the served contract places an order."""

import asyncio
import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.contract_files import operations
from tests.support.process import ROOT, Process

ENVIRONMENT = ROOT / ".venv" / "generator" / "bin"
PROGRAM = ROOT / "tests" / "support" / "generated_client.py"
PACKAGE = "switchyard_gateway_client"
# Far more than it takes; only a hanging tool reaches it.
TIMEOUT_SECONDS = 120


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path)
    asyncio.run(process.start())
    yield process
    process.close()


def test_a_generated_client_places_an_order(process: Process, tmp_path: Path) -> None:
    package = generate(process, tmp_path)
    # The generator skips an operation that it does not understand.
    generated = {path.stem for path in package.glob("api/*/*.py")} - {"__init__"}
    assert {name.replace("_", "") for name in generated} == {
        operation["operationId"].lower() for _, _, _, operation in operations()
    }
    token = process.headers()["Authorization"].removeprefix("Bearer ")
    got = json.loads(run("python", str(PROGRAM), process.url, token, PYTHONPATH=str(tmp_path)))
    assert got["placed"] == ["PlaceOrderResponse202", got["again"], "ACCEPTED"]
    assert got["conflict"] == ["Error", "IDEMPOTENCY_CONFLICT"]
    assert got["shown"] == ["OrderSnapshot", 0.001, ["mine"]]
    assert got["do_order"] == ["ExecResultV1", "filled"]
    assert got["canceled"] == ["CancelOrderResponse202", "CANCEL_REQUESTED"]
    assert got["missing"] == ["Error", "NOT_FOUND"]
    assert got["event"] == ["BusEvent", "OrderAccepted"]
    assert (got["listed"], got["health"], got["index"]) == (2, "ok", "/docs")


def generate(process: Process, folder: Path) -> Path:
    """Generate the client from the served document; a warning fails the test."""
    document = folder / "openapi.json"
    with urllib.request.urlopen(f"{process.url}/openapi.json", timeout=TIMEOUT_SECONDS) as response:
        document.write_bytes(response.read())
    package = folder / PACKAGE
    run(
        "openapi-python-client",
        "generate",
        *("--path", str(document), "--output-path", str(package), "--meta", "none", "--fail-on-warning"),
    )
    return package


def run(command: str, *arguments: str, **settings: str) -> str:
    """Run a command of the generator's environment and return its output."""
    if not (ENVIRONMENT / command).exists():
        pytest.fail("the client generator is not installed: run `make .venv/.installed-generator`")
    finished = subprocess.run(
        [ENVIRONMENT / command, *arguments],
        env={**os.environ, "PATH": f"{ENVIRONMENT}:{os.environ['PATH']}", **settings},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout
