"""NoProcess: what a connection has in place of a process."""

from app.errors import BackendExited


class NoProcess:
    """The lease of a connection that has no process yet, or none for now; and its connection."""

    id, was_warm = "", False

    @property
    def connection(self) -> "NoProcess":
        return self

    def send(self, line: bytes) -> None:
        raise BackendExited

    def _do_nothing(self, *args: object, **named: object) -> None:
        pass

    attach = pause_reading = resume_reading = asked_for = heard_noise = answering = _do_nothing
    handshake_succeeded = release = _do_nothing
