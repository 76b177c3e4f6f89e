"""Venues behind the port `Venue`, a package for each kind. Built by `bootstrap/venues.py`; `_template.py` is the start
of a new one.
"""
