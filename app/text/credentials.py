"""Credentials in command lines and addresses: which parts of them are secret, and how they are shown without. Pure.

Found are what follows an option, a variable, a parameter or a header whose name says that it is secret, the password of
an address, what looks like a key of a known kind, and long random parts of a URL's path. A secret of another form is
not found: nobody but its owner knows that it is one.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

MARK = "***"  # instead of a secret
MAX_LOOKED_AT = 16 << 10  # characters of a word in which secrets are looked for; a longer one is hidden as a whole

_NAMES = re.compile(
    r"(?i)(pass(word|wd|phrase|code)|secret|credential|authori[sz]ation$|cookie|(api|access|private|signing|auth)[-_]?key"
    r"|^pin$|^pwd$|^otp$|^jwt$|^(x[-_])?auth$|^bearer$|(^|[-_.])pass$|authori[sz]ation[-_]?(header|value)$)"
)
_TOKEN = re.compile(
    r"(^|[-_.])(?i:token|tokens)$|[a-z]Tokens?$"
    r"|(?i:(auth|access|refresh|session|bearer|id|api|bot|secret|github|gitlab|slack|csrf)tokens?$|token[-_]?value$)"
)
_NO_SECRETS = frozenset({"progressToken", "maxTokens", "max_tokens", "inputTokens", "outputTokens", "totalTokens",
                         "input_tokens", "output_tokens", "total_tokens"})  # fmt: skip
# Keys of known kinds, in any text.
SHAPES = re.compile(
    # JWT. Looked for from the beginning of a word, and only in one with two dots behind it: else a word with many
    # beginnings would be read to its end for each.
    r"(?<![\w-])(?=[\w-]{11,}+\.[\w-]{8,}+\.)[\w-]*?\beyJ[\w-]{8,}+\.[\w-]{8,}+\.[\w-]*"
    r"|\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}"
    r"|\bglpat-[\w-]{16,}|\bxox[abeoprs]-[\w-]{10,}|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[\w-]{30,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.|\n)*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)
_MORE_SHAPES = re.compile(
    r"\btlk_[0-9A-Za-z]{8}_[0-9A-Za-z]+|\b(?:npm|hf|gsk|r8|ntn|figd|phc|lin_api|dop_v1)_[A-Za-z0-9_-]{16,}"
    r"|\b(?:tvly|pplx|pypi|xapp)-[\w-]{16,}|\bSG\.[\w-]{16,}\.[\w-]{16,}"
)
# Names that are secret only as parameters of an address, or in a list of settings.
_OF_ADDRESSES = frozenset({"key", "sig", "signature", "apikey", "code", "pwd", "pass", "x-amz-signature", "accountkey",
                           "sharedaccesskey"})  # fmt: skip
# What a name that ends so has is where the secret is, or what it is called.
_IS_ABOUT = re.compile(r"(?i)(?<=[a-z])(?:[-_.]?(?:file|path|dir|name|id|url|uri|env|var|type|store|expiry|ttl))$")
_IS_PLAIN = re.compile(r"(?i)\d{1,5}|true|false|yes|no|\$\{[^{}]*\}|\$\w+|").fullmatch
_DATABASES = r"(?:postgres(?:ql)?|mysql|mariadb|mongodb|rediss?|amqps?|mssql|sqlserver|clickhouse|cockroachdb)"
_PASSWORDS = (
    re.compile(rf"(?i)\b{_DATABASES}(?:\+[a-z0-9_]+)?://[^\s/@:]*:(\S{{1,1024}})@"),
    re.compile(r"(?i)\b[a-z][a-z0-9+.-]{0,30}:(?:\\?/){2}[^\s/@:?#]*:([^\s/?#]+)@"),
    re.compile(r"(?i)\bhttps?://([^\s/@:?#]{16,})@"),
    re.compile(r"^[^\s:/@]+:(\S+)@(?:tcp|unix)\("),  # Go's MySQL
)
_RANDOM = re.compile(r"(?<=/)(?=[\w=-]*[0-9])(?=[\w=-]*[A-Za-z])[\w=-]{32,}(?=[/?#]|$)", re.ASCII)
_SCHEMES = re.compile(r"(?i)\b(?:bearer|basic)\s+(\S{6,})")
_NAME = r"(?:^|[\s;?&,\"'])(-{0,2}[A-Za-z][\w.-]{0,60}(?: [A-Za-z]{1,20})?)\s?=\s?"
_ASSIGNED = re.compile(_NAME + r"(\"[^\"]*\"|'[^']*'|[^&\s]+)")
_IN_LIST = re.compile(_NAME + r"(\"[^\"]*\"|'[^']*'|[^;]+)")  # Server=…;Password=…
_OPTION = re.compile(r"(?:^|\s)(--?[A-Za-z][\w-]{0,60})\s+[\"']?([^\s\"'-][^\s\"']*)")  # in a shell's line
_WHOLE = re.compile(r"(-{0,2}[A-Za-z][\w.-]{0,60})=(.*)", re.DOTALL)
_HEADER = re.compile(r"(?is)[\"']?([a-z][\w-]{0,60}):\s*(?:(?:bearer|basic|token)\s+)?(.+?)[\"']?")
_IN_JSON = re.compile(r"\\?\"([\w.-]{1,60})\\?\"\s*:\s*\\?\"((?:[^\"\\]|\\[^\"])*)")
_HEADERS = frozenset({"-H", "--header", "--headers"})

Span = tuple[int, int]


def names_secret(name: str) -> bool:
    """Whether a member of this name has a secret."""
    return name not in _NO_SECRETS and (_NAMES.search(name) is not None or _TOKEN.search(name) is not None)


def hidden(words: Sequence[str]) -> tuple[str, ...]:
    """The words of a command line, or one address, with the mark in place of each secret."""
    return tuple(_replaced(word, spans) for word, spans in zip(words, _spans(words), strict=True))


def hidden_in(text: str) -> str:
    """As `hidden`, of one word."""
    return hidden([text])[0]


def secrets_in(words: Sequence[str]) -> list[str]:
    """The secrets themselves."""
    return [word[start:end] for word, spans in zip(words, _spans(words), strict=True) for start, end in spans]


def restored(words: Sequence[str], stored: Sequence[str]) -> tuple[str, ...]:
    """The words with the stored secrets in place of marks: where a word is shown as before, behind the same word. Other
    marks stay."""
    shown, found = hidden(stored), list[str]()
    for place, word in enumerate(words):
        before = words[place - 1] if place else ""
        same = [at for at, each in enumerate(shown) if each == word and (shown[at - 1] if at else "") == before]
        at = place if place in same else same[0] if len(same) == 1 else None
        found.append(word if at is None or MARK not in word else stored[at])
    return tuple(found)


def _replaced(word: str, spans: Iterable[Span]) -> str:
    for start, end in reversed(list(spans)):
        word = word[:start] + MARK + word[end:]
    return word


def _spans(words: Sequence[str]) -> list[list[Span]]:
    before = ("", "", *words)
    return [_merged(_in_word(word, *pair)) for word, *pair in zip(words, before[1:], before, strict=False)]


def _in_word(word: str, last: str, last_but_one: str) -> Iterator[Span]:
    """Secret parts of a word that follows these two."""
    if len(word) > MAX_LOOKED_AT:
        yield 0, len(word)
        return
    is_value = last.startswith("-") and "=" not in last and not word.startswith("--")
    if (is_value and _is_secret(last, word)) or (last_but_one in _HEADERS and _is_secret(last, word)):
        scheme = re.match(r"(?i)(?:bearer|basic)\s+", word)
        yield scheme.end() if scheme else 0, len(word)
        return
    whole = _WHOLE.fullmatch(word)
    if whole and _is_secret(whole[1], whole[2]) and not re.search(r"[;&]\s?\w+=|\s\w+=", whole[2]):
        yield whole.span(2)
    elif whole and whole[1].startswith("-"):  # --env=NAME=VALUE
        yield from ((whole.start(2) + start, whole.start(2) + end) for start, end in _in_word(whole[2], "", ""))
    else:
        yield from _by_form(word)


def _by_form(word: str) -> Iterator[Span]:
    for pattern in (SHAPES, _MORE_SHAPES):
        yield from (found.span() for found in pattern.finditer(word))
    for pattern in (*_PASSWORDS, _SCHEMES):
        yield from (found.span(1) for found in pattern.finditer(word) if not _IS_PLAIN(found[1]) or "://" in found[0])
    is_address = "://" in word
    if is_address and re.match(r"(?i)\S*https?://", word):
        yield from (found.span() for found in _RANDOM.finditer(word))
    is_list = ";" in word and not is_address
    for found in (_IN_LIST if is_list else _ASSIGNED).finditer(word):
        if _is_secret(found[1], found[2]) or ((is_address or is_list) and found[1].lower() in _OF_ADDRESSES):
            start, end = found.span(2)
            is_quoted = found[2][0] in "\"'" and len(found[2]) > 1
            yield (start + 1, end - 1) if is_quoted else (start, end)
    if (header := _HEADER.fullmatch(word)) and _is_secret(header[1], header[2]):
        yield header.span(2)
    for pattern in (_OPTION, _IN_JSON):
        yield from (found.span(2) for found in pattern.finditer(word) if _is_secret(found[1], found[2]))


def _is_secret(name: str, value: str) -> bool:
    """Whether what has this name is a secret, and no switch, number or reference to one."""
    name = name.lstrip("-")
    if not names_secret(name) or _IS_ABOUT.search(name):
        return False
    return bool(value) and (not _IS_PLAIN(value) or (value.isdecimal() and "pass" in name.lower()))


def _merged(spans: Iterable[Span]) -> list[Span]:
    """In order, without overlaps and empty ones."""
    merged = list[Span]()
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
