"""Strategies, their health, and the requests that recheck it. Used by `flow/pdca`, its stores and its routes."""
