"""`python -m dtypeguard audit`: a script or a module, run as Python would, under audit.

Whatever is wrong with the options is said before the program runs. The program's own exit status and traceback are
kept; findings only turn a status of 0 into 1.
"""

import argparse
import builtins
import contextlib
import functools
import importlib
import importlib.machinery
import importlib.util
import io
import os
import pkgutil
import signal
import sys
import threading
import tokenize
import types
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TextIO

from ..._core.base.frames import is_own, without
from ..._core.base.pyproject import near
from ..._core.base.usage import INTERRUPTED, Usage
from ..._engine.watch.selection import Selection
from ..._engine.watch.steps import Enough
from ..._show.report.baseline import Baseline, load
from .. import factory
from ..output import STDOUT, form_of, try_files
from .audit import audit
from .conclusion import conclude, stands_alone
from .ranks import Ranks

_OPS = os.path.join("torch", "_ops.py")


def run(options: argparse.Namespace) -> int:
    """Run the program, print the report, and give the exit status."""
    baseline = _check(options)
    options.output_format = options.output_format or form_of(options.output)
    mending, ranks = None, Ranks.here()
    if options.unsafe_fixes and not options.fix:
        raise Usage("--unsafe-fixes goes with --fix; --diff shows all edits")
    if options.diff or options.fix:
        if ranks is not None:
            raise Usage(f"--diff and --fix run the program again in one process, and this is one of {ranks.size} ranks")
        from ..fix.command import Mending

        mending = Mending(options)
    # What pyproject.toml says of them waits until it is wanted.
    given = [name for name in ("prove", "prove_limit", "search_limit") if _is_given(options, name)]
    limits = [name.replace("_", "-") for name in given if name != "prove"]
    if mending is None and given:
        raise Usage("--no-prove, --prove-limit and --search-limit go with --diff and --fix")
    if limits and not options.prove:
        raise Usage(f"--no-prove runs nothing again, so --{limits[0]} has nothing to limit: give one of the two")
    program = begun(options.program, options.arguments, options.module)
    with contextlib.ExitStack() as stack:
        if options.json == STDOUT:
            options.output_format, options.json = "json", None
        out = _only_output(stack) if stands_alone(options) else sys.stdout
        process = os.getpid()
        with contextlib.nullcontext() if mending or ranks else _told_to_end():
            report, status = _audited(program, options)
        if os.getpid() != process:
            return status  # a child that the program forked: the report is its parent's
        notes = [] if ranks is None else ranks.gather(report, status)
        if ranks is not None and ranks.rank:
            if status:  # the launcher may end rank 0 before it can tell
                print(f"rank {ranks.rank}:\n{report}\nexit status {status}: the program's own", file=sys.stderr)
            return status
        out = out if not out.closed else sys.stderr
        return conclude(report, status, options, baseline, out, mending, notes)


def _is_given(options: argparse.Namespace, name: str) -> bool:
    """Whether an option stands on the command line."""
    return getattr(options, name) is not options.parser.get_default(name)


def _check(options: argparse.Namespace) -> Baseline | None:
    try:
        Selection.read(options.select, options.ignore, source=options.source, omit=options.omit)
        try_files(options, "write_baseline")
        if options.baseline is None or _is_to_come(options):
            return None
        return load(options.baseline)
    except (ValueError, OSError) as error:
        raise Usage(str(error)) from error


def _is_to_come(options: argparse.Namespace) -> bool:
    """Whether the baseline is written by this run for the first time, as where pyproject.toml names it."""
    written = options.write_baseline
    return written and not os.path.exists(written) and os.path.realpath(options.baseline) == os.path.realpath(written)


def _only_output(stack: contextlib.ExitStack) -> TextIO:
    """Standard output, for one text alone: all that would be written there otherwise goes to standard error.

    That is so until the process ends, as exit handlers print too; and for the processes that the program starts.
    """
    out = sys.stdout
    try:
        number, error = out.fileno(), sys.stderr.fileno()
    except (OSError, ValueError):  # Python's own objects stand there, of a test for one
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        return out
    out.flush()
    alone = stack.enter_context(os.fdopen(os.dup(number), "w", encoding="utf-8"))
    os.dup2(error, number)
    return alone


# --- running ------------------------------------------------------------------------------------------------------

Program = Callable[[], None]


def _audited(program: Program, options: argparse.Namespace) -> tuple[Any, int]:
    """The report, and the status that Python would exit with."""
    status = 0
    report = None
    try:
        watch = audit(**of_audit(options))
        if options.steps is not None:
            watch._end_after(options.steps)
        with watch as report:
            report.program = f"-m {options.program}" if options.module else options.program
            try:
                program()
            except Enough:
                report.stopped = options.steps
            except SystemExit as stop:  # no error of the program's
                status = status_of(stop.code)
    except Usage:
        raise
    except BaseException as error:
        if report is None:  # nothing has run yet
            raise Usage(str(error)) if isinstance(error, TypeError | ValueError) else error from None
        show(error)
        status = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return report, status


_TERM = signal.SIGTERM


def _end(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise SystemExit(128 + number)


@contextlib.contextmanager
def _told_to_end() -> Iterator[None]:
    """In here SIGTERM, as of a scheduler at a time limit, ends a program like `sys.exit(143)`: there is a report."""
    main = threading.current_thread() is threading.main_thread()
    if not main or not hasattr(os, "register_at_fork") or signal.getsignal(_TERM) is not signal.SIG_DFL:
        yield
        return
    _spare_children()
    signal.signal(_TERM, _end)
    try:
        yield
    finally:
        if signal.getsignal(_TERM) is _end:
            signal.signal(_TERM, signal.SIG_DFL)


@functools.cache
def _spare_children() -> None:
    """A child that the program forks is ended as without an audit, also by a signal that comes before it runs."""

    held = threading.local()

    def block() -> None:
        if signal.getsignal(_TERM) is _end:
            held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [_TERM])

    def unblock() -> None:
        mask = vars(held).pop("mask", None)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def child() -> None:
        if signal.getsignal(_TERM) is _end:
            signal.signal(_TERM, signal.SIG_DFL)
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=child)


def of_audit(options: Any) -> dict[str, Any]:
    """What `audit` is asked for."""
    names = ("select", "ignore", "values", "every", "source", "omit")
    return {name: getattr(options, name) for name in names}


def status_of(code: Any) -> int:
    """The exit status for what `SystemExit` has; what is no number is printed."""
    if code is None or isinstance(code, int):
        return int(code or 0)  # unittest's is a bool
    print(code, file=sys.stderr)
    return 1


def begun(name: str, arguments: list[str], module: bool) -> Program:
    """A program that is ready to run, and `sys` as it is to find it."""
    return _module(name, arguments) if module else _script(name, arguments)


def _script(path: str, arguments: list[str]) -> Program:
    """`python path arguments`: a file, or a folder or archive with a `__main__` in it."""
    file = path if os.path.isabs(path) else os.path.join(os.getcwd(), path)  # not normalised, as `__file__` is not
    if not path or not os.path.exists(file):
        rest = f"; for a module: -m {path}" if _is_there(path) else ""
        raise Usage(f"there is no script {path}{_meant(path)}{rest}")
    importer = None if os.path.isfile(file) and path.endswith(".py") else pkgutil.get_importer(file)
    if importer is not None:
        spec = importer.find_spec("__main__", None)
        if spec is None:
            raise Usage(f"cannot run {path}: there is no __main__ in it")
        _set_up(file, [path, *arguments])
        return lambda: _run_spec(spec)
    try:
        with io.open_code(file) as stream:
            source = stream.read()
    except OSError as error:
        raise Usage(f"cannot read {path}: {(error.strerror or 'failed').lower()}") from error
    _set_up(os.path.dirname(os.path.realpath(file)), [path, *arguments])
    loader = importlib.machinery.SourceFileLoader("__main__", file)
    return lambda: _execute(_compiled(source, file), __file__=file, __loader__=loader)


def _compiled(source: bytes, file: str) -> types.CodeType:
    """A script's code. As by Python, and not by `compile`, bytes that are no UTF-8 are refused in comments too."""
    encoding = "utf-8"
    with contextlib.suppress(SyntaxError):
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    try:
        source.decode(encoding)
    except UnicodeDecodeError as error:
        if encoding.startswith("utf-8"):
            line = source[: error.start].count(b"\n") + 1
            raise SyntaxError(
                f"Non-UTF-8 code starting with '\\x{source[error.start]:02x}' in file {file} on line {line}, but no "
                "encoding declared; see https://peps.python.org/pep-0263/ for details"
            ) from None
    return compile(source, file, "exec", dont_inherit=True)


def _meant(path: str) -> str:
    """The script that is meant by one that is not there."""
    folder = os.path.dirname(path)
    with contextlib.suppress(OSError, ValueError):
        scripts = [os.path.join(folder, one) for one in os.listdir(folder or ".") if one.endswith(".py")]
        return f" (did you mean {f'{path}.py'!r}?)" if f"{path}.py" in scripts else near(path, scripts) if path else ""
    return ""


def _is_there(module: str) -> bool:
    """Whether the module's outermost package can be found; nothing is imported to see that."""
    with contextlib.suppress(ImportError, ValueError):
        return bool(module) and importlib.util.find_spec(module.partition(".")[0]) is not None
    return False


def _module(name: str, arguments: list[str]) -> Program:
    """`python -m name arguments`."""
    if name.endswith(".py"):
        raise Usage(f"-m takes a module, as in -m {name.removesuffix('.py').replace('/', '.')}, not the file {name}")
    _set_up(os.getcwd(), ["-m", *arguments])
    if not _is_there(name):
        raise factory.missing(name, name.partition(".")[0])

    def program() -> None:
        spec = _find(name)
        if spec.submodule_search_locations is not None:
            spec = _find(f"{name}.__main__", f"the package {name} cannot be run: it has no __main__")
        sys.argv[0] = spec.origin or name
        if name == "pytest":
            _rewritten_too_late()
        _run_spec(spec)

    return program


def _rewritten_too_late() -> None:
    """What pytest asks of plugins that are imported before it: a suite may make its warning an error."""
    for name in sys.modules.keys() & {"dtypeguard", "jaxtyping"}:
        module = sys.modules[name]
        module.__doc__ = f"{module.__doc__ or ''}\n\nPYTEST_DONT_REWRITE"  # its asserts are not written anew


def _find(name: str, missing: str | None = None) -> importlib.machinery.ModuleSpec:
    parent, part = name.rpartition(".")[0], None
    try:
        if parent:
            importlib.import_module(parent)
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        part = error.name
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # a package around it imports what is not there
        spec = None
    if spec is None:
        raise Usage(missing) if missing else factory.missing(name, part)
    return spec


def _run_spec(spec: importlib.machinery.ModuleSpec) -> None:
    loader: Any = spec.loader
    code = loader.get_code(spec.name) if hasattr(loader, "get_code") else None
    if code is None:
        raise Usage(f"cannot run {spec.name}: it holds no Python code")
    names = {"__file__": spec.origin, "__loader__": loader, "__cached__": spec.cached}
    _execute(code, __spec__=spec, __package__=spec.parent, **names)


def _set_up(folder: str, argv: list[str]) -> None:
    """`sys` as the program is to find it."""
    sys.argv = argv
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _execute(code: types.CodeType, **names: Any) -> None:
    """Run code as the module `__main__`, which stays: pickles, spawned processes and exit handlers ask for it."""
    main = types.ModuleType("__main__")
    vars(main).update({"__builtins__": builtins, "__package__": None, "__cached__": None, **names})
    if sys.version_info < (3, 14):  # PEP 649
        vars(main)["__annotations__"] = {}
    sys.modules["__main__"] = main
    exec(code, vars(main))


# --- what it threw ------------------------------------------------------------------------------------------------


def show(error: BaseException) -> None:
    """The traceback as Python would print it, without our frames."""
    waiting, seen = [error], set()
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = _frames_of_program(one.__traceback__)
            others = (one.__cause__, one.__context__, *getattr(one, "exceptions", ()))
            waiting += [other for other in others if isinstance(other, BaseException)]
    sys.stdout.flush()
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except Exception:
        sys.__excepthook__(type(error), error, error.__traceback__)


def _frames_of_program(trace: types.TracebackType | None) -> types.TracebackType | None:
    ours = False

    def unwanted(file: str) -> bool:
        # An audit sees an operation by calling it once more from Python, so its frame brings one of torch with it.
        nonlocal ours
        ours = is_own(file) or file.startswith("<frozen importlib") or (ours and file.endswith(_OPS))
        return ours

    return without(trace, unwanted)
