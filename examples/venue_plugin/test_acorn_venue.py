"""The contract suite on Acorn's adapter and its fake: `pytest test_acorn_venue.py`."""

from pathlib import Path

from acorn_venue import KIND
from acorn_world import AcornWorld

from switchyard.testing.venues import VenueSuite, World


class TestAcorn(VenueSuite):
    kind = KIND

    def world(self, folder: Path) -> World:
        return AcornWorld(folder)
