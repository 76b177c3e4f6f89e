"""The only way to change state: decisions are gathered into groups, and each group is one append to the journal."""
