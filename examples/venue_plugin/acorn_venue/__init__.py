"""Connects Switchyard to Acorn, a fictional broker: `VENUE_URL_<VENUE>=acorn:https://…` opens it."""

from acorn_venue.adapter import AcornAdapter
from acorn_venue.descriptor import DESCRIPTOR
from switchyard.venue import Kind

KIND = Kind(descriptor=DESCRIPTOR, build=AcornAdapter)
