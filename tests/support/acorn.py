"""The example plugin in `examples/venue_plugin`: its fake broker, and processes that use it without an installation."""

import sys
from pathlib import Path

from tests.support.ports import free_port
from tests.support.process import ROOT

FOLDER = ROOT / "examples/venue_plugin"
sys.path.insert(0, str(FOLDER))

from acorn_venue import KIND  # noqa: E402
from acorn_venue.adapter import AcornAdapter, _found  # noqa: E402
from acorn_venue.descriptor import WINDOW  # noqa: E402
from acorn_world import AcornWorld  # noqa: E402

__all__ = ["KIND", "WINDOW", "AcornAdapter", "AcornWorld", "_found"]

SYMBOLS = "USDJPY=USD/JPY,EURUSD=EUR/USD"


def acorn_world(folder: Path, *flags: str) -> AcornWorld:
    """The fake broker on a free port; not started."""
    folder.mkdir(parents=True, exist_ok=True)
    return AcornWorld(folder, *flags, port=free_port())


def acorn_settings(url: str, **changes: str) -> dict[str, str]:
    """The settings of a process whose only venue, ACORN, is at this address."""
    return {
        "SOR_VENUES": "acorn",
        "VENUE_URL_ACORN": f"acorn:{url}",
        "VENUE_SECRETS_ACORN": "key=key,secret=secret",
        "VENUE_SYMBOLS_ACORN": SYMBOLS,
        "SWITCHYARD_LOG_LEVEL": "warning",
        **changes,
    }


def plugin_path(folder: Path) -> str:
    """A PYTHONPATH on which the plugin counts as installed: its package, and its entry point as metadata."""
    metadata = folder / "acorn_venue-0.1.0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acorn-venue\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text("[switchyard.venues]\nacorn = acorn_venue:KIND\n")
    return ":".join(map(str, (ROOT / "src", ROOT, FOLDER, folder)))
