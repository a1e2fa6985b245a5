"""Sessions: one client, one backend link, one Exchange; and the streams that carry messages to the client."""
