"""The REST API under /api/v1: how requests are processed, and what its resources share.

The endpoints are in `resources`, their bodies in `schemas`. Nothing here starts or ends sessions or processes: changes
are stored, and the nodes read of them in the audit trail (`cluster.changes`).
"""
