"""Which node owns which session, and how the nodes speak to each other."""
