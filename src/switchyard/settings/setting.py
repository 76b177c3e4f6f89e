"""The description of one setting, and how its value is read."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from switchyard.domain.errors import SettingError


class Setting(NamedTuple):
    """A setting: its environment variable, its field, its default as text, its parser and its description."""

    name: str
    field: str
    default: str | None
    parse: Callable[[str], Any]
    text: str
    secret: bool = False


class Secret(str):
    """A string whose `repr` is masked, so that printed settings show no secret."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def value_of(setting: Setting, name: str, environment: Mapping[str, str], default: str | None) -> Any:
    """Read a value from the environment (a secret also from its file), else use the default."""
    text = environment.get(name)
    if setting.secret and text is None and (path := environment.get(name + "_FILE")):
        try:
            text = Path(path).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingError(name + "_FILE", f"cannot be read: {error}") from None
    if text is None:
        text = default
    return None if text is None else parsed(setting, name, text)


def parsed(setting: Setting, name: str, text: str) -> Any:
    """Parse the text; raises SettingError with the name under which the text was found."""
    try:
        value = setting.parse(text)
    except ValueError as error:
        shown = "" if setting.secret else f", not {text!r}"
        raise SettingError(name, f"{error}{shown}") from None
    return Secret(value) if setting.secret else value
