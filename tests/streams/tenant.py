"""A tenant as a replay log sees it."""


class Tenant:
    """Fulfils app.streams.replay.Tenant."""

    replay_bytes = 0
