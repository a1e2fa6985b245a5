"""What 2026-07-28 has and the handshake era has not, and the bridge between the two."""
