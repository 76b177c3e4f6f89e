"""The checkouts of Switchyard that are measured: this one, and with `--base` an older one."""

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.processes import BenchError, environment_of

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = Path(sys.executable).parent / "switchyard"
VENUE_PLACE = "<VENUE>"
LISTED_SETTING = re.compile(rf"^\| `([A-Z0-9_]+(?:{VENUE_PLACE})?)`", re.MULTILINE)


@dataclass(frozen=True)
class Checkout:
    """One installed checkout; `settings` has every variable that its command line knows."""

    program: Path
    source: Path
    commit: str
    settings: frozenset[str]

    def known(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The variables that this checkout knows; an older one exits at an unknown variable."""
        return {name: value for name, value in environment.items() if self._knows(name)}

    def _knows(self, name: str) -> bool:
        return name in self.settings or f"{name.rpartition('_')[0]}_{VENUE_PLACE}" in self.settings


def this_checkout() -> Checkout:
    return _checkout(ROOT, PROGRAM)


def base_checkout(folder: Path) -> Checkout:
    """The checkout in the folder, which must have its own `.venv`."""
    return _checkout(folder, (folder / ".venv" / "bin" / "switchyard").absolute())


def _checkout(folder: Path, program: Path) -> Checkout:
    if not program.is_file():
        raise BenchError(f"{program} does not exist: run `make install` in {folder}")
    listed = subprocess.run([program, "settings"], env=environment_of({}), capture_output=True, text=True, check=True)
    described = subprocess.run(
        ["git", "-C", folder, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return Checkout(
        program,
        folder.absolute() / "src",
        described.stdout.strip() or "unknown",
        frozenset(LISTED_SETTING.findall(listed.stdout)),
    )
