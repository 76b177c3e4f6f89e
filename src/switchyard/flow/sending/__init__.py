"""From outbox rows to the venue: first attempts, the dispatcher, outcomes, doubts and failover. Run by `bootstrap` in a
worker; the only package that calls `Venue.submit`, `cancel` and `amend`.
"""
