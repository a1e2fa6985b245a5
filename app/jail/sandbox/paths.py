"""Paths that no sandbox opens, and those of which each has its own. Pure."""

# Never opened, whoever asks: sockets of other services, other processes, secrets of the machine.
NEVER = ("/proc", "/sys", "/dev", "/run", "/boot", "/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssh")
OWN_IN_EVERY_SANDBOX = ("/", "/tmp", "/tmp/home", "/var/tmp")  # noqa: S108


def why_not(path: str) -> str | None:
    """Why no backend can be given this path of a node, whatever is there; None: it can be."""
    parts = path.split("/")
    plain = "/" + "/".join(part for part in parts if part not in ("", "."))
    if not path.startswith("/"):
        return "must be absolute: it begins with `/`"
    if ".." in parts:
        return "must not contain `..`"
    for never in NEVER:
        if _is_within(plain, never):
            return f"`{never}` and what is in it cannot be opened: a sandbox has none of it"
        if _is_within(never, plain):
            return f"`{plain}` cannot be opened, as `{never}` is in it: name what is needed in it"
    if plain in OWN_IN_EVERY_SANDBOX:
        return f"`{plain}` cannot be opened: every sandbox has its own, and nothing is needed for that"
    if path != plain:
        return "must have no `.`, and no `/` twice or at its end"
    return None


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
