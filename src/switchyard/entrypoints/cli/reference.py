"""`settings` and `openapi`: print the settings reference and the HTTP contract."""

from typing import Annotated, Literal

import typer

from switchyard.settings import (
    IDEMPOTENCY_SETTINGS,
    KAFKA_SETTINGS,
    PDCA_API_SETTINGS,
    RECHECK_SETTINGS,
    RISK_SETTINGS,
    SETTINGS,
    TRACING_SETTINGS,
    VENUE_SETTINGS,
    Setting,
)

HEAD = """# Settings

Sources, highest priority first: command-line option, environment variable, YAML file (`SWITCHYARD_CONFIG`, else
`switchyard.yaml` if it exists, with the sections `idempotency`, `instruments`, `risk` and `venues`), default. A secret
can be read from a file: set `<NAME>_FILE` to its path. This page is the output of `switchyard settings`.
"""
VENUE_HEAD = """
## Per venue

Replace `<VENUE>` with the venue's name in capitals. In the YAML file, use the name in brackets under `venues.<venue>`.
"""
IDEMPOTENCY_HEAD = """
## Idempotency

In the YAML file, use the path in brackets under `idempotency`. An unknown key or an invalid value stops the start.
Orders that differ only in fields that derived keys leave out share a key. They are still separate orders, because their
whole content is compared, but each one is logged as a collision at level critical.
"""
RISK_HEAD = """
## Pre-trade risk

In the YAML file, use the name in brackets under `risk`. An unknown key or an invalid value stops the start.
"""
KAFKA_HEAD = """
## Kafka

Every other variable that begins with `KAFKA_` is passed to librdkafka, as the property of that name in lower case with
dots: `KAFKA_SECURITY_PROTOCOL` sets `security.protocol`, `KAFKA_SASL_USERNAME` sets `sasl.username`. Passwords, secrets
and keys can be read from files (`KAFKA_SASL_PASSWORD_FILE`). With `KAFKA_ENABLE`, a name that librdkafka does not know
stops the start, and so does a property that Switchyard sets itself, such as `acks`. See [the bus](bus.md).
"""
PDCA_HEAD = """
## PDCA API
"""
RECHECKS_HEAD = """
## Rechecks of strategies
"""
TRACING_HEAD = """
## Traces

The names are those of OpenTelemetry; an empty value counts as unset. While traces are off the other settings of this
part are not read. See [traces](traces.md).
"""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(name="settings")(show_settings)
    app.command(name="openapi")(show_contract)


def show_settings() -> None:
    """Print every setting with its default, as Markdown."""
    typer.echo(settings_page(), nl=False)


def show_contract(
    form: Annotated[
        Literal["json", "yaml"], typer.Option("--format", case_sensitive=False, help="Format of the document.")
    ] = "json",
) -> None:
    """Print the HTTP contract as one OpenAPI document, for client generators and other tools."""
    from switchyard.entrypoints.http.reference.bundle import as_json, as_yaml

    typer.echo(as_json() if form == "json" else as_yaml(), nl=form == "json")


def settings_page() -> str:
    """The reference page."""
    general = [_row(setting, setting.name) for setting in SETTINGS]
    venue = [_row(setting, f"{setting.name}<VENUE>", f" (`{setting.field}`)") for setting in VENUE_SETTINGS]
    idempotency = [_row(setting, setting.name, f" (`{setting.field}`)") for setting in IDEMPOTENCY_SETTINGS]
    risk = [_row(setting, setting.name, f" (`{setting.field}`)") for setting in RISK_SETTINGS]
    kafka = [_row(setting, setting.name) for setting in KAFKA_SETTINGS]
    pdca = [_row(setting, setting.name) for setting in PDCA_API_SETTINGS]
    return (
        HEAD
        + _table(general)
        + KAFKA_HEAD
        + _table(kafka)
        + VENUE_HEAD
        + _table(venue)
        + IDEMPOTENCY_HEAD
        + _table(idempotency)
        + RISK_HEAD
        + _table(risk)
        + PDCA_HEAD
        + _table(pdca)
        + RECHECKS_HEAD
        + _table([_row(setting, setting.name) for setting in RECHECK_SETTINGS])
        + TRACING_HEAD
        + _table([_row(setting, setting.name) for setting in TRACING_SETTINGS])
    )


def _table(rows: list[str]) -> str:
    return "\n".join(["", "| setting | default | description |", "|---|---|---|", *rows, ""])


def _row(setting: Setting, name: str, suffix: str = "") -> str:
    default = f"`{setting.default}`" if setting.default else ""
    text = setting.text + (" A secret." if setting.secret else "")
    # GitHub splits cells at a bar even within code.
    return f"| `{name}`{suffix} | {default} | {text.replace('|', chr(92) + '|')} |"
