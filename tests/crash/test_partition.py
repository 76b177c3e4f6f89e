"""Giving up destroys what the kernel still holds: an order must not arrive after its sender gave up.

The judge is what the broker's socket received after the network healed.
"""

import asyncio
import json
import shutil
import sys

import pytest

from tests.support.partition import SCENARIOS
from tests.support.process import ROOT, clean_environment

NAMESPACE = ("unshare", "--user", "--map-root-user", "--net")


async def _output(*command: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        env=clean_environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, error = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), error.decode()


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_an_order_does_not_arrive_after_its_sender_gave_up(scenario: str) -> None:
    if shutil.which(NAMESPACE[0]) is None or (await _output(*NAMESPACE, "true"))[0]:
        pytest.fail(
            "this machine does not permit user and network namespaces (unshare -Urn), so a partition cannot be "
            "tested; allow them, for example with sysctl kernel.unprivileged_userns_clone=1"
        )
    code, out, error = await _output(*NAMESPACE, sys.executable, "-m", "tests.support.partition", scenario)
    assert code == 0, error
    seen = json.loads(out)
    assert seen["before"] == 0
    assert seen["after"] == 0, "the order arrived after its sender gave up"
    assert seen["held"] == 0, "the kernel still holds the order"
