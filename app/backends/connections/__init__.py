"""The link between a session and its process: of its own, shared, started again, or behind a bridge between eras.
`source` has the interfaces."""
