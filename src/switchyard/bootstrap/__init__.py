"""Builds the processes and tools from flow and adapters; the only package that imports both."""

from switchyard.bootstrap.backoffice import BackOffice, Parent, running_backoffice
from switchyard.bootstrap.books_commands import adopt_epoch, enter_in_books, orphans_of_books, reset_books
from switchyard.bootstrap.caches import PdcaLimits, PdcaRateName
from switchyard.bootstrap.databases import (
    Database,
    accept_newest,
    accept_restored,
    decide_doubt,
    deciders,
    direct_kill_switch,
    open_database,
    order_dump,
    outbox_listing,
    rebuild_target,
    sqlite_path,
    upgrade_database,
    upgrade_if_new,
)
from switchyard.bootstrap.engine import Engine, Office, Role, running_engine
from switchyard.bootstrap.files import audit_files, audit_head
from switchyard.bootstrap.pdca import PdcaOffice, open_pdca_store
from switchyard.bootstrap.rebuild_books import rebuild_books, verify_books
from switchyard.bootstrap.recheck_command import carry_out_recheck
from switchyard.bootstrap.rechecks import restricting
from switchyard.bootstrap.services import Services
from switchyard.bootstrap.venues import venue_kinds
from switchyard.bootstrap.wrappers import PortWrappers

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
    "restricting",
    "running_backoffice",
    "running_engine",
    "sqlite_path",
    "upgrade_database",
    "upgrade_if_new",
    "venue_kinds",
    "verify_books",
]
