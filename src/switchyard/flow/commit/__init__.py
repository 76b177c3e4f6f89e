"""The only way to change state: decisions are gathered into groups, and each group is one append to the journal. Every
part of the flow that writes calls the sequencer; no other module calls `Journal.append`.
"""
