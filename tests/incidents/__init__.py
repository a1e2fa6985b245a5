"""Incidents, played on two real nodes, and docs/on-call.md, whose commands must name the cause of each."""
