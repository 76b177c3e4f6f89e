"""Where everything is put together: the only package that sees both the flow and the adapters."""

from switchyard.bootstrap.databases import (
    Database,
    accept_restored,
    decide_doubt,
    open_database,
    order_dump,
    outbox_listing,
    rebuild_target,
    sqlite_path,
    upgrade_database,
    upgrade_if_new,
)
from switchyard.bootstrap.desks import Desks
from switchyard.bootstrap.engine import Engine, Role, running_engine
from switchyard.bootstrap.wrappers import PortWrappers

__all__ = [
    "Database",
    "Desks",
    "Engine",
    "PortWrappers",
    "Role",
    "accept_restored",
    "decide_doubt",
    "open_database",
    "order_dump",
    "outbox_listing",
    "rebuild_target",
    "running_engine",
    "sqlite_path",
    "upgrade_database",
    "upgrade_if_new",
]
