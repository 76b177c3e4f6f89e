"""Hooks on the ports of a process: `running_engine` applies them before the stages use the ports."""

from switchyard.bootstrap.databases import Database
from switchyard.ports.clock import Clock
from switchyard.ports.venue import Venue


class PortWrappers:
    """Returns each port unchanged; crash tests override a method to stop a process at a boundary or plant a defect."""

    def database(self, database: Database) -> Database:
        """The database that all stages use."""
        return database

    def venue(self, venue: Venue) -> Venue:
        """A venue that the worker sends to; called once for each."""
        return venue

    def clock(self, clock: Clock) -> Clock:
        """The wall clock."""
        return clock
