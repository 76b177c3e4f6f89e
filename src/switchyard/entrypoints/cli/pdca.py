"""`pdca run`: carry out a stored recheck, as Airflow's task does; with and without a running server.

`keys new`: the key pair that signs and verifies tokens of the PDCA API. Writes the data folder.
"""

import asyncio
from typing import Annotated

import typer

from switchyard.entrypoints.cli.connection import JsonOption
from switchyard.entrypoints.cli.output import print_json
from switchyard.entrypoints.cli.processes import configured
from switchyard.settings import load_settings

pdca = typer.Typer(help="Carry out rechecks of strategies.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(keys, name="keys")
    app.add_typer(pdca, name="pdca")


@pdca.callback()
def group() -> None:
    """Carry out rechecks of strategies."""


@pdca.command()
def run(
    request_id: Annotated[str, typer.Argument(metavar="REQUEST_ID", help="Id of a stored recheck.")],
    json: JsonOption = False,
) -> None:
    """Carry out the unfinished part of a recheck and wait for its end; a repeat changes nothing.

    Exit code 0 once every strategy has a result or an error.
    """
    from switchyard.entrypoints.control.client import run_recheck

    stored = asyncio.run(run_recheck(configured({}), request_id))
    progress = stored.progress
    if json:
        print_json({"request_id": request_id, "state": progress.state, "progress": progress})
        return
    typer.echo(
        f"{request_id} {progress.state}: {progress.succeeded} of {progress.total} strategies rechecked, "
        f"{progress.failed} failed"
    )


keys = typer.Typer(help="Make keys for tokens of the PDCA API.", no_args_is_help=True)


@keys.callback()
def options() -> None:
    """Keep `new` a command of its own while it is the only one."""


@keys.command()
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
