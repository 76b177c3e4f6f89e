"""Switchyard: exactly-once order execution between trading strategies and brokers."""

__version__ = "0.1.0"
