"""What a page says of a refusal by REST."""

from app.console.rest import Refused


def test_a_filter_that_cannot_be_read_is_named():
    errors = [
        {"parameter": "since", "detail": "Input should have timezone info"},
        {"parameter": "min_ms", "detail": "no"},
    ]
    told = Refused(422, {"detail": "The request does not fit the schema.", "errors": errors})
    assert str(told) == "since: Input should have timezone info; min_ms: no"
