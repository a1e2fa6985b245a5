"""Requests of 2026-07-28, which name no session: each finds a pooled session of its caller, asks questions as
`input_required`, and may wait sealed until its client comes back.
"""
