"""`audit`: begin and end."""

import contextlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, ParamSpec, TypeVar, overload

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from ..._core.base import errors as _errors
from ..._core.base.options import indefinite, kind_of, misspelt
from ..._core.base.patches import to_the_end
from ..._core.base.progress import task
from ..._engine.values.engine import RANGE, Values
from ..._engine.watch import exports, models, program
from ..._engine.watch.findings import Findings
from ..._engine.watch.mode import Watching
from ..._engine.watch.recorder import Recorder
from ..._engine.watch.rule import rule_modules
from ..._engine.watch.selection import Selection
from ..._engine.watch.steps import POWERS, Steps
from ..._show.report.edits import Edit
from ..._show.report.report import AuditReport
from ..calls import call_of

P = ParamSpec("P")
_NAMES = ("model", "optimizer", "scaler")
_OPTIONS = {"select": None, "ignore": (), "values": None, "every": None, "source": None, "omit": None}
T = TypeVar("T")
# What these and the rules listen to is registered when they are imported.
ENGINE = (exports, models, program)
rule_modules()


class Audit:
    """The context manager of `with dtypeguard.audit() as report`. It can be entered once."""

    def __init__(self, recorder: Recorder, models: Iterable[nn.Module]) -> None:
        self._recorder, self._models = recorder, list(models)  # until it ends
        self._report: AuditReport[Any] = AuditReport(recorder, _edits)
        self._used = False
        self._count: Steps | None = None  # that ends the program
        self._task = contextlib.ExitStack()  # that tells how far it is

    def __repr__(self) -> str:
        how = "is used already" if self._used else "has not run: use it in `with`, or pass a batch"
        return f"<audit that {how}>"

    def __getattr__(self, name: str) -> Any:
        if name[:1] != "_" and (name in dir(AuditReport) or name in vars(self._report)):
            says = "`with dtypeguard.audit() as report:`, or pass a batch: `report = dtypeguard.audit(model, batch)`"
            raise AttributeError(f"an audit has no {name}, its report has: write {says}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def report(self) -> AuditReport[Any]:
        return self._report

    def _end_after(self, steps: int) -> None:
        """End the program after so many steps of its optimizers."""
        self._count = Steps(self._recorder, 1)
        self._count.last = steps

    def __enter__(self) -> AuditReport[None]:
        if self._used:
            raise ValueError("this audit was used already: begin another with dtypeguard.audit(...)")
        self._used = True
        for model in self._models:
            self._recorder.register_paths(model)
        try:
            self._recorder.start()
            if self._count is not None:
                self._count.begin()
            if self._recorder.values is not None:  # which takes its time
                self._task.enter_context(task("audit", alone=False))
            _errors.origins.append(self._recorder.origin_for_error)
        except BaseException:
            to_the_end(self._recorder.put_back, self._leave)
            raise
        return self._report

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        try:
            self._recorder.stop(error)
        finally:
            try:
                to_the_end(self._recorder.put_back, self._leave)
            finally:
                self._report._close(error)
                self._models.clear()
                del self._recorder
        return False

    def _leave(self) -> None:
        if self._recorder.origin_for_error in _errors.origins:
            _errors.origins.remove(self._recorder.origin_for_error)
        self._task.close()


def _edits(report: AuditReport) -> list[Edit]:
    """Edits for a report; libcst is loaded when they are asked for."""
    try:
        from ..fix.edits import unproven
    except ModuleNotFoundError as error:
        if error.name != "libcst":
            raise
        raise ImportError("edits need libcst: pip install 'dtypeguard[fix]'") from error
    return unproven(report)


@overload
def audit(
    model: nn.Module,
    /,
    batch: Tensor,  # before the form below: a Tensor is an Iterable of anything
    *,
    select: Iterable[str] | str | None = None,
    ignore: Iterable[str] | str = (),
    values: bool | Literal["range"] | None = None,
    every: Literal["2^k"] | int | None = None,
    source: Iterable[str] | str | None = None,
    omit: Iterable[str] | str | None = None,
) -> AuditReport[Any]: ...


@overload
def audit(
    model: nn.Module | Iterable[nn.Module] | None = None,
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    scaler: GradScaler | None = None,
    *,
    select: Iterable[str] | str | None = None,
    ignore: Iterable[str] | str = (),
    values: bool | Literal["range"] | None = None,
    every: Literal["2^k"] | int | None = None,
    source: Iterable[str] | str | None = None,
    omit: Iterable[str] | str | None = None,
) -> Audit: ...


@overload
def audit(
    model: nn.Module,
    /,
    batch: tuple[Any, ...] | Mapping[str, Any],
    *,
    select: Iterable[str] | str | None = None,
    ignore: Iterable[str] | str = (),
    values: bool | Literal["range"] | None = None,
    every: Literal["2^k"] | int | None = None,
    source: Iterable[str] | str | None = None,
    omit: Iterable[str] | str | None = None,
) -> AuditReport[Any]: ...


@overload
def audit(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> AuditReport[T]: ...


def audit(*args: Any, **kwargs: Any) -> Any:
    """Record a program and find its dtype mistakes, with the line of each.

    `with audit() as report:` records a block, `audit(function, *args, **kwargs)` records a call, and so does
    `audit(model, batch)`, with a batch as `compare` and `dryrun` take it. An audit sees every
    operation of its thread and of threads that start during it, forward and backward. It does not change what the
    program computes, and leaves nothing installed in torch. Compiled functions run eagerly during an audit.

    Args:
        function: the function to call. All other arguments are passed to it, also one that is called `select`.
        batch: a tensor, a tuple of positional or a dict of keyword arguments: the model is called with it.
        model: the model, or several, for their names in messages. Other modules are named after their class.
        optimizer: the optimizer, or several, if they were made before the audit.
        scaler: the GradScaler, if it was made before the audit.
        select: the rules to use, by id, name or family (`DG1`); default: `[tool.dtypeguard]` of pyproject.toml, else
            all.
        ignore: the rules to leave out. The comment `# dtypeguard: ignore[DG103]` leaves one out at its line.
        every: which steps are looked at, with `values=`; in the others the audit sees calls of modules and optimizers,
            and no operations, so they cost next to nothing. "2^k": 1, 2, 4, 8 ...; 100: 1, 101, 201 ...; default: all.
            A step ends with `optimizer.step()`; where there is no optimizer, each call of the outermost module is one.
        values: whether the audit looks at what a dtype does to values. True: each operation runs once more in a wider
            dtype, and where results are wrong the line that spoilt them is found (DG9); a step takes two to five times
            as long, or ten where operations are tiny, and each tensor that is alive up to three times its memory.
            "range": only values that are not finite and the line where they were born; a step takes about 1.3 times as
            long.
        source: folders, files and packages whose lines are reported. What is found in other code, as that of an
            installed package, is reported at the line of yours that led there, and left out where none did. Default:
            `[tool.dtypeguard]` of pyproject.toml, else every line.
        omit: globs of files whose lines are not reported. `omit` alone means: all lines outside of
            installed packages but these.

    Returns:
        The report; of `audit()` for a block, a context manager that gives the report.

    Raises:
        TypeError, ValueError: for an unknown rule, argument or kind of `values`, or a broken pyproject.toml, before the
            program runs.
        Exceptions of the program: they pass through. An audit of a function or a model adds a note with the findings.

    The rules: https://github.com/dtypeguard/dtypeguard/blob/main/docs/rules/index.md

    >>> import torch, dtypeguard
    >>> def program():
    ...     x = torch.ones(3)
    ...     x.to(torch.bfloat16)
    ...     return x
    >>> report = dtypeguard.audit(program)
    >>> [finding.rule for finding in report.findings]
    ['DG103']
    >>> report.findings[0].message
    '`x.to(torch.bfloat16)` gives a new bfloat16 tensor, and it is thrown away: `x` stays float32'
    """
    if args and callable(args[0]) and not isinstance(args[0], nn.Module):
        return _call(args[0], args[1:], kwargs, _recorder())
    options = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
    recorder = _recorder(**options)
    if "batch" in kwargs and len(args) == 1:
        args = (*args, kwargs.pop("batch"))
    if len(args) == 2 and args[1] is None:
        raise TypeError(
            "audit: the batch is None: does the function that makes it lack its `return`? To audit a block, leave None "
            "out: `with audit(model):`"
        )
    if len(args) == 1 and args[0] is None:
        raise TypeError(
            "audit: the first value is None: pass the function to call, or a model; to audit a block, leave it out: "
            "`with audit():`"
        )
    if len(args) == 2 and isinstance(args[0], nn.Module) and _is_batch(args[1]) and not kwargs:
        return _call(args[0], *call_of(args[1], "audit"), recorder, args[:1])
    if len(args) == 2 and isinstance(args[1], list) and any(map(_is_batch, args[1])):
        raise TypeError(
            "audit: `batch` is of type list: pass one batch, which is a tensor, a tuple of arguments or a dict of "
            "keyword arguments"
        )
    names = _NAMES
    unknown = [name for name in kwargs if name not in names]
    if len(args) > len(names) or unknown:
        known = (*names, *_OPTIONS)
        if unknown:
            raise TypeError(f"audit: {misspelt(unknown[0], known)}")
        raise TypeError(f"audit takes {', '.join(known)}, not {args[3:]}")
    twice = [name for name in names[: len(args)] if name in kwargs]
    if twice:
        raise TypeError(f"audit got {', '.join(twice)} twice")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    kinds = (nn.Module, Optimizer, GradScaler)
    several = {name: _several(given.get(name), kind, name) for name, kind in zip(names, kinds, strict=True)}
    recorder.optimizers, recorder.scalers = several["optimizer"], several["scaler"]
    return Audit(recorder, several["model"])


# What `help` shows: the form for a block, which names all options.
audit.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        *(inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None) for n in _NAMES),
        *(inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=d) for n, d in _OPTIONS.items()),
    ]
)


def _recorder(
    select: Any = None, ignore: Any = (), values: Any = None, every: Any = None, source: Any = None, omit: Any = None
) -> Recorder:
    recorder = Recorder(Findings(Selection.read(select, ignore, source=source, omit=omit)), Watching)
    kind = values.lower() if isinstance(values, str) else values
    if not (kind is None or isinstance(kind, bool) or kind == RANGE):
        raise ValueError(
            f"audit takes values=True (each operation runs once more in a wider dtype), values={RANGE!r} (only values "
            f"that are not finite) or values=None (the default), not values={values!r}"
        )
    if kind:
        recorder.values = Values(recorder, kind)
    if every is not None:
        if every != POWERS and not (isinstance(every, int) and not isinstance(every, bool) and every > 0):
            raise ValueError(
                f"audit takes every={POWERS!r} (steps 1, 2, 4, 8 ... are looked at), a number of steps, or None (all), "
                f"not every={every!r}"
            )
        if not kind:
            raise ValueError(f"audit(every={every!r}) says at which steps values are looked at: pass values=True too")
        recorder.steps = Steps(recorder, every)
    return recorder


def _call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], recorder: Recorder,
    models: Iterable[nn.Module] = (),
) -> AuditReport:  # fmt: skip
    watch = Audit(recorder, models)
    report = watch.report
    try:
        with watch:
            report.result = function(*args, **kwargs)
    except Exception as error:
        ended = error.__traceback__
        if isinstance(error, TypeError) and not args and ended is not None and ended.tb_next is None:
            way = "dtypeguard.audit(function, x) calls the function; `with dtypeguard.audit():` audits a block"
            error.add_note(way)
        if report.findings:
            error.add_note(f"dtypeguard.audit found:\n{report.findings}")
        raise
    return report


def _is_batch(value: Any) -> bool:
    """Whether a model can be called with it; several optimizers are none."""
    optimizers = isinstance(value, tuple) and any(isinstance(_bare(one), Optimizer) for one in value)
    return isinstance(value, Tensor | tuple | Mapping) and not optimizers


def _several(what: Any, kind: type[Any], name: str) -> list[Any]:
    if what is None:
        return []
    several = list(what) if isinstance(what, Iterable) and not isinstance(what, kind) else [what]
    several = [_bare(one) for one in several]
    for one in several:
        if not isinstance(one, kind):
            hint = "" if name == "model" else "; to audit a call of a model: audit(model, batch)"
            what = "an nn.Module" if kind is nn.Module else indefinite(kind.__name__)
            raise TypeError(f"audit takes {what} as {name}, or several, not {kind_of(one)}{hint}")
    return several


def _bare(what: Any) -> Any:
    """The optimizer in the wrapper of a framework."""
    inner = getattr(what, "optimizer", None)
    return inner if isinstance(inner, Optimizer) else what
