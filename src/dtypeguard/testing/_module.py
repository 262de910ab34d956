"""`check_module`: test a model with every dtype and device that a user could pass."""

import contextlib
import copy
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from hypothesis import HealthCheck, Phase, Verbosity, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky, NoSuchExample
from torch import nn

from .._core.base.dtypes import FLOATING, FloatName, HalfName
from .._core.base.errors import AnnotationError
from .._core.base.numbers import Seeded, seed
from .._core.base.options import device_here, explained, several
from .._core.base.options import dtypes as read
from .._core.base.progress import progress
from .._engine.watch.unrecorded import unrecorded
from .._tools.calls import Inputs, aside, call_of, check_fit, check_values, leaf
from ._inputs import inputs_for
from ._matrix import STATUSES, Cell, Failure, ModuleReport, failed
from ._properties import PROPERTIES, Property, judge
from ._trial import Bench, Trial

T = TypeVar("T")
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_REGIONS = (None, torch.float16, torch.bfloat16)
_BACKEND = "aot_eager"
_ALL_CHECKS: Any = list(HealthCheck)  # drawing is as slow as the model, and may be filtered
_OWN = frozenset(["repeatable", "one dtype", "default dtype"])  # properties of a model, whatever guards it
_LESS = 5  # inside autocast a fifth of the inputs is drawn


@explained
@unrecorded
def check_module(
    factory: Callable[[], nn.Module] | nn.Module,
    /,
    batch: Any = None,
    *,
    dtype: torch.dtype | FloatName | Iterable[torch.dtype | FloatName] | None = None,
    device: torch.device | str | Iterable[torch.device | str] | None = None,
    region: torch.dtype | HalfName | Iterable[torch.dtype | HalfName | None] | None = (None, "float16", "bfloat16"),
    compile: bool | str = False,
    axes: Any = None,
    elements: Any = None,
    max_examples: int = 20,
) -> ModuleReport:
    """Test a model with every dtype and device that a user could pass.

    Each combination of parameter dtype, input dtype, autocast region and devices is a cell. In each cell the guarded
    model is compared with the bare one, which has no guard. Without a violation both give the same bits. Lenient mode
    gives the results and gradients of inputs that are cast by hand. Strict mode names the argument. Two properties are
    of the model itself: its results follow the parameters' dtype, and it can be saved and loaded. A trap is a cell in
    which PyTorch computes with a wrong dtype and raises no error.

    Args:
        factory: a callable without arguments that makes the model, such as its class; or a model, which is copied.
        batch: a tensor, a tuple of positional or a dict of keyword arguments, or a callable that returns one of
            these. Default: inputs are drawn from the annotations of its forward.
        dtype: the dtype, or several, of parameters and inputs; default: float32, float64, float16, bfloat16.
        device: the device, or several, of parameters and inputs; default: the CPU, and the GPU if there is one.
        region: the dtype of an autocast region, None for no region, or several of them; default: all three.
        compile: whether to compile too: True for the backend 'aot_eager', or the name of a backend. This calls
            `torch.compiler.reset`.
        axes, elements: as for `inputs_for`, for drawn inputs.
        max_examples: how many inputs are drawn for each cell; a fifth of that inside autocast.

    Returns:
        A report. `print(report)` is the matrix, `report.traps` lists the traps, `report.to_html(path)` writes a page.

    Raises:
        CheckError: if a property does not hold. Its text has the smallest input that shows this, its `report` all.
        ValueError, TypeError: for bad arguments, and if PyTorch cannot compute the batch at all.
        DeviceError: if a tensor of the batch is on meta.
        AnnotationError: if there is no `batch`, and an argument has no annotation.

    >>> import torch
    >>> from dtypeguard.testing import check_module
    >>> report = check_module(lambda: torch.nn.LayerNorm(3), batch=torch.ones(2, 3))
    >>> [str(cell.input_dtype) for cell in report.traps if cell.parameter_dtype is torch.float32 and not cell.region]
    ['torch.float16', 'torch.bfloat16']
    """
    __tracebackhide__ = True
    asked = read("dtype", _DTYPES if dtype is None else dtype, FLOATING)
    regions = read("region", region, _REGIONS)
    places = _places(device)
    backend = _backend(compile)
    if max_examples < 1:
        raise ValueError(f"max_examples={max_examples!r}: draw at least one input")
    if batch is not None and (axes is not None or elements is not None):
        raise ValueError("axes and elements shape drawn inputs: leave them out where there is a batch")
    make = _factory(factory)
    with aside():
        bench = Bench(make, backend)
        source = _Drawn(bench, axes, elements, max_examples) if batch is None else _Given(bench, batch)
        report = ModuleReport(bench.name)
        cells = list(_cells(bench, source.floating, asked, regions, places))
        for cell in progress(f"check_module({bench.name})", cells):
            report.cells.append(cell)
            report.failures += source.examine(cell)
            if any(failure.property == PROPERTIES[0].name for failure in report.failures):
                break  # nothing can be compared
    report.failures = list(_causes(report.failures))
    if report.failures:
        names = [row.name for row in PROPERTIES]
        report.failures.sort(key=lambda failure: names.index(failure.property))
        raise failed(report)
    own = [cell for cell in report.cells if cell.parameter_dtype in (bench.dtype, None)] or report.cells
    if all(cell.status == "unsupported" for cell in own):
        drawn = "what is drawn: give axes= for sizes that the model fixes, elements= for ids, or a batch="
        what = "the batch" if batch is not None else drawn
        raise ValueError(f"{bench.name} raises {own[0].ideal}, so it cannot compute {what}")
    return report


def _causes(failures: list[Failure]) -> Iterator[Failure]:
    """Failures, but those of a model that refuses the dtype that it was converted to: a guard has no part in these."""
    refused = {one.cell.parameter_dtype for one in failures if one.property == "one dtype" and one.cell.ideal}
    for one in failures:
        if one.property in _OWN or one.cell.parameter_dtype not in refused or not one.cell.ideal:
            yield one


def _cells(
    bench: Bench,
    floating: bool,
    asked: tuple[torch.dtype, ...],
    regions: tuple[torch.dtype | None, ...],
    places: tuple[torch.device, ...],
) -> Iterator[Cell]:
    """What there is to try: nothing is wrong with an input that is not floating, nor for a model without parameters."""
    pairs = itertools.product(places, places) if floating and bench.floating else zip(places, places, strict=True)
    inputs: tuple[torch.dtype | None, ...] = asked if floating else (None,)
    as_made = (None,) if bench.dtype is None else ()  # the model as it is made, where that is none of the dtypes
    parameters = (*asked, *as_made) if bench.floating else (None,)
    for (mine, other), dtype, region, kind in itertools.product(pairs, parameters, regions, inputs):
        yield Cell(dtype, kind, region, mine, other)


# ---------------------------------------------------------------- where inputs come from


class _Given:
    """One input, from the caller."""

    def __init__(self, bench: Bench, batch: Any) -> None:
        self._bench = bench
        seed(0)
        with Seeded().on():
            given = batch() if callable(batch) else batch
        args, kwargs = call_of(given, "check_module", more=", or a function that makes one")
        check_fit("check_module", f"{bench.name}.forward", bench.signature, given)
        inputs = Inputs(bench.signature, args, kwargs).map(lambda _, tensor: leaf(tensor))
        check_values("check_module", ((leaf.argument, leaf.tensor) for leaf in inputs.tensors()))
        self._inputs = inputs.fresh()
        self.floating = bool(inputs.floats())

    def examine(self, cell: Cell) -> list[Failure]:
        return _judge_into(cell, Trial(self._bench, cell, self._inputs), PROPERTIES)


class _Drawn:
    """Many inputs, from the annotations; the first failure of a property comes with the smallest that shows it."""

    def __init__(self, bench: Bench, axes: Any, elements: Any, count: int) -> None:
        self._bench, self._options, self._count = bench, {"axes": axes, "elements": elements}, count
        self._shrunk: set[str] = set()
        seen: list[bool] = []
        _each(self._inputs(None, torch.device("cpu")), lambda inputs: seen.append(bool(inputs.floats())), count)
        self.floating = any(seen)

    def examine(self, cell: Cell) -> list[Failure]:
        found: list[Failure] = []
        inputs = self._inputs(cell.input_dtype, cell.parameter_device)

        def judge_all(one: Inputs) -> None:
            if not found:
                rows = [row for row in PROPERTIES if not row.once or cell.status == "unsupported"]
                found.extend(_judge_into(cell, Trial(self._bench, cell, one), rows)[:1])

        def judge_one(one: Inputs) -> list[Failure]:
            return judge(Trial(self._bench, cell, one), [row])

        _each(inputs, judge_all, self._count if cell.region is None else -(-self._count // _LESS))
        if found and found[0].property not in self._shrunk:
            row = next(row for row in PROPERTIES if row.name == found[0].property)
            self._shrunk.add(row.name)
            with contextlib.suppress(NoSuchExample, Flaky):
                smallest = find(inputs, lambda one: bool(judge_one(one)), settings=_settings(self._count))
                found = judge_one(smallest) or found
        return found

    def _inputs(self, dtype: torch.dtype | None, device: torch.device) -> st.SearchStrategy[Inputs]:
        model = self._bench.template(dtype if self._bench.floating else None, device)
        signature = self._bench.signature
        try:
            drawn = inputs_for(model, device=device, **self._options)
        except AnnotationError as error:
            raise AnnotationError(f"{error.args[0]}; or give check_module a batch=") from None
        return drawn.map(lambda bound: Inputs(signature, bound.args, bound.kwargs).map(lambda _, t: leaf(t)))


def _each(inputs: st.SearchStrategy[Inputs], use: Callable[[Inputs], Any], count: int) -> None:
    settings(_settings(count), phases=[Phase.generate])(given(inputs)(use))()


def _settings(count: int) -> settings:
    return settings(
        max_examples=count,
        phases=[Phase.generate, Phase.shrink],
        database=None,
        deadline=None,
        derandomize=True,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=_ALL_CHECKS,
        verbosity=Verbosity.quiet,
    )


def _judge_into(cell: Cell, trial: Trial, rows: Iterable[Property]) -> list[Failure]:
    """Judge a trial and write what came out into its cell; of several trials the worst counts."""
    failures, order = judge(trial, rows), list(STATUSES)
    status = "FAILED" if failures else trial.status
    if not cell.inputs or order.index(status) <= order.index(cell.status):
        cell.status, cell.guard, cell.bare, cell.ideal = status, trial.guard, trial.bare.raised, trial.ideal.raised
        cell.outputs = tuple(dict.fromkeys(trial.bare.outputs().values()))
    cell.trap |= trial.trap
    cell.inputs += 1
    return failures


# ---------------------------------------------------------------- arguments


def _places(asked: Any) -> tuple[torch.device, ...]:
    present = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    asked = present if asked is None else asked
    devices = several("device", asked, torch.device | str, "a device such as 'cpu', or several")
    if not devices:
        raise ValueError(f"device is empty: name at least one of {', '.join(present)}")
    places = dict.fromkeys(map(device_here, devices))
    if any(place.type == "meta" for place in places):
        raise ValueError("device: nothing is computed on meta")
    return tuple(places)


def _backend(compile: Any) -> str | None:
    if isinstance(compile, bool):
        return _BACKEND if compile else None
    known = torch.compiler.list_backends(exclude_tags=()) if isinstance(compile, str) else []
    if compile not in known:
        raise ValueError(f"compile={compile!r} is neither a bool nor a backend: {', '.join(known) or 'True, False'}")
    return str(compile)


def _factory(factory: Any) -> Callable[[], nn.Module]:
    if isinstance(factory, nn.Module):
        try:
            kept = copy.deepcopy(factory)
        except Exception as error:
            name = type(factory).__name__
            raise TypeError(f"factory: this {name} cannot be copied ({error}): pass lambda: {name}(...)") from None
        return lambda: kept
    if not callable(factory):
        raise TypeError(f"factory={factory!r} is not callable: pass the model's class, or lambda: Net(...)")
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        name = getattr(factory, "__qualname__", repr(factory))
        raise TypeError(f"factory: {name}() does not work ({error}): pass lambda: {name}(...)") from None
    except ValueError:  # a callable that has no signature
        pass
    return factory  # type: ignore[no-any-return]  # what it gives is looked at when it is called
