"""Commands that must reach the process which owns the database: the control socket, and the pipe to the back office.
Used by the command line and by `switchyard up`.
"""
