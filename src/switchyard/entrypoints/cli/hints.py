"""Commands to copy from the output: with the program, the data folder and the port that are in force."""

import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from switchyard.settings import Settings

DEFAULT_DATA_DIR = Path("var")
DEFAULT_PORT = 8081


def program() -> str:
    """How this program was called: by name if it is on the PATH, else by its path."""
    called = Path(sys.argv[0])
    found = shutil.which(called.name)
    if found is not None and Path(found).resolve() == called.resolve():
        return called.name
    absolute = called.absolute()
    here = Path.cwd()
    return shlex.quote(str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute))


def command(settings: "Settings", arguments: str, *, port: int | None = None) -> str:
    """A command for another terminal; with `port`, one that calls the gateway there."""
    variables = []
    name = program()
    # A program under this folder is called from here, where the default names the same data folder.
    is_default = settings.data_dir == DEFAULT_DATA_DIR and "/" in name and not name.startswith(("/", "'/"))
    if settings.jwt_secret is None and not is_default:
        variables.append(f"SWITCHYARD_DATA_DIR={shlex.quote(str(settings.data_dir.absolute()))}")
    if port not in (None, DEFAULT_PORT):
        variables.append(f"SWITCHYARD_PORT={port}")
    return " ".join([*variables, name, arguments])
