"""`keys new`: the key pair that signs and verifies tokens of the PDCA API. Writes the data folder."""

import typer

from switchyard.entrypoints.cli.connection import JsonOption
from switchyard.entrypoints.cli.output import print_json
from switchyard.settings import load_settings

app = typer.Typer(help="Make keys for tokens of the PDCA API.", no_args_is_help=True)


def register(parent: typer.Typer) -> None:
    """Add the commands."""
    parent.add_typer(app, name="keys")


@app.callback()
def options() -> None:
    """Keep `new` a command of its own while it is the only one."""


@app.command()
def new(as_json: JsonOption = False) -> None:
    """Make a new key pair in the data folder; tokens of the keys before it stay valid until they expire.

    A running server finds it by itself. Not needed where PDCA_JWKS_URL or PDCA_JWKS_FILE names the keys of an identity
    provider.
    """
    from switchyard.adapters.files.durable import prepare_data_folder
    from switchyard.adapters.files.signing_keys import KEY_FILE, KEY_SET_FILE, new_key

    settings = load_settings()
    prepare_data_folder(settings.data_dir)
    key = new_key(settings.data_dir)
    files = {"privateKey": str(settings.data_dir / KEY_FILE), "keySet": str(settings.data_dir / KEY_SET_FILE)}
    if as_json:
        print_json({"kid": key.kid, **files})
    else:
        typer.echo(f"{key.kid}: signs with {files['privateKey']}, is verified with {files['keySet']}")
