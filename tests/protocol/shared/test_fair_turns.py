"""FairTurns: places, order and fairness."""

from app.protocol.shared._fair_turns import FairTurns, Party, Verdict


def make(max_running: int = 2, max_waiting_bytes: int = 100) -> tuple[FairTurns[str], Party[str], Party[str]]:
    return FairTurns(max_running, max_waiting_bytes), Party(), Party()


def test_items_run_while_there_are_places_and_then_wait() -> None:
    turns, greedy, _ = make()
    assert [turns.offer(greedy, name, 1) for name in "abc"] == [Verdict.RUN, Verdict.RUN, Verdict.WAIT]
    assert turns.finish(greedy) == ["c"]
    assert (turns.running, turns.waiting) == (2, 0)


def test_a_party_that_has_nothing_running_always_gets_one() -> None:
    turns, greedy, modest = make()
    for name in "abc":
        turns.offer(greedy, name, 1)
    assert turns.offer(modest, "m", 1) is Verdict.RUN
    assert turns.offer(modest, "n", 1) is Verdict.WAIT
    assert turns.finish(modest) == ["n"]


def test_free_places_go_round() -> None:
    turns, greedy, modest = make(1)
    for name in ("g1", "g2", "g3"):
        turns.offer(greedy, name, 1)
    for name in ("m1", "m2", "m3"):
        turns.offer(modest, name, 1)
    served = turns.finish(greedy) + turns.finish(greedy)
    assert served == ["g2", "g3"]  # each of them is the one that its party may always have
    turns, greedy, modest = make(2)
    for name in ("g1", "g2", "g3", "g4"):
        turns.offer(greedy, name, 1)
    for name in ("m1", "m2", "m3"):
        turns.offer(modest, name, 1)
    assert turns.finish(greedy) == []  # the extra one of `modest` is over the limit
    assert turns.finish(greedy) == ["g3"]
    assert turns.finish(modest) == ["m2"]


def test_what_waits_is_bounded_in_bytes_for_each_party_alone() -> None:
    turns, greedy, modest = make(1, 10)
    turns.offer(greedy, "runs", 1000)
    assert turns.offer(greedy, "large", 1000) is Verdict.WAIT
    assert turns.offer(greedy, "one too many", 1) is Verdict.REFUSE
    turns.offer(modest, "m1", 1)
    assert turns.offer(modest, "m2", 8) is Verdict.WAIT


def test_a_paused_party_waits_and_keeps_its_order() -> None:
    turns, party, other = make()
    turns.pause(party)
    assert turns.offer(party, "a", 1) is Verdict.WAIT
    assert turns.offer(party, "b", 1) is Verdict.WAIT
    assert turns.offer(other, "o", 1) is Verdict.RUN
    assert turns.finish(other) == []
    assert turns.resume(party) == ["a", "b"]


def test_who_takes_back_or_leaves_makes_room() -> None:
    turns, greedy, modest = make(1)
    for name in ("a", "b", "c"):
        turns.offer(greedy, name, 1)
    turns.offer(modest, "m", 1)
    turns.offer(modest, "n", 1)
    assert turns.withdraw(greedy, "b")
    assert not turns.withdraw(greedy, "b")
    assert turns.leave(greedy) == []
    assert turns.finish(modest) == ["n"]
    assert turns.leave(modest) == []
    assert (turns.running, turns.waiting) == (0, 0)
