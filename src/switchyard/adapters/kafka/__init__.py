"""Kafka as the bus: the relay's publisher, and the source that a back office elsewhere reads. Built by `bootstrap`."""
