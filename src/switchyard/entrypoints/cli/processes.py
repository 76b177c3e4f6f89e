"""`up`, `gateway` and `worker`: the commands that run until SIGINT or SIGTERM."""

import asyncio
import contextlib
import errno
import os
import signal
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from switchyard.domain.errors import SettingError
from switchyard.entrypoints.cli.failures import bound_the_end, run_to_end
from switchyard.entrypoints.cli.welcome import welcome
from switchyard.settings import Settings, configured_secrets, load_settings

if TYPE_CHECKING:
    from switchyard.bootstrap import Engine, PortWrappers, Role
    from switchyard.entrypoints.control.office import OfficeProcess


def _without_password(url: str | None) -> str | None:
    if url is not None and "@" in url and urlsplit(url).netloc.rpartition("@")[0].count(":"):
        raise typer.BadParameter(
            "a password on the command line is shown to every user of this machine; put the URL into "
            "SWITCHYARD_DATABASE_URL, or its file into SWITCHYARD_DATABASE_URL_FILE"
        )
    return url


Port = Annotated[str | None, typer.Option("--port", help="Port to listen on (SWITCHYARD_PORT).")]
Host = Annotated[str | None, typer.Option("--host", help="Address to listen on (SWITCHYARD_HOST).")]
Database = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        help="PostgreSQL URL without a password (SWITCHYARD_DATABASE_URL).",
        callback=_without_password,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(up)
    app.command()(gateway)
    app.command()(worker)


def up(host: Host = None, port: Port = None, database_url: Database = None) -> None:
    """Run everything: gateway, worker and readers in one process, the back office in a child process."""
    run_process("up", {"SWITCHYARD_HOST": host, "SWITCHYARD_PORT": port, "SWITCHYARD_DATABASE_URL": database_url})


def gateway(host: Host = None, port: Port = None, database_url: Database = None) -> None:
    """Run only the HTTP gateway and its readers; needs PostgreSQL."""
    run_process("gateway", {"SWITCHYARD_HOST": host, "SWITCHYARD_PORT": port, "SWITCHYARD_DATABASE_URL": database_url})


def worker(database_url: Database = None) -> None:
    """Run only a worker, which sends orders to venues; needs PostgreSQL."""
    run_process("worker", {"SWITCHYARD_DATABASE_URL": database_url})


def run_process(role: "Role", options: dict[str, str | None], wrappers: "PortWrappers | None" = None) -> None:
    """Run the stages of a role until a signal or a failure ends the process."""
    settings = configured(options)
    environment = os.environ | {name: value for name, value in options.items() if value is not None}
    run_to_end(_serve(settings, role, wrappers, environment))
    say(settings, f"switchyard {role} has stopped", "stopped", role=role)


def configured(options: dict[str, str | None], *, is_child: bool = False) -> Settings:
    """Read the settings of a process and set up its logs; `is_child`: its parent has logged what is wrong with them."""
    # The short commands also import this module, and structlog takes a third of their start.
    import structlog

    from switchyard.telemetry.logs import configure_logs

    settings = load_settings(options=options)
    configure_logs(
        settings.log_level,
        settings.log_format,
        configured_secrets(settings),
        traced=settings.tracing is not None,
    )
    log = structlog.get_logger()
    for name in () if is_child else settings.unknown_names:
        log.warning("setting_unknown", name=name, hint="ignored: it is not a setting of Switchyard")
    return settings


def say(settings: Settings, text: str, event: str, **fields: str) -> None:
    """Report a step of the process's life: as a line for people, or as an event where logs are JSON."""
    if settings.log_format == "json":
        import structlog

        log = structlog.get_logger()
        log.info(event, **fields)
    else:
        with contextlib.suppress(OSError):  # a full disk or a closed terminal does not stop the process
            typer.echo(text, err=True)


def _check_port(host: str, port: int, setting: str, remedy: str) -> None:
    """Raise SettingError if the port is in use, before orders are sent that no client could follow."""
    if port == 0:
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise SettingError(
                setting, f"{host}:{port} is in use by another process: stop it, or choose another port{remedy}"
            ) from None
        # The server reports other problems of the address itself.


async def _serve(
    settings: Settings, role: "Role", wrappers: "PortWrappers | None", environment: Mapping[str, str]
) -> None:
    from switchyard.bootstrap import running_engine, upgrade_if_new
    from switchyard.entrypoints.control.office import running_office
    from switchyard.entrypoints.control.server import serving_commands

    if role != "worker":
        _check_port(settings.host, settings.port, "SWITCHYARD_PORT", " with --port")
    is_new = role == "up" and await upgrade_if_new(settings)
    # After the database: if another `up` has it, that is the cause, and its port only a consequence.
    if role == "up" and settings.backoffice:
        _check_port(
            settings.host,
            settings.backoffice_port,
            "SWITCHYARD_BACKOFFICE_PORT",
            ", or set SWITCHYARD_BACKOFFICE=false to run without the back office",
        )
    async with running_engine(settings, role, wrappers) as engine:
        loop = asyncio.get_running_loop()

        def stop() -> None:
            if not engine.stop.is_set():
                say(
                    settings,
                    f"switchyard {role} is stopping: it finishes the requests and sends under way",
                    "stopping",
                    role=role,
                )
                engine.stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        if role == "worker":
            await _work(settings, engine)
        else:
            async with running_office(engine, environment) as office, serving_commands(settings, engine):
                await _serve_http(settings, engine, role, office, is_new=is_new)
    if engine.failure is not None:
        raise engine.failure


async def _work(settings: Settings, engine: "Engine") -> None:
    if settings.metrics_port is None:
        say(settings, "switchyard worker is running", "running", role="worker")
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
        url = f"http://{settings.host}:{server.port}"
        say(settings, f"switchyard worker is running, with metrics on {url}", "running", role="worker", metrics=url)
        await engine.stop.wait()
    finally:
        bound_the_end()
        await server.stop(grace_seconds=5.0)


async def _serve_http(
    settings: Settings, engine: "Engine", role: "Role", office: "OfficeProcess | None", *, is_new: bool
) -> None:
    from switchyard.client.address import gateway_url
    from switchyard.entrypoints.http.app import build_server

    server = build_server(settings, engine)
    await server.start()
    try:
        if office is not None:
            await office.until_listening()
        # 0.0.0.0 is no host name of the gateway: requests for it get 421.
        url = gateway_url(settings.host, server.port)
        if role == "up" and settings.log_format != "json":
            books_url = None if office is None else office.url
            with contextlib.suppress(OSError):
                typer.echo(welcome(settings, engine.wall_clock, url, server.port, books_url, is_new=is_new))
        else:
            say(settings, f"switchyard {role} is listening on {url}", "listening", role=role, url=url)
        await engine.stop.wait()
    finally:
        bound_the_end()
        engine.hub.close()
        await server.stop(grace_seconds=5.0)
