"""`settings`: the reference of every setting, generated from where they are read."""

import typer

from switchyard.settings import IDEMPOTENCY_SETTINGS, SETTINGS, VENUE_SETTINGS, Setting

HEAD = """# Settings

Highest first: command-line option, environment variable, YAML file (`SWITCHYARD_CONFIG`, else `switchyard.yaml` where
it exists, with the sections `idempotency`, `instruments` and `venues`), default. A secret can come from a file:
`<NAME>_FILE`. This page is the output of `switchyard settings`.
"""
VENUE_HEAD = """
## Per venue

The venue's name in capitals takes the place of `<VENUE>`, or the name in brackets stands under `venues.<venue>` in the
YAML file.
"""
IDEMPOTENCY_HEAD = """
## Idempotency

The path in brackets stands under `idempotency` in the YAML file. A key that is not listed here, or a value that it
cannot have, stops the start. Orders that differ only in what is left out of derived keys share a key; their content
still tells them apart, at the price of a critical log line for each.
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="settings")(show_settings)


def show_settings() -> None:
    """Print every setting with its default, as Markdown."""
    typer.echo(settings_page(), nl=False)


def settings_page() -> str:
    """The reference page."""
    general = [_row(setting, setting.name) for setting in SETTINGS]
    venue = [_row(setting, f"{setting.name}<VENUE>", f" (`{setting.field}`)") for setting in VENUE_SETTINGS]
    idempotency = [_row(setting, setting.name, f" (`{setting.field}`)") for setting in IDEMPOTENCY_SETTINGS]
    return HEAD + _table(general) + VENUE_HEAD + _table(venue) + IDEMPOTENCY_HEAD + _table(idempotency)


def _table(rows: list[str]) -> str:
    return "\n".join(["", "| setting | default | what it is |", "|---|---|---|", *rows, ""])


def _row(setting: Setting, name: str, suffix: str = "") -> str:
    default = f"`{setting.default}`" if setting.default else ""
    text = setting.text + (" A secret." if setting.secret else "")
    return f"| `{name}`{suffix} | {default} | {text} |"
