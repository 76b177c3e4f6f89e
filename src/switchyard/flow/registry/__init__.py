"""Registers the strategies that orders name."""
