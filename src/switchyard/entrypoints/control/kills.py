"""Carries out the commands of the kill switch, for the control socket and for commands without a server."""

from typing import assert_never

from switchyard.entrypoints.control.messages import (
    ClearKill,
    KillCommand,
    KillsTold,
    KillTold,
    ListKills,
    SetKill,
    ShowKill,
)
from switchyard.flow.kill.switch import KillSwitch


async def carry_out(switch: KillSwitch, command: KillCommand) -> KillTold | KillsTold:
    """The answer to a command."""
    match command:
        case SetKill(request=request, wait_seconds=seconds):
            kill = await switch.set(request)
            return KillTold(await switch.settled_state(kill.kill_id, seconds))
        case ClearKill(kill_id=kill_id, by=by, reason=reason):
            await switch.clear(kill_id, by, reason)
            return KillTold(await switch.settled_state(kill_id, 0))
        case ShowKill(kill_id=kill_id):
            return KillTold(await switch.state(kill_id))
        case ListKills(limit=limit):
            return KillsTold(await switch.newest(before=None, limit=limit))
        case unreachable:
            assert_never(unreachable)
