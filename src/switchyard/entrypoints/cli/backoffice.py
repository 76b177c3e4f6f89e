"""`backoffice`: the back office as a process of its own, and the command that builds its books again."""

import asyncio
import signal
from typing import Annotated

import typer

from switchyard.entrypoints.cli.processes import Database, Host, check_port, configured, say
from switchyard.settings import Settings

app = typer.Typer(
    help="Keep the books in a process of its own (needs PostgreSQL), or build them again.", invoke_without_command=True
)
PortOption = Annotated[str | None, typer.Option("--port", help="Port to listen on (SWITCHYARD_BACKOFFICE_PORT).")]


def register(parent: typer.Typer) -> None:
    """Add the commands."""
    parent.add_typer(app, name="backoffice")


@app.callback()
def run(context: typer.Context, host: Host = None, port: PortOption = None, database_url: Database = None) -> None:
    """Keep the books in a process of its own; needs PostgreSQL. `switchyard up` keeps them as well."""
    if context.invoked_subcommand is not None:
        return
    import uvloop

    settings = configured(
        {
            "SWITCHYARD_HOST": host,
            "SWITCHYARD_BACKOFFICE_PORT": port,
            "SWITCHYARD_DATABASE_URL": database_url,
        }
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings))
    say(settings, "switchyard backoffice has stopped", "stopped", role="backoffice")


async def _serve(settings: Settings) -> None:
    from switchyard.bootstrap import running_backoffice
    from switchyard.client.address import gateway_url
    from switchyard.entrypoints.http.backoffice import build_backoffice

    check_port(settings.host, settings.backoffice_port, "SWITCHYARD_BACKOFFICE_PORT", " with --port")
    async with running_backoffice(settings) as office:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, office.stop.set)
        server = build_backoffice(settings, office)
        await server.start()
        try:
            url = gateway_url(settings.host, server.port)
            say(
                settings,
                f"switchyard backoffice is listening on {url}",
                "listening",
                role="backoffice",
                url=url,
            )
            await office.stop.wait()
        finally:
            await server.stop(grace_seconds=5.0)
    if office.failure is not None:
        raise office.failure
