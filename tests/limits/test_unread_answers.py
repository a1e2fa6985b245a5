import gc

from app.limits.unread_answers import UnreadAnswers

SIZE = 1000


def unread() -> UnreadAnswers:
    return UnreadAnswers(of_tenant=3 * SIZE, of_node=4 * SIZE)


def test_equal_results_of_a_tenant_are_one_object_and_count_once():
    answers = unread()
    kept = [answers.keep("acme", b"%d" % 7 * SIZE) for _ in range(100)]
    assert len({id(each.json) for each in kept if each}) == 1
    assert all(kept)
    assert (answers.of("acme"), answers.bytes) == (SIZE, SIZE)


def test_what_one_tenant_keeps_is_never_given_to_another():
    answers = unread()
    mine, theirs = answers.keep("acme", b"a" * SIZE), answers.keep("other", b"a" * SIZE)
    assert mine is not None
    assert theirs is not None
    assert (mine.original, theirs.original) == (None, None)
    assert answers.bytes == 2 * SIZE


def test_results_of_one_length_that_differ_are_kept_apart():
    answers = unread()
    kept = [answers.keep("acme", letter * SIZE) for letter in (b"a", b"b")]
    assert [each and each.json for each in kept] == [b"a" * SIZE, b"b" * SIZE]


def test_a_tenant_over_its_limit_keeps_no_more_until_something_is_read():
    answers = unread()
    kept = [answers.keep("acme", b"%d" % each * SIZE) for each in range(4)]
    assert kept[-1] is None
    kept.clear()
    gc.collect()
    assert answers.keep("acme", b"x" * SIZE) is not None


def test_the_node_has_a_limit_and_whoever_has_nothing_unread_gets_an_answer_all_the_same():
    answers = unread()
    kept = [answers.keep(tenant, b"%d" % each * SIZE) for tenant in ("acme", "other") for each in range(2)]
    assert all(kept)
    assert answers.keep("acme", b"x" * SIZE) is None
    assert answers.keep("third", b"x" * SIZE * 5) is not None


def test_a_result_that_others_share_counts_until_the_last_is_read():
    answers = unread()
    first = answers.keep("acme", b"a" * SIZE)
    second = answers.keep("acme", b"a" * SIZE)
    del first
    assert answers.of("acme") == SIZE
    del second
    assert answers.of("acme") == 0


def test_the_request_of_each_counts_too():
    answers = unread()
    kept = [answers.keep("acme", b"a" * SIZE, SIZE) for _ in range(3)]
    assert [each is not None for each in kept] == [True, True, False]


def test_what_nobody_refers_to_any_more_is_forgotten():
    answers = unread()
    kept = answers.keep("acme", b"a" * SIZE)
    assert kept is not None
    del kept
    assert (answers.bytes, dict(answers._of_tenant), answers._kept, answers._originals) == (0, {}, {}, {})
