"""Sandboxing of backend processes: which mechanisms this machine offers."""
