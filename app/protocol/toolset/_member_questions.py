"""Questions of members, under ids of ours: two members may use the same ones."""

import msgspec

MAX_QUESTIONS = 32  # of one member open at once


class MemberQuestion(msgspec.Struct, gc=False):
    """A question of a member, under its id, with its progress token."""

    member: int
    id: bytes
    token: bytes | None


class MemberQuestions:
    """Those that are open."""

    __slots__ = ("_by_member", "_open")

    def __init__(self) -> None:
        self._open: dict[bytes, MemberQuestion] = {}  # by our id
        self._by_member: dict[int, dict[bytes, bytes]] = {}  # our ids, by the member's

    def may_open(self, member: int, member_id: bytes) -> bool:
        """Whether the member may ask, under this id."""
        mine = self._by_member.get(member, {})
        return member_id not in mine and len(mine) < MAX_QUESTIONS

    def add(self, our_id: bytes, question: MemberQuestion) -> None:
        """The session is asked."""
        self._open[our_id] = question
        self._by_member.setdefault(question.member, {})[question.id] = our_id

    def get(self, our_id: bytes) -> MemberQuestion | None:
        """An open question."""
        return self._open.get(our_id)

    def close(self, our_id: bytes) -> MemberQuestion | None:
        """It is answered; None if it is not open."""
        question = self._open.pop(our_id, None)
        if question is not None:
            del self._by_member[question.member][question.id]
        return question

    def withdraw(self, member: int, member_id: bytes) -> bytes | None:
        """The member does not want the answer any more: our id of the question; None if it is not open."""
        our_id = self._by_member.get(member, {}).get(member_id)
        if our_id is not None:
            self.close(our_id)
        return our_id

    def lose(self, member: int) -> list[bytes]:
        """Forgets all questions of the member; returns our ids."""
        lost = list(self._by_member.pop(member, {}).values())
        for our_id in lost:
            del self._open[our_id]
        return lost
