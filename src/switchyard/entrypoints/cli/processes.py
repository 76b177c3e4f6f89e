"""`up`, `gateway` and `worker`: the commands that run until SIGINT or SIGTERM."""

import asyncio
import signal
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.settings import Settings, jwt_secret, load_settings

if TYPE_CHECKING:
    from switchyard.bootstrap import Engine, PortWrappers, Role

# Long enough for a first day; strategies use tokens of their own.
FIRST_TOKEN_TTL = timedelta(hours=24)
FIRST_ACCOUNT = "demo"

Port = Annotated[str | None, typer.Option("--port", help="Port to listen on (SWITCHYARD_PORT).")]
Host = Annotated[str | None, typer.Option("--host", help="Address to listen on (SWITCHYARD_HOST).")]
Database = Annotated[str | None, typer.Option("--database-url", help="PostgreSQL URL (SWITCHYARD_DATABASE_URL).")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(up)
    app.command()(gateway)
    app.command()(worker)


def up(host: Host = None, port: Port = None, database_url: Database = None) -> None:
    """Run everything in one process: gateway, worker and readers."""
    run_process("up", {"SWITCHYARD_HOST": host, "SWITCHYARD_PORT": port, "SWITCHYARD_DATABASE_URL": database_url})


def gateway(host: Host = None, port: Port = None, database_url: Database = None) -> None:
    """Run only the HTTP gateway and its readers; needs PostgreSQL."""
    run_process("gateway", {"SWITCHYARD_HOST": host, "SWITCHYARD_PORT": port, "SWITCHYARD_DATABASE_URL": database_url})


def worker(database_url: Database = None) -> None:
    """Run only a worker, which sends orders to venues; needs PostgreSQL."""
    run_process("worker", {"SWITCHYARD_DATABASE_URL": database_url})


def run_process(role: "Role", options: dict[str, str | None], wrappers: "PortWrappers | None" = None) -> None:
    """Run the stages of a role until a signal or a failure ends the process."""
    import uvloop

    from switchyard.telemetry.logs import configure_logs

    settings = load_settings(options=options)
    configure_logs(settings.log_level, settings.log_format)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, role, wrappers))


async def _serve(settings: Settings, role: "Role", wrappers: "PortWrappers | None") -> None:
    from switchyard.bootstrap import running_engine, upgrade_if_new
    from switchyard.entrypoints.control.server import serving_commands

    if role == "up":
        await upgrade_if_new(settings)
    async with running_engine(settings, role, wrappers) as engine:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, engine.stop.set)
        if role == "worker":
            await _work(settings, engine)
        else:
            async with serving_commands(settings, engine):
                await _serve_http(settings, engine, role)
    if engine.failure is not None:
        raise engine.failure


async def _work(settings: Settings, engine: "Engine") -> None:
    if settings.metrics_port is None:
        typer.echo("switchyard worker is running", err=True)
        await engine.stop.wait()
        return
    from switchyard.entrypoints.http.monitoring import build_monitoring
    from switchyard.entrypoints.http.transport.server import HttpServer

    server = HttpServer(
        build_monitoring(settings, engine),
        host=settings.host,
        port=settings.metrics_port,
        port_setting="SWITCHYARD_METRICS_PORT",
    )
    await server.start()
    try:
        typer.echo(f"switchyard worker is running, with metrics on http://{settings.host}:{server.port}", err=True)
        await engine.stop.wait()
    finally:
        await server.stop(grace_seconds=5.0)


async def _serve_http(settings: Settings, engine: "Engine", role: "Role") -> None:
    from switchyard.client.address import gateway_url
    from switchyard.entrypoints.http.app import build_server

    server = build_server(settings, engine)
    await server.start()
    try:
        # Not 0.0.0.0, under which the gateway serves nobody.
        url = gateway_url(settings.host, server.port)
        if role == "up":
            _welcome(settings, engine, url)
        else:
            typer.echo(f"switchyard gateway is listening on {url}", err=True)
        await engine.stop.wait()
    finally:
        engine.hub.close()
        await server.stop(grace_seconds=5.0)


def _welcome(settings: Settings, engine: "Engine", url: str) -> None:
    """Print the address, a token and a first order to try."""
    from switchyard.entrypoints.http.transport.auth import issue_token

    token = issue_token(
        jwt_secret(settings),
        FIRST_ACCOUNT,
        clock=engine.wall_clock,
        ttl=FIRST_TOKEN_TTL,
        audience=settings.jwt_audience,
        issuer=settings.jwt_issuer,
    )
    store = "PostgreSQL" if settings.database_url else f"SQLite in {settings.data_dir}/"
    typer.echo(
        f"""
Switchyard is up: {url} (orders durable in {store}; Ctrl-C stops it)

A token for the account '{FIRST_ACCOUNT}', good for 24 hours:
{token}

Your first order, in another terminal:
curl -sS {url}/orders \\
  -H 'Authorization: Bearer {token}' \\
  -H 'Content-Type: application/json' -H 'Idempotency-Key: my-first-order' \\
  -d '{{"symbol":"USDJPY","side":"BUY","type":"MARKET","qty":1000}}'

Watch it fill:  .venv/bin/switchyard watch
"""
    )
