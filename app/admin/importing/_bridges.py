"""Programs that only pass messages on to a URL, which the gateway does itself: `npx mcp-remote URL` and the like."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from app.text.command_line import program_name

_Kind = Literal["flag", "value", "header", "pair", "bearer", "url", "transport", "tool", "sign-in", "other way"]


class _Bridge(NamedTuple):
    """Its options, by what follows them; `takes_url`: an argument without an option is the URL."""

    options: Mapping[str, _Kind]
    takes_url: bool = True


_BRIDGES = {
    "mcp-remote": _Bridge({
        "--header": "header", "--transport": "transport", "--allow-http": "flag", "--debug": "flag", "--silent": "flag",
        "--enable-proxy": "flag", "--host": "value", "--resource": "value", "--auth-timeout": "value",
        "--ignore-tool": "tool", "--static-oauth-client-metadata": "sign-in", "--static-oauth-client-info": "sign-in",
    }),
    "mcp-proxy": _Bridge({
        "--headers": "pair", "-H": "pair", "--transport": "transport", "--debug": "flag", "--no-verify-ssl": "flag",
        "--verify-ssl": "value", "--log-level": "value", "--client-id": "sign-in", "--client-secret": "sign-in",
        "--token-url": "sign-in", "--port": "other way", "--sse-port": "other way", "--named-server": "other way",
        "--named-server-config": "other way",
    }),
    "supergateway": _Bridge({
        "--sse": "url", "--streamableHttp": "url", "--header": "header", "--oauth2Bearer": "bearer",
        "--logLevel": "value", "--outputTransport": "value", "--stdio": "other way",
    }, takes_url=False),
}  # fmt: skip
_RUNNERS = {"npx", "npm", "pnpm", "pnpx", "yarn", "bunx", "bun", "uvx", "uv", "pipx"}
_VERBS = {"exec", "x", "dlx", "tool", "run"}
_TRANSPORTS = {"http-only": "http", "sse-only": "sse", "streamablehttp": "http", "sse": "sse"}
_BEARER_OF = "API_ACCESS_TOKEN"  # of mcp-proxy
_SIGN_IN = "a sign-in in a browser is not made here: if the server asks for one, give it a token as a header"


class Bridged(NamedTuple):
    """The server behind the bridge, with members as a file has them, and what is to be said of it."""

    entry: dict[str, Any]
    notes: list[str]


def bridged(words: Sequence[str], env: Mapping[str, Any]) -> Bridged | None:
    """The server that the bridge of this command line reaches; None if it is no bridge to a URL.

    Placeholders that the bridge would fill from its own `env` are filled: headers are shown to nobody.
    """
    at = _bridge_at(words) if all(isinstance(word, str) for word in words) else None
    if at is None:
        return None
    name = _package(words[at])
    read = _Read(_BRIDGES[name])
    if not read.all(list(words[at + 1 :])):
        return None
    if name == "mcp-proxy" and env.get(_BEARER_OF):
        read.headers.setdefault("Authorization", f"Bearer {env[_BEARER_OF]}")
    entry = {
        "url": _filled(read.url, env), "headers": {each: _filled(value, env) for each, value in read.headers.items()},
        "type": read.transport, "disabledTools": read.tools,
    }  # fmt: skip
    notes = [f"`{name}` only passes messages on to a URL, which the gateway does itself"]
    if not any(each.lower() == "authorization" for each in read.headers) or read.signs_in:
        notes.append(_SIGN_IN)
    return Bridged(entry, notes + ([f"ignored: {ascii(', '.join(read.ignored))[1:-1]}"] if read.ignored else []))


class _Read:
    """The arguments of a bridge."""

    def __init__(self, bridge: _Bridge) -> None:
        self._bridge = bridge
        self.url, self.transport, self.signs_in = "", "", False
        self.headers: dict[str, str] = {}
        self.tools: list[str] = []
        self.ignored: list[str] = []

    def all(self, words: list[str]) -> bool:
        """Whether they name a URL, and nothing that the bridge would start or serve itself."""
        while words:
            word = words.pop(0)
            option, has_value, value = word.partition("=") if word.startswith("--") else (word, "", "")
            kind = self._bridge.options.get(option)
            if kind == "other way" or (kind is None and not self._without_option(word)):
                return False
            if kind is not None:
                needed = {"flag": 0, "pair": 2}.get(kind, 1) - bool(has_value)
                self._with_option(kind, option, [*([value] if has_value else []), *words[: max(0, needed)]])
                del words[: max(0, needed)]
        return bool(self.url)

    def _without_option(self, word: str) -> bool:
        if word.startswith("-"):
            self.ignored.append(word.partition("=")[0])
        elif self._bridge.takes_url and not self.url and _is_url(word):
            self.url = word
        elif not (self.url and word.isdecimal()):  # the port to which a browser is sent back
            return False
        return True

    def _with_option(self, kind: _Kind, option: str, values: list[str]) -> None:
        value = values[0] if values else ""
        if kind == "header":
            name, _, content = value.strip("\"'").partition(":")
            self.headers[name.strip()] = content.strip()
        elif kind == "pair":
            self.headers[value] = values[1] if len(values) > 1 else ""
        elif kind == "bearer":
            self.headers["Authorization"] = f"Bearer {value}"
        elif kind == "url":
            self.url, self.transport = value, "sse" if option == "--sse" else "http"
        elif kind == "transport":
            self.transport = _TRANSPORTS.get(value, "")
        elif kind == "tool":
            self.tools.append(value)
        self.signs_in = self.signs_in or kind == "sign-in"


def _bridge_at(words: Sequence[str]) -> int | None:
    """Where the bridge is named: as the program, or as what a runner of packages runs."""
    if not words or (program_name(words[0]) not in _RUNNERS and _package(program_name(words[0])) not in _BRIDGES):
        return None
    found = None
    for number, word in enumerate(words):
        if _package(program_name(word) if number == 0 else word) in _BRIDGES:
            found = number  # the last one: `uvx --from mcp-proxy mcp-proxy`
        elif found is not None or (number and not word.startswith("-") and word not in _VERBS):
            break
    return found


def _package(word: str) -> str:
    return word.removeprefix("--package=").partition("@")[0].partition("==")[0]


def _is_url(word: str) -> bool:
    return word.startswith(("http://", "https://", "${", "$", "{"))


def _filled(text: str, env: Mapping[str, Any]) -> str:
    for name, value in env.items():
        text = text.replace(f"${{{name}}}", str(value)).replace(f"${{env:{name}}}", str(value))
    return text
