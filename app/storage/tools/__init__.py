"""Toolsets, guides and the catalogue in the database, and the names that toolsets share with backends."""
