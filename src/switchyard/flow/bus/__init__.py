"""The relay: publishes the journal's events to a message broker."""
