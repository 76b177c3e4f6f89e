"""`demo`: a day of trading in about a minute, against processes that it starts itself."""

import asyncio
import contextlib
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from switchyard.domain.errors import SettingError
from switchyard.entrypoints.cli.demo.processes import DemoFailed, Site
from switchyard.entrypoints.cli.failures import INTERRUPTED

FAILED = 1  # the exit code where a check of the day fails
# The scenes take about 40 s of waiting: for an outage, for windows of venues, for a second pass of the reconciliation.
SECONDS_MIN = 40
# Beyond the day: to start, to settle, to check. Only a defect takes longer.
GRACE_SECONDS = 240.0

SecondsOption = Annotated[int, typer.Option("--seconds", min=SECONDS_MIN, max=86_400, help="Length of the day.")]
SeedOption = Annotated[int, typer.Option("--seed", help="The same seed plans the same orders in the same sequence.")]
FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        help="New or empty folder for data and logs, which stays; by default a temporary one, which is removed.",
        show_default=False,
    ),
]
KeepOption = Annotated[bool, typer.Option("--keep", help="Leave it running afterwards, with few orders, until Ctrl-C.")]
PortOption = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port of the gateway; 0 chooses a free one.")]
BooksPortOption = Annotated[
    int, typer.Option("--backoffice-port", min=0, max=65535, help="Port of the back office; 0 chooses a free one.")
]


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(demo)


def demo(
    seconds: SecondsOption = 60,
    seed: SeedOption = 1,
    folder: FolderOption = None,
    keep: KeepOption = False,
    port: PortOption = 0,
    backoffice_port: BooksPortOption = 0,
) -> None:
    """Show a day of trading: fills, rejects, an outage, doubts, a kill, breaks and a recheck.

    It starts three simulated brokers and a gateway on this machine, trades through the API, tells what happens and
    checks at the end that nothing was lost or executed twice: exit code 1 if a check fails.
    """
    with _folder(folder) as place:
        site = Site(place, seed=seed, port=port, backoffice_port=backoffice_port)
        code = asyncio.run(_run(site, seconds, seed, keep=keep))
    if code:
        raise typer.Exit(code)


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is None:
        with tempfile.TemporaryDirectory(prefix="switchyard-demo-") as name:
            yield Path(name)
        return
    if given.exists() and (not given.is_dir() or any(given.iterdir())):
        raise SettingError("--folder", f"{given} is not an empty folder: name one that is new or empty")
    given.mkdir(parents=True, exist_ok=True)
    yield given.absolute()


async def _run(site: Site, seconds: int, seed: int, *, keep: bool) -> int:
    """Run the day until its end, an error or a signal; returns the exit code."""
    import aiohttp

    from switchyard.entrypoints.cli.demo.day import Stay, run_day

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the last: its terminal was closed
        loop.add_signal_handler(number, stop.set)
    stay = Stay(asyncio.Event(), stop)
    limit = None if keep else seconds + GRACE_SECONDS
    async with aiohttp.ClientSession() as session:
        day = asyncio.create_task(run_day(site, session, seconds, seed, stay if keep else None))
        stopping = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait({day, stopping}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise DemoFailed(f"the day was not over {GRACE_SECONDS:g} s after its end")
            if day not in done and not stay.began.is_set():
                return INTERRUPTED
            return 0 if await day else FAILED
        finally:
            with contextlib.suppress(BrokenPipeError):  # the reader of the output may have ended
                typer.echo("Ending the processes …")
            for task in (day, stopping):
                task.cancel()
            await asyncio.gather(day, stopping, return_exceptions=True)
            await site.stop()
