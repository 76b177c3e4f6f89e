"""Files that must survive a power cut: the audit file, copies of the head, signing keys, recorded quotes. Used by
`bootstrap`, other adapters and the command line.
"""
