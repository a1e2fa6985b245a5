"""Messages to clients: streams and their back-pressure, replay and resuming, and the journal for the next node."""
