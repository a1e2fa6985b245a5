"""Limits of tenants, of addresses and of the node, counted where they are used."""
