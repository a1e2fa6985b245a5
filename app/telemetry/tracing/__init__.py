"""Traces: where a request stands in its trace, the spans that are recorded of it, and how they reach a collector."""
