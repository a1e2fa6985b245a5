"""What differs, in words and as a merge patch; applied to the old members, the patch makes the new ones."""

from hypothesis import given, settings
from hypothesis import strategies as st

from app.admin._merge_patch import _merged
from app.cli.files.differences import Change, changes, merge_patch

NAMES = st.sampled_from("abcd")
VALUES = st.recursive(
    st.integers(0, 3) | st.lists(st.integers(0, 2), max_size=2),
    lambda inner: st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=4)


@settings(max_examples=300)
@given(OBJECTS, OBJECTS)
def test_the_merge_patch_makes_the_old_the_new(old, new):
    expected = {**{name: value for name, value in old.items() if name not in new}, **new}
    assert _merged(old, merge_patch(old, new)) == expected
    assert bool(changes(old, new)) == (expected != old)


def test_lines_for_people():
    old = {"a": 1, "t": "x\ny", "l": [{"n": 1, "m": 2}], "e": {"K": "***", "G": "***"}, "s": "a\x1b"}
    new = {"a": 2, "t": "x\nz", "l": [{"n": 1, "m": 3}], "e": {"K": "***", "N": "***"}, "s": "b" * 300}
    lines = [change.line() for change in changes(old, new, secret=["e"])]
    assert lines[:5] == [
        "a: 1 → 2", "t: 2 lines → 2 lines, differing from line 2 on", "l[0].m: 2 → 3", "e.G: *** → nothing",
        "e.N: nothing → ***",
    ]  # fmt: skip
    assert lines[5].startswith('s: "a\\u001b" → "bbb')
    assert len(lines[5]) < 150
    assert Change("secret", "***", "***", is_secret=True).line() == "secret: *** → *** (another value)"
    assert Change("a", None, "x\ny").line(is_made=True) == 'a: "x\\ny"'
