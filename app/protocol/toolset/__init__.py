"""Toolsets, without I/O: what their members offer, under which names it is shown, and which member gets a message."""
