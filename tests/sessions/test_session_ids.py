from app.sessions.routes import new_node_id
from app.sessions.session_ids import maker_of, new_session_id, tag_of


def test_an_id_says_which_node_made_it():
    node = new_node_id(None)
    first, second = new_session_id(node), new_session_id(node)
    assert first != second
    assert maker_of(first) == maker_of(second) == tag_of(node)


def test_the_tag_of_a_node_is_read_from_the_session_ids_that_it_gives_out_and_from_nothing_else():
    for name in (None, "a", "trunkline-7c9d-x2x", "00000000"):
        tag = tag_of(new_node_id(name))
        assert maker_of(f"{tag}.random-bytes_64") == tag
        assert tag.partition(".")[0] == (name or tag)
    assert tag_of("deadbeef" + "0" * 8) != tag_of("deadbeef-" + "0" * 16)
    assert [maker_of(each) for each in ("none", "short.x", "name.short.x", "..", "")] == [None] * 5
