"""Connections of sessions to backends: a process of its own, shared, started again, or behind a bridge of eras.
`source` has the interfaces."""
