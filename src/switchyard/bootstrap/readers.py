"""The readers of the journal: the copies of its head in every process; audit file and streams of a gateway."""

import socket
from collections.abc import Callable
from contextlib import AsyncExitStack

from switchyard.bootstrap.core import Core
from switchyard.bootstrap.files import audit_files, database_place, head_files
from switchyard.flow.readers.audit import AuditWriter
from switchyard.flow.readers.head import HeadKeeper
from switchyard.flow.readers.stream import StreamHub
from switchyard.settings import journal_key


async def start_head(core: Core, stack: AsyncExitStack) -> None:
    """Check the journal against all copies of its head, then keep them."""
    keeper = HeadKeeper(
        head_files(core.settings, core.installation.id),
        installation=core.installation.id,
        database=database_place(core.settings),
        key=journal_key(core.settings),
        journal=core.database.journal,
        clock=core.clock,
        metrics=core.metrics,
    )
    await keeper.open()
    stack.push_async_callback(keeper.close)
    core.supervisor.start(stack, "head", keeper.run)


async def start_audit(core: Core, stack: AsyncExitStack) -> Callable[[], int | None]:
    """Check the journal against the audit file, then write the file; returns a look at its last event."""
    path = core.settings.audit_path
    audit = AuditWriter(
        *audit_files(path),
        key=journal_key(core.settings),
        journal=core.database.journal,
        commit=core.sequencer.commit,
        clock=core.clock,
        metrics=core.metrics,
        installation=core.installation.id,
        # One cursor per file: gateways on the same database may write files on different machines.
        reader=f"audit:{socket.gethostname()}:{path.absolute()}",
    )
    await audit.open()
    stack.push_async_callback(audit.close)
    core.supervisor.start(stack, "audit", lambda: audit.run(core.wakes.audit))
    return lambda: audit.seq


def start_streams(core: Core, hub: StreamHub, stack: AsyncExitStack) -> None:
    """Dispatch events to the hub's subscribers; closing the hub ends their streams before the task is cancelled."""
    core.supervisor.start(stack, "stream", lambda: hub.run(core.wakes.stream))
    stack.callback(hub.close)
