"""Registers the strategies that orders name. Run by `bootstrap` as a reader of the journal."""
