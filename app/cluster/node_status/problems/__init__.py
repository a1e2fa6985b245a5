"""What is wrong now, in words: found on this node from what it knows anyway, and shown by the REST API."""
