"""The journal's language: events and their data, changes, hash-chained lines, replay. Every layer imports it."""
