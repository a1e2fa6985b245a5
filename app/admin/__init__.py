"""The REST API under /api/v1: what a request to it goes through, and what all its resources share.

The endpoints are in `resources`, their bodies in `schemas`. Nothing here starts or ends anything: changes are stored,
and told to `NodeEffects`.
"""
