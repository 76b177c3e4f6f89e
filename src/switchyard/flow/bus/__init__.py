"""The relay: publishes the journal's events to a message broker. Run by `bootstrap` in one process at a time."""
