"""A broker of the HTTP venue protocol with faults that a person sets, for tests and the demo. A process of its own,
started by `switchyard venue-sim`.
"""
