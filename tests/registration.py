"""How tests register backends: in a sandbox, except in those that are marked `looks_inside`."""

is_confined = True


def for_test(*, looks_inside: bool) -> None:
    """Called before the fixtures of a test are made."""
    global is_confined
    is_confined = not looks_inside
