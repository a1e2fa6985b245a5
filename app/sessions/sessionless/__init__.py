"""Requests of 2026-07-28, which name no session: each is given a pooled session of its caller."""
