"""`trunkline top` on the screen of a terminal. A thread asks the gateway, so that keys work meanwhile."""

import contextlib
import curses
import locale
import signal
import threading
from collections.abc import Callable

from app.cli.top.frame import KEYS, Query, Snapshot, frame, title_line
from app.errors import GatewayError
from app.text.terminal.text import cut

KEY_WAIT_MS = 100
VIEW_KEYS = {"p": "processes", "s": "sessions", "t": "tenants"}
SORT_KEYS = {"m": "memory", "c": "cpu", "l": "calls", "a": "age"}

Ask = Callable[[Query, int], Snapshot]


class ScreenFailed(Exception):
    """The terminal has no screen to draw on."""


class Screen:
    """Shows the gateway's answers until the user quits."""

    def __init__(self, ask: Ask, first: Snapshot, interval_s: float, rows: int | None) -> None:
        self._ask, self._interval_s, self._rows = ask, interval_s, rows
        self._snapshot, self._query, self._problem = first, first.query, ""
        self._height = 24
        self._at_once, self._is_over = threading.Event(), False
        self._failure: BaseException | None = None

    def run(self) -> int:
        """Runs until `q` is pressed.

        Raises:
            ScreenFailed: nothing was drawn.
            KeyboardInterrupt, SystemExit: a signal ended it; the terminal is restored.
        """
        locale.setlocale(locale.LC_ALL, "")
        try:
            window = curses.initscr()
        except curses.error as error:
            raise ScreenFailed(str(error)) from None
        signal.signal(signal.SIGTERM, _leave)
        try:
            _prepare(window)
            # A daemon: a missing answer must not keep the command from ending.
            threading.Thread(target=self._keep_asking, daemon=True, name="top").start()
            self._draw_until_quit(window)
        finally:
            self._is_over = True
            self._at_once.set()
            curses.endwin()
        return 0

    # --- the thread that asks

    def _keep_asking(self) -> None:
        try:
            while not self._is_over:
                self._at_once.clear()
                self._refresh()
                self._at_once.wait(self._interval_s)
        except BaseException as error:  # noqa: BLE001 - raised by the thread that draws
            self._failure = error

    def _refresh(self) -> None:
        room = self._height - title_line(self._snapshot) - 2  # the titles, and the last line
        try:
            snapshot = self._ask(self._query, self._rows or max(1, room))
        except GatewayError as error:
            self._problem = f"no newer data: {error}"
        else:
            self._snapshot, self._problem = snapshot, ""

    # --- the thread that draws

    def _draw_until_quit(self, window: curses.window) -> None:
        drawn: object = None
        while True:
            if self._failure is not None:
                raise self._failure
            state = (self._snapshot, self._problem, self._query, window.getmaxyx())
            if state != drawn:
                self._draw(window)
                drawn = state
            key = window.getch()
            if key in (ord("q"), ord("Q")):
                return
            if key == curses.KEY_RESIZE:
                drawn = None
            elif 0 <= key < 256:
                self._press(chr(key))

    def _press(self, key: str) -> None:
        query = self._query
        if key in VIEW_KEYS and (key != "t" or query.tenant is None):
            self._query = query.but(view=VIEW_KEYS[key])
        elif key in SORT_KEYS:
            self._query = query.but(sort=SORT_KEYS[key])
        elif key not in (" ", "r"):
            return
        self._at_once.set()

    def _draw(self, window: curses.window) -> None:
        self._height, width = window.getmaxyx()
        snapshot, problem = self._snapshot, self._problem
        if self._query != snapshot.query and not problem:
            problem = f"asking for {self._query.words} ..."
        lines, titles = frame(snapshot, problem), title_line(snapshot, problem)
        window.erase()
        for number, line in enumerate(lines[: self._height - 1]):
            _put(window, number, cut(line, width), curses.A_REVERSE if number == titles else curses.A_NORMAL)
        _put(window, self._height - 1, cut(KEYS, width - 1), curses.A_DIM)
        window.refresh()


def _leave(signum: int, _: object) -> None:
    """Ends the command with the exit code of the signal, after the terminal is restored."""
    raise SystemExit(128 + signum)


def _prepare(window: curses.window) -> None:
    curses.noecho()
    curses.cbreak()
    with contextlib.suppress(curses.error):  # the terminal cannot hide the cursor
        curses.curs_set(0)
    window.keypad(True)
    window.timeout(KEY_WAIT_MS)


def _put(window: curses.window, line: int, text: str, style: int) -> None:
    with contextlib.suppress(curses.error):  # the terminal has become smaller, or this was its last corner
        window.addstr(line, 0, text, style)
