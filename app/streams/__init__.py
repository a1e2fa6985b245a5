"""Messages on their way to a client: streams and their back-pressure, replay and resuming, and the journal from which
another node can go on.
"""
