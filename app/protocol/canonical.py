"""canonical: JSON in one form of all that say the same, so that values can be compared that were written anew."""

import json

import msgspec

EXACT_DIGITS = 21  # JavaScript writes longer integers with an exponent


def canonical(raw: msgspec.Raw) -> str:
    """Equal for equal values: whatever their white space, escapes, order of keys and way to write a number.

    What Python cannot read, because of its depth, is equal only to the same bytes.
    """
    try:
        value = json.loads(bytes(raw), parse_int=_number, parse_float=_number)
        return json.dumps(value, sort_keys=True)
    except (ValueError, RecursionError):
        return bytes(raw).hex()


def _number(text: str) -> int | float:
    """Integers exactly, as far as every peer writes all their digits; anything else as the double that it is."""
    if text.lstrip("-").isdigit() and len(text) <= EXACT_DIGITS:
        return int(text)
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < 10**EXACT_DIGITS else number
