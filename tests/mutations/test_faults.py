"""The list of `scripts/mutate` fits the program; that each fault is noticed is for the script to show."""

from collections import Counter
from pathlib import Path

from tests.long import ALWAYS, is_long
from tests.mutations.faults import FAULTS

ROOT = Path(__file__).resolve().parents[2]


def test_the_text_of_every_fault_stands_in_its_file_once():
    stale = [fault.name for fault in FAULTS if (ROOT / fault.file).read_text().count(fault.old) != 1]
    assert not stale


def test_every_fault_has_a_name_of_its_own_changes_something_and_has_tests():
    assert Counter(fault.name for fault in FAULTS).most_common(1)[0][1] == 1
    for fault in FAULTS:
        assert fault.old != fault.new, fault.name
        assert fault.tests, fault.name
        for test in fault.tests:
            assert (ROOT / test.partition("::")[0]).is_file(), test


def test_no_fault_needs_a_test_that_only_long_runs():
    """`scripts/mutate` runs without it, and so does whoever changes the program."""
    named = {test for fault in FAULTS for test in fault.tests}
    parts = [test.removeprefix("tests/").partition("::") for test in sorted(named)]
    assert [each for each in parts if is_long(each[0], each[2].partition("[")[0]) and each[2]] == []
    assert [each for each in parts if not each[2] and is_long(each[0], "") and not ALWAYS.get(each[0])] == []


def test_there_are_at_least_forty():
    assert len(FAULTS) >= 40
