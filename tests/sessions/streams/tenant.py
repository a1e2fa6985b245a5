"""A tenant as a replay log sees it."""


class Tenant:
    """Fulfils app.sessions.streams._replay.Tenant."""

    replay_bytes = 0

    def count_replay(self, size: int) -> None:
        self.replay_bytes += size
