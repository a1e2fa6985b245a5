"""What the backends offer: asked once, kept in the database, and asked again when it has changed. No toolsets, which
only read it."""
