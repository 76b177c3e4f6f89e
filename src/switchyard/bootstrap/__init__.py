"""Builds the processes and tools from flow and adapters; the only package that imports both."""

from switchyard.bootstrap.backoffice import BackOffice, Parent, running_backoffice
from switchyard.bootstrap.books import (
    adopt_epoch,
    enter_in_books,
    orphans_of_books,
    rebuild_books,
    reset_books,
    verify_books,
)
from switchyard.bootstrap.core import PortWrappers
from switchyard.bootstrap.databases import (
    Database,
    accept_newest,
    accept_restored,
    audit_files,
    audit_head,
    decide_doubt,
    deciders,
    direct_kill_switch,
    open_database,
    order_dump,
    outbox_listing,
    rebuild_target,
    resetting,
    sqlite_path,
    upgrade_database,
    upgrade_if_new,
)
from switchyard.bootstrap.engine import Engine, Office, Role, running_engine
from switchyard.bootstrap.gateway import PdcaLimits, PdcaRateName, Services
from switchyard.bootstrap.pdca import PdcaOffice, carry_out_recheck, open_pdca_store, restricting
from switchyard.bootstrap.venues import taken_orders

__all__ = [
    "BackOffice",
    "Database",
    "Engine",
    "Office",
    "Parent",
    "PdcaLimits",
    "PdcaOffice",
    "PdcaRateName",
    "PortWrappers",
    "Role",
    "Services",
    "accept_newest",
    "accept_restored",
    "adopt_epoch",
    "audit_files",
    "audit_head",
    "carry_out_recheck",
    "decide_doubt",
    "deciders",
    "direct_kill_switch",
    "enter_in_books",
    "open_database",
    "open_pdca_store",
    "order_dump",
    "orphans_of_books",
    "outbox_listing",
    "rebuild_books",
    "rebuild_target",
    "reset_books",
    "resetting",
    "restricting",
    "running_backoffice",
    "running_engine",
    "sqlite_path",
    "taken_orders",
    "upgrade_database",
    "upgrade_if_new",
    "verify_books",
]
