"""Addresses in a text: URLs, hosts, e-mail and IP addresses, paths; written openly or in one of the usual disguises."""

import re

# Top-level names that are hardly ever endings of files or of words of prose.
_TOP = (
    "com|org|net|io|ai|dev|app|co|info|biz|cloud|site|online|xyz|top|live|link|tech|space|store|shop|club|icu|ru|cn|su|tk|cc|ws"
    "|de|fr|uk|eu|us|nl|ch|at|pl|it|es|jp|kr|br|in|au|ca|se|no|fi|dk|cz|ly|gg|me|tv|to|edu|gov|mil|int|example|test|local"
    "|internal|onion|invalid|arpa|zip|mov"
)
_FORMS = tuple(
    re.compile(each, re.IGNORECASE)
    for each in (
        r"\b[a-z][a-z0-9+.-]{1,20}://[^\s<>\"'`)\]}]*",
        r"\b(?:javascript|data|mailto|tel|file|vbscript|blob|ui|magnet|ssh|ftp|ws|wss):[^\s<>\"'`)\]}]+",
        r"(?<![\w/:])//[a-z0-9-]+\.[^\s<>\"'`)\]}]+",
        rf"(?<![\w@./-])(?:[a-z0-9](?:[a-z0-9-]{{0,62}})\.){{1,8}}(?:{_TOP})(?![\w-])(?!\.\w)(?:[:/][^\s<>\"'`)\]}}]*)?",
        r"\bwww\.[^\s<>\"'`)\]}]+",
        rf"\b[\w-]{{1,64}}\s?[\[({{]\s?(?:\.|dot)\s?[\])}}]\s?\w{{1,64}}|\b[\w-]{{1,64}} dot (?:{_TOP})\b",
        r"[\w.+-]{1,64}@[\w-]{1,64}\.[\w.-]{1,64}|[\w.+-]{1,64}\s?[\[({]\s?(?:@|at)\s?[\])}]\s?[\w-]{1,64}",
        r"\b[\w.]{1,64} at [\w-]{1,64} dot \w{1,64}",
        r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d)",
        r"(?<![\w:])(?:[0-9a-f]{1,4}:){4,7}[0-9a-f]{1,4}(?![\w:])|(?<![\w:])[0-9a-f:]{0,30}::[0-9a-f][0-9a-f:.]{0,30}",
        r"(?<![\w~])~[\w-]*/[^\s<>\"'`)\]}]*",
        r"(?<![\w/.:*}>)-])/(?:[\w.@%+-]+/)+[\w.@%+*-]*",
        r"(?<![\w/.:*}>)-])/(?:etc|root|home|tmp|var|proc|usr|opt|dev|mnt|sys|Users|bin|srv|run)\b",
        r"\b[a-z]:\\[^\s<>\"'`]*|\\\\[\w.-]+\\[^\s<>\"'`]+",
        r"(?<![\w.])\.\.?/[\w./-]+",
        r"(?-i:\$\{?[A-Z_][A-Z0-9_]{2,}\}?|%[A-Z_]{3,}%)",
        r"(?<![\w/])\.(?:env|ssh|aws|npmrc|netrc|pgpass|gitconfig|git-credentials|bashrc|zshrc|kube|docker|config|gnupg)\b",
        r"\bid_(?:rsa|dsa|ecdsa|ed25519)\b",
    )
)


def addresses(text: str) -> set[str]:
    """All of them, in lower case and without closing punctuation."""
    if not any(each in text for each in "/.:@\\$%[({~") and " dot " not in text and "id_" not in text:
        return set()
    return {found.group().strip().rstrip(".,;:!?").casefold() for form in _FORMS for found in form.finditer(text)}
