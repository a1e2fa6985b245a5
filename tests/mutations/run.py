"""scripts/mutate: does a test notice each of the faults in `faults.py`?"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

from tests.mutations.fault import Fault
from tests.mutations.faults import FAULTS

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 300  # a fault may make a test hang: then its own time-out ends it
PYTEST = ("-m", "pytest", "-q", "-x", "--no-header", "--tb=line", "-p", "no:cacheprovider")
NOTICED, NO_TESTS, BROKEN = 1, 5, (2, 3, 4)  # exit codes of pytest


def main() -> int:
    """Returns 0 where every fault was noticed."""
    options = _parser().parse_args()
    faults = [fault for fault in FAULTS if not options.names or any(word in fault.name for word in options.names)]
    if options.list:
        print("\n".join(f"{fault.name:<60} {fault.file}" for fault in faults))
        return 0
    if not faults:
        print("no fault has such a name; --list shows them", file=sys.stderr)
        return 2
    return _report(faults, _run(faults, options.jobs))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/mutate", description=__doc__)
    parser.add_argument("names", nargs="*", help="only faults whose name contains one of these")
    parser.add_argument("--list", action="store_true", help="print the names and do nothing")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (2)")
    return parser


def _run(faults: list[Fault], jobs: int) -> dict[str, str]:
    """What is wrong with each fault that went unnoticed, by its name. Shows each as it is done."""
    unnoticed: dict[str, str] = {}
    with ExitStack() as stack:
        copies = SimpleQueue[Path]()
        for _ in range(min(jobs, len(faults))):
            copy = _copy(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trunkline-mutate-"))))
            copies.put(copy)
        _require_green(faults, copy, jobs)
        with ThreadPoolExecutor(jobs) as threads:
            running = {threads.submit(_one, fault, copies): fault for fault in faults}
            for number, done in enumerate(as_completed(running), 1):
                problem, seconds = done.result()
                name = running[done].name
                print(f"{number:3}/{len(faults)}  {problem or 'noticed':<12} {seconds:5.1f} s  {name}", flush=True)
                if problem:
                    unnoticed[name] = problem
    return unnoticed


def _copy(directory: Path) -> Path:
    """The program and its tests, as they are here, changes that are not committed included."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    for name in filter(None, names.decode().split("\0")):
        source = ROOT / name
        if source.is_file():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, directory / name)
    return directory


def _require_green(faults: list[Fault], copy: Path, jobs: int) -> None:
    """Without a fault all of these tests pass: else nothing would be shown."""
    tests = sorted({test for fault in faults for test in fault.tests})
    print(f"without a fault: {len(tests)} tests", flush=True)
    done = _pytest(copy, ["-n", str(jobs), *tests], None)
    if done.returncode != 0:
        sys.exit(f"they do not pass as the program is:\n{done.stdout[-4000:]}")


def _one(fault: Fault, copies: "SimpleQueue[Path]") -> tuple[str, float]:
    """Empty where a test noticed, else what happened instead; and how long it took."""
    copy, began_at = copies.get(), time.monotonic()
    try:
        file = copy / fault.file
        text = file.read_text()
        if text.count(fault.old) != 1:
            return "stale", 0.0
        try:
            _write(file, text.replace(fault.old, fault.new))
            done = _pytest(copy, fault.tests)
        finally:
            _write(file, text)
    except subprocess.TimeoutExpired:
        return "", time.monotonic() - began_at  # something hangs, and that shows
    finally:
        copies.put(copy)
    unnoticed = "UNNOTICED, but tests were skipped" if " skipped" in done.stdout else "UNNOTICED"
    problem = {NOTICED: "", 0: unnoticed, NO_TESTS: "no such test"}.get(done.returncode, "broken")
    if problem == "broken":
        print(done.stdout[-2000:], flush=True)
    return problem, time.monotonic() - began_at


def _write(file: Path, text: str) -> None:
    """With a time of its own: by that Python knows whether what it has compiled is of this text."""
    changed_at = file.stat().st_mtime_ns + 2_000_000_000
    file.write_text(text)
    os.utime(file, ns=(changed_at, changed_at))


def _pytest(
    copy: Path, words: "list[str] | tuple[str, ...]", within_s: float | None = WITHIN_S
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *PYTEST, *words], cwd=copy, capture_output=True, text=True, timeout=within_s, check=False
    )


def _report(faults: list[Fault], unnoticed: dict[str, str]) -> int:
    if not unnoticed:
        print(f"all {len(faults)} faults were noticed")
        return 0
    print(f"\n{len(unnoticed)} of {len(faults)} faults were not noticed:")
    for name, problem in unnoticed.items():
        print(f"    {name}: {problem}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
