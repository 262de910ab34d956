"""Which tests `make test` runs: those that are quick, and the quickest others that reach what these do not.

    python tests/tiers.py     # measures all quick and long tests, for half an hour or more, and writes tests/long.txt

Each test's seconds are taken, and the lines of the package that it reaches, in processes that it starts too. A test is
left to `make test-long` if it takes long and others reach all its lines. Needs Python 3.12, which tells each line once.
"""

import atexit
import heapq
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
PACKAGE = f"{TESTS.parent}/src/dtypeguard/"
LONG = TESTS / "long.txt"
FOLDER = os.environ.get("DTYPEGUARD_TIERS")  # where each process writes
_QUICK = 0.1  # seconds of a test that is always quick
_WORTH = 0.2  # seconds of a test's parametrizations that are worth a line in the table
_HEAD = """\
# Written by tests/tiers.py: tests that `make test` leaves to `make test-long`, as they take long and others reach their
# lines. Numbers are parametrizations that `make test` runs all the same.
"""

# ---------------------------------------------------------------- measure

_reached: set[tuple[str, int]] = set()
_test = ""  # that runs in this process
_places: dict[str, int] = {}  # of tests, in the order in which they are collected


def _line(code, line):
    if code.co_filename.startswith(PACKAGE):
        _reached.add((code.co_filename[len(PACKAGE) :], line))
    return sys.monitoring.DISABLE  # it is told once for each test


def pytest_collection_finish(session):
    _places.update({item.nodeid: place for place, item in enumerate(session.items)})


def _write(test, seconds=None):
    row = [test, _places.get(test), seconds, [f"{file}:{line}" for file, line in list(_reached)]]
    _reached.clear()
    with open(f"{FOLDER}/{os.getpid()}.jsonl", "a") as out:
        out.write(json.dumps(row) + "\n")


def _leave():
    """A process ends that a test has started, or a worker."""
    if _reached:
        _write(_test or os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0])


if FOLDER:
    sys.monitoring.use_tool_id(4, "tiers")
    sys.monitoring.register_callback(4, sys.monitoring.events.LINE, _line)
    sys.monitoring.set_events(4, sys.monitoring.events.LINE)
    atexit.register(_leave)
    _exit = os._exit
    os._exit = lambda status: (_leave(), _exit(status))


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    global _test
    _write("")  # what was imported since
    sys.monitoring.restart_events()
    start, _test = time.perf_counter(), item.nodeid
    yield
    _test = ""
    _write(item.nodeid, time.perf_counter() - start)


def measured(folder):
    """Of each test its seconds, and the lines that it reaches."""
    found, lines = [], defaultdict(set)
    for file in Path(folder).glob("*.jsonl"):
        for test, place, took, reached in map(json.loads, file.read_text().splitlines()):
            if took is not None:
                found.append((place, test, took))
            lines[test].update(reached)
    seconds = {test: took for _, test, took in sorted(found)}
    return seconds, {test: lines[test] for test in seconds}


# ---------------------------------------------------------------- choose


def chosen(seconds, lines):
    """The tests that are quick, in all their lines."""
    quick = {test for test, took in seconds.items() if took < _QUICK}
    left = set().union(*lines.values()).difference(*(lines[test] for test in quick))
    queue = [(-len(lines[test] & left) / seconds[test], test) for test in seconds.keys() - quick]
    heapq.heapify(queue)
    while queue:
        _, test = heapq.heappop(queue)
        worth = len(lines[test] & left) / seconds[test]
        if worth and queue and worth < -queue[0][0]:  # others have reached some of its lines since
            heapq.heappush(queue, (-worth, test))
        elif worth:
            quick.add(test)
            left -= lines[test]
    return quick


def table(seconds, lines):
    """The text of long.txt."""
    quick, groups = chosen(seconds, lines), defaultdict(list)
    for test in seconds:
        groups[test.partition("[")[0]].append(test)
    rows = []
    for name, tests in sorted(groups.items()):
        kept = [str(place) for place, test in enumerate(tests) if test in quick]
        if sum(seconds[test] for test in tests if test not in quick) >= _WORTH:
            rows.append(" ".join([name.removeprefix("tests/"), *kept]))
    return _HEAD + "\n".join(rows) + "\n"


def mark(items):
    """Mark the tests of the table as long."""
    rows = (line.split() for line in LONG.read_text().splitlines() if not line.startswith("#"))
    kept, met = {name: set(map(int, places)) for name, *places in rows}, Counter()
    for item in items:
        name = item.nodeid.partition("[")[0].removeprefix("tests/")
        if name in kept and not item.get_closest_marker("slow"):
            if met[name] not in kept[name]:
                item.add_marker("long")
            met[name] += 1


def main():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(f"import sys; sys.path.append({str(TESTS)!r}); import tiers")
        line = [sys.executable, "-m", "pytest", "-q", "-p", "tiers", "-n", "2", "--dist", "loadfile"]
        paths = os.pathsep.join(filter(None, [folder, str(TESTS), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "DTYPEGUARD_TIERS": folder, "PYTHONPATH": paths}
        subprocess.run([*line, "-m", "not slow and not docs", str(TESTS)], env=environment, check=False)
        LONG.write_text(table(*measured(folder)))


if __name__ == "__main__":
    main()
