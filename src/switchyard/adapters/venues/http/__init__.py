"""Brokers that speak the HTTP venue protocol (`venues/wire.py`). Built by `bootstrap/venues.py`, one for each venue."""
