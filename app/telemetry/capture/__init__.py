"""Captures: the messages of one session as they pass, for an administrator with a stated reason (inspections)."""
