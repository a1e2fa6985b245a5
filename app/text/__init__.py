"""Text that comes in and goes out: terminals, JSON with comments, addresses, redaction, caches by short texts."""
