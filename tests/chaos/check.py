"""Holds a history against what the gateway promises. Pure: records in, sentences out, none if all is well.

`python -m tests.chaos.check DIRECTORY` checks one that was kept.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.chaos.history import (
    FOREVER,
    Asked,
    Beat,
    Call,
    Ended,
    Executed,
    Finding,
    Healed,
    Heard,
    History,
    Initialised,
    Listened,
    Opened,
    Revoked,
    Sent,
)
from tests.chaos.weather import Weather

# An answer with one of these says: it was not carried out. 404 says only that the session is over.
NEVER_RAN = {400, 401, 403, 409, 421, 429, 503}
ALIVE_WITHIN_S = 3.0  # /livez of a node that nobody harms, less what the asking program itself was late
WRITTEN_S = 1.5  # what was sent so long before its node died is written down, if Redis was well
IDLE_S = 55.0  # a session that nobody used for so long may have ended by itself

Rule = Callable[[History, Weather], Iterator[str]]


def violations(history: History) -> list[str]:
    """What was promised and not kept."""
    weather = Weather(history)
    return [f"{rule.__name__}: {found}" for rule in RULES for found in rule(history, weather)]


def executed_once(history: History, weather: Weather) -> Iterator[str]:
    """With a result: exactly once. Refused: never. Otherwise at most once."""
    times = Counter(each.call for each in history.of(Executed))
    calls = {each.call: each for each in history.of(Call)}
    for name, count in times.items():
        if count > 1:
            yield f"{name} was executed {count} times"
        if name not in calls and not name.startswith("stolen-"):
            yield f"{name} was executed and never sent"
    for call in calls.values():
        if call.outcome == "answered" and not times[call.call]:
            yield f"{call.call} was answered and never executed"
        if call.outcome == "refused" and call.status in NEVER_RAN and times[call.call]:
            yield f"{call.call} was refused with {call.status} {call.reason} and executed: {call}"


def to_nobody_else(history: History, weather: Weather) -> Iterator[str]:
    """Answers, messages and processes belong to one session, or to one principal where there are no sessions."""
    whose = {each.process: each.whose for each in history.of(Initialised)}
    calls = {each.call: each for each in history.of(Call)}
    for call in calls.values():
        if call.outcome == "answered" and (call.whose, call.answers) != (call.session, call.call):
            yield f"{call.call} of {call.session} got the answer to {call.answers} of {call.whose}"
    for done in history.of(Executed):
        sent = calls.get(done.call)
        if sent is not None and whose.get(done.process, sent.session) != sent.session:
            yield f"{done.call} of {sent.session} ran in the process of {whose[done.process]}"
        if done.call.startswith("stolen-"):
            yield f"{done.call} was executed: the session of another"
    for heard in history.of(Heard):
        if heard.whose != heard.session:
            yield f"{heard.session} heard what was for {heard.whose}: {heard}"
    for asked in history.of(Asked):
        if 200 <= asked.status < 300:
            yield f"{asked.principal} used {asked.session}, which is another's: status {asked.status}"


def heard_in_order(history: History, weather: Weather) -> Iterator[str]:
    """Per process: each number once, none left out before the last, and on the listen stream in order."""
    on_broken = _on_broken_streams(history)
    sent = {(each.process, each.number): each.at for each in history.of(Sent)}
    for (session, process), heard in _by_process(history).items():
        times = Counter(each.number for each in heard)
        twice = [each.at for each in heard if times[each.number] > 1]
        # That a later owner has told them died with it and with Redis: the one before tells them again when it wakes.
        is_excused = bool(twice) and weather.may_have_forgotten(min(twice), max(twice))
        for number, count in times.items():
            if count > 1 and not is_excused:
                yield f"{session} heard message {number} of {process} {count} times"
        listened = [each.number for each in heard if each.stream == "listen"]
        if listened != sorted(listened) and not is_excused:
            yield f"{session} heard messages of {process} out of order: {listened}"
        for number in set(range(1, max(times))) - set(times):
            if not on_broken(session, sent.get((process, number), 0.0)):
                yield f"{session} never heard message {number} of {process}, but later ones up to {max(times)}"


def nothing_lost(history: History, weather: Weather) -> Iterator[str]:
    """Readers who were there to the end, or have heard something of a later process, have heard everything that was
    safe: all that a living node has taken from its process, and what a dead one must have written down."""
    began = {each.process: each.at for each in history.of(Initialised)}
    whose = {each.process: each.whose for each in history.of(Initialised)}
    heard = {(each.process, each.number) for each in history.of(Heard)}
    up_to = defaultdict[str, float](float)  # by session: processes that began before have had their say
    for each in history.of(Heard):
        up_to[each.session] = max(up_to[each.session], began.get(each.process, 0.0))
    up_to |= dict.fromkeys(_readers_to_the_end(history), FOREVER)
    on_broken = _on_broken_streams(history)
    for message in history.of(Sent):
        session = whose.get(message.process, "")
        if (message.process, message.number) in heard or began.get(message.process, FOREVER) >= up_to[session]:
            continue
        if not on_broken(session, message.at) and _was_safe(message, weather):
            yield f"{session} never heard message {message.number} of {message.process}, sent at {message.at:.3f}"


def _readers_to_the_end(history: History) -> set[str]:
    """Sessions that lived when all was over, with somebody who listens."""
    ended = next((each.at for each in history.of(Ended)), FOREVER)
    gone = {session for session, at in _ended_by_its_client(history).items() if at < ended}
    gone |= {call.session for call in history.of(Call) if call.status == 404}
    gone |= {each.session for each in history.of(Listened) if each.status == 404}
    return {each.session for each in history.of(Listened) if each.status == 200} - gone


def nothing_after_a_revocation(history: History, weather: Weather) -> Iterator[str]:
    """Neither executed nor delivered, once the nodes had the time to hear of it."""
    revoked = {each.principal: each for each in history.of(Revoked)}
    calls = {each.call: each for each in history.of(Call)}
    for done in history.of(Executed):
        sent = calls.get(done.call)
        if sent is not None and sent.principal in revoked:
            limit = weather.heard_of(revoked[sent.principal], weather.place_of(done.process))
            if done.at > limit:
                after = f"{done.at - revoked[sent.principal].answered:.2f} s"
                yield f"{done.call} ran {after} after {sent.principal} was revoked, {done.at - limit:.2f} s too late"
    for key, at, what in _used(history):
        if key in revoked and at > (limit := weather.heard_of(revoked[key], None)):
            late = at - revoked[key].answered
            yield f"{what} {late:.2f} s after {key} was revoked, {at - limit:.2f} s too late"


def _used(history: History) -> Iterator[tuple[str, float, str]]:
    """Who got something, and when it was asked for or came into being: the key, the time, what."""
    for call in history.of(Call):
        if call.outcome == "answered":
            yield call.principal, call.began, f"{call.call} was sent and answered"
    for listened in history.of(Listened):
        if listened.status == 200:
            yield listened.principal, listened.began, f"a stream of {listened.session} was opened"
    owner = {each.session: each.principal for each in history.of(Opened)}
    for heard in history.of(Heard):
        if heard.session in owner:
            yield owner[heard.session], heard.sent_at, f"{heard.session} heard what was sent"


def living_sessions_are_found(history: History, weather: Weather) -> Iterator[str]:
    """404 for a session that goes on elsewhere only if it was ended, or Redis forgot it together with its node, or its
    first node could not write it down at all."""
    kinds = {each.session: each for each in history.of(Opened)}
    first = {each.session: weather.place_of(each.process) for each in reversed(history.of(Heard))}
    over = _ended_by_its_client(history)
    used = {session: [each.at] for session, each in kinds.items()}
    told: list[tuple[str, float, float, str]] = []
    for call in history.of(Call):
        if call.outcome == "answered":
            used.setdefault(call.session, []).append(call.ended)
        if call.status == 404:
            told.append((call.session, call.began, call.ended, call.call))
    told += [(each.session, each.began, each.answered, "GET") for each in history.of(Listened) if each.status == 404]
    for session, began, ended, what in told:
        if session not in kinds or kinds[session].kind != "respawn" or ended >= over.get(session, ended + 1):
            continue
        last = max([at for at in used[session] if at <= began], default=began)
        if weather.was_never_written(first.get(session, -1), kinds[session].at):
            continue
        if began - last < IDLE_S and not weather.may_have_forgotten(last, ended):
            yield f"{what}: 404 for {session} at {ended:.3f}, which was last answered {ended - last:.1f} s before"


def every_refusal_has_a_reason(history: History, weather: Weather) -> Iterator[str]:
    """Nothing is answered by accident: no 500, and no refusal without a word that says why."""
    for call in history.of(Call):
        if call.status == 500 or (call.outcome == "refused" and not call.reason):
            yield f"{call.call} got {call.status} {call.reason or 'without a reason'} from node {call.node}"


def nodes_are_alive(history: History, weather: Weather) -> Iterator[str]:
    """/livez of every node that runs answers."""
    for beat in history.of(Beat):
        slow = beat.seconds - beat.late > ALIVE_WITHIN_S or beat.status != 200
        if slow and not weather.harmed("node", beat.node, beat.at - 0.5, beat.at + beat.seconds + 0.5):
            yield f"node {beat.node} answered /livez with {beat.status} after {beat.seconds:.2f} s at {beat.at:.3f}"


def well_in_the_end(history: History, weather: Weather) -> Iterator[str]:
    """What was looked at in the world; and that there was a storm at all."""
    for finding in history.of(Finding):
        if finding.trouble:
            yield f"{finding.what}: {finding.trouble}"
    for kind in (Healed, Ended):
        if not history.of(kind):
            yield f"the history has no {kind.__name__}"
    if sum(call.outcome == "answered" for call in history.of(Call)) < 20 or not history.of(Heard):
        yield "hardly anything was done"


RULES: tuple[Rule, ...] = (
    executed_once,
    to_nobody_else,
    heard_in_order,
    nothing_lost,
    nothing_after_a_revocation,
    living_sessions_are_found,
    every_refusal_has_a_reason,
    nodes_are_alive,
    well_in_the_end,
)

# --- what several rules ask


def _by_process(history: History) -> dict[tuple[str, str], list[Heard]]:
    """The messages of each process to each session, as they came."""
    found = defaultdict[tuple[str, str], list[Heard]](list)
    for heard in history.of(Heard):
        found[heard.session, heard.process].append(heard)
    return found


def _on_broken_streams(history: History) -> Callable[[str, float], bool]:
    """Whether a message to this session, sent then, may have gone where its client could not ask for it again: on the
    stream of a call that broke, or on a listen stream that broke before its client had any id to resume it with."""
    broken = defaultdict[str, list[Call]](list)
    for call in history.of(Call):
        if call.outcome in ("unknown", "error"):
            broken[call.session].append(call)
    blind, first = dict[str, float](), set[str]()  # by session: until when there was no id, though somebody listened
    for listened in history.of(Listened):
        if not listened.after:
            if listened.session in first:
                blind[listened.session] = listened.answered
            if listened.status in (0, 200, 503):  # 503: a node between lost the one behind it, which had begun to tell
                first.add(listened.session)

    def may_be(session: str, sent_at: float) -> bool:
        calls = broken[session]
        in_call = any(call.began <= sent_at <= call.ended + 15 for call in calls)
        return in_call or sent_at <= blind.get(session, 0.0)

    return may_be


def _was_safe(message: Sent, weather: Weather) -> bool:
    """Whether it must reach its reader: its node lived, or had the time to write it down."""
    place = weather.place_of(message.process)
    died = weather.away_after(place, message.at)
    if died is None:
        return True
    return message.at < died - WRITTEN_S and weather.was_written(place, message.at, died)


def _ended_by_its_client(history: History) -> dict[str, float]:
    """From when on each session may be gone, by its client or by a revocation."""
    over = {each.session: each.at for each in history.records if type(each).__name__ == "Closed"}
    revoked = {each.principal: each.asked for each in history.of(Revoked)}
    for opened in history.of(Opened):
        if opened.principal in revoked:
            over[opened.session] = min(over.get(opened.session, revoked[opened.principal]), revoked[opened.principal])
    return over


if __name__ == "__main__":
    found = violations(History.load(Path(sys.argv[1])))
    print("\n".join(found) or "nothing broken")
    sys.exit(bool(found))
