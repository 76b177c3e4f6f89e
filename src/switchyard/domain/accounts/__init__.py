"""Accounts: positions, realised results, and what an account is shown. Used by flow, adapters and client."""
