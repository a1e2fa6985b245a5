"""A tenant as a replay log sees it."""


class Tenant:
    """Fulfils app.streams.replay.Tenant."""

    replay_bytes = 0

    def count_replay(self, size: int) -> None:
        self.replay_bytes += size
