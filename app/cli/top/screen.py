"""Screen: `trunkline top` in a terminal that can be drawn on. The gateway is asked in a thread: keys work meanwhile."""

import contextlib
import curses
import locale
import signal
import threading
from collections.abc import Callable

from app.cli.top.frame import KEYS, Look, Wanted, cut, frame, title_line
from app.errors import GatewayError

KEY_WAIT_MS = 100
VIEW_KEYS = {"p": "processes", "s": "sessions", "t": "tenants"}
SORT_KEYS = {"m": "memory", "c": "cpu", "l": "calls", "a": "age"}

Ask = Callable[[Wanted, int], Look]


class ScreenFailed(Exception):
    """This terminal cannot be drawn on."""


class Screen:
    """Shows one look after the other until it is told to quit."""

    def __init__(self, ask: Ask, first: Look, interval_s: float, rows: int | None) -> None:
        self._ask, self._interval_s, self._rows = ask, interval_s, rows
        self._look, self._wanted, self._problem = first, first.wanted, ""
        self._height = 24
        self._at_once, self._is_over = threading.Event(), False
        self._failure: BaseException | None = None

    def run(self) -> int:
        """Until `q`.

        Raises:
            ScreenFailed: nothing was drawn.
            KeyboardInterrupt, SystemExit: it was told to end; the terminal is as it was.
        """
        locale.setlocale(locale.LC_ALL, "")
        try:
            window = curses.initscr()
        except curses.error as error:
            raise ScreenFailed(str(error)) from None
        signal.signal(signal.SIGTERM, _leave)
        try:
            _prepare(window)
            # A daemon: an answer that does not come must not keep the terminal.
            threading.Thread(target=self._keep_looking, daemon=True, name="look").start()
            self._draw_until_quit(window)
        finally:
            self._is_over = True
            self._at_once.set()
            curses.endwin()
        return 0

    # --- the thread that asks

    def _keep_looking(self) -> None:
        try:
            while not self._is_over:
                self._at_once.clear()
                self._look_again()
                self._at_once.wait(self._interval_s)
        except BaseException as error:  # noqa: BLE001 - raised by the thread that draws
            self._failure = error

    def _look_again(self) -> None:
        room = self._height - title_line(self._look) - 2  # the titles themselves, and the last line
        try:
            look = self._ask(self._wanted, self._rows or max(1, room))
        except GatewayError as error:
            self._problem = f"nothing newer: {error}"
        else:
            self._look, self._problem = look, ""

    # --- the one that draws

    def _draw_until_quit(self, window: curses.window) -> None:
        drawn: object = None
        while True:
            if self._failure is not None:
                raise self._failure
            state = (self._look, self._problem, self._wanted, window.getmaxyx())
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
        wanted = self._wanted
        if key in VIEW_KEYS and (key != "t" or wanted.tenant is None):
            self._wanted = wanted.but(view=VIEW_KEYS[key])
        elif key in SORT_KEYS:
            self._wanted = wanted.but(sort=SORT_KEYS[key])
        elif key not in (" ", "r"):
            return
        self._at_once.set()

    def _draw(self, window: curses.window) -> None:
        self._height, width = window.getmaxyx()
        look, problem = self._look, self._problem
        if self._wanted != look.wanted and not problem:
            problem = f"asking for {self._wanted.words} ..."
        lines, titles = frame(look, problem), title_line(look, problem)
        window.erase()
        for number, line in enumerate(lines[: self._height - 1]):
            _put(window, number, cut(line, width), curses.A_REVERSE if number == titles else curses.A_NORMAL)
        _put(window, self._height - 1, cut(KEYS, width - 1), curses.A_DIM)
        window.refresh()


def _leave(signum: int, _: object) -> None:
    """As a signal would have ended us, but not before the terminal is as it was."""
    raise SystemExit(128 + signum)


def _prepare(window: curses.window) -> None:
    curses.noecho()
    curses.cbreak()
    with contextlib.suppress(curses.error):  # a terminal that always shows it
        curses.curs_set(0)
    window.keypad(True)
    window.timeout(KEY_WAIT_MS)


def _put(window: curses.window, line: int, text: str, look: int) -> None:
    with contextlib.suppress(curses.error):  # it has become smaller meanwhile; or that was its last corner
        window.addstr(line, 0, text, look)
