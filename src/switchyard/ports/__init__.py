"""Protocols of what the flow needs from outside, one module for each group of users. The flow calls them, `adapters`
implement them, `bootstrap` connects the two.
"""
