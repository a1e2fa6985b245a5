"""Synonyms are terms, as the index files them."""

from app.protocol.search._synonyms import SYNONYMS
from app.protocol.search._words import term_of


def test_they_go_both_ways_and_never_to_themselves() -> None:
    for term, others in SYNONYMS.items():
        assert term
        assert term not in others
        assert len(set(others)) == len(others)
        assert all(term in SYNONYMS[other] for other in others)


def test_a_word_in_any_form_has_them() -> None:
    assert term_of("folders") in SYNONYMS[term_of("directories")]
    assert term_of("deleting") in SYNONYMS[term_of("removes")]
