"""The table of properties that `check_module` holds a model to.

Each row says what should be so, where it applies, where the rule is written, and how to find what breaks it.
"""

import copy
import io
import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from .._core.base.codes import DOCS
from .._core.base.config import Verify
from .._core.base.dtypes import FLOATING, HALF, name_of
from .._core.base.errors import CastWarning, DeviceError, DtypeError, DtypeGuardError, InplaceOnCastWarning, summary
from .._core.doors.guard import is_held
from .._tools.audit import audit
from .._tools.calls import Outcome, difference, run
from ._births import WRITE, birth, birth_inside, birth_of_result, mixtures
from ._default import as_default
from ._matrix import Failure
from ._trial import Trial, moved

_ALONE = 8  # of many wrong arguments so many are tried one by one
_SKIPPED = "an annotation that lets everything pass, or code that changes arguments before forward gets them"


class Fault(NamedTuple):
    """What breaks a property: in one line, what came out, what should have, and what to look at."""

    message: str
    got: str
    expected: str
    fix: str


@dataclass(frozen=True, eq=False)
class Property:
    """One row of the table; `docs` has the rule; with `once` a cell asks it of its first input only."""

    name: str
    text: str
    applies: Callable[[Trial], bool]
    faults: Callable[[Trial], Iterator[Fault]]
    docs: str
    once: bool = False


def judge(trial: Trial, rows: Iterable[Property]) -> list[Failure]:
    """The properties that do not hold; of a model that is not repeatable nothing else can be said."""
    found = []
    for row in rows:
        fault = next(row.faults(trial), None) if row.applies(trial) else None
        if fault is not None:
            random = next(repeatable(trial), None)
            if random is not None:
                return [_failure(PROPERTIES[0], trial, random)]
            found.append(_failure(row, *_smallest(row, trial, fault)))
    return found


def _smallest(row: Property, trial: Trial, fault: Fault) -> tuple[Trial, Fault]:
    """The same failure with one wrong argument, if one is enough."""
    if trial.only is None and len(trial.wrong) > 1:
        for path in itertools.islice(trial.wrong, _ALONE):
            alone = trial.alone(path)
            found = next(row.faults(alone), None) if row.applies(alone) else None
            if found is not None:
                return alone, found
    return trial, fault


def _failure(row: Property, trial: Trial, fault: Fault) -> Failure:
    wrong = [f"{leaf.path} = {summary(leaf.tensor)}" for leaf in trial.given.floats() if leaf.path in trial.wrong]
    shown = ", ".join(wrong) or str(trial.given)
    facts = fault.message, shown, fault.expected, fault.got, fault.fix
    return Failure(row.name, row.text, trial.cell, *facts, f"{DOCS}/{row.docs}")


def _outside_autocast(trial: Trial) -> bool:
    return trial.cell.region is None


def _all_dtypes_match(trial: Trial) -> bool:
    return _outside_autocast(trial) and trial.matched


def _some_wrong(trial: Trial) -> bool:
    return _outside_autocast(trial) and bool(trial.wrong)


def _nothing_wrong(trial: Trial) -> bool:
    return not trial.wrong and (trial.matched or not trial.mixed)


# ---------------------------------------------------------------- what a guard does


def repeatable(trial: Trial) -> Iterator[Fault]:
    pairs = [(trial.bare, trial.call())]
    if _outside_autocast(trial):
        pairs.append((trial.call(grads=True), trial.call(grads=True)))
    for one, other in pairs:
        found = difference(other, one)
        if found is not None:
            yield Fault(
                "two calls with the same weights, inputs and seed give different results, so nothing can be compared",
                f"the second time: {found[0]}",
                f"as the first time: {found[1]}",
                "random numbers that torch.manual_seed, random.seed and numpy.random.seed do not reach (os.urandom, a "
                "torch.Generator of the model's own), time, uninitialized memory (torch.empty), a global or a class "
                "attribute that remembers earlier calls",
            )


def unchanged(trial: Trial) -> Iterator[Fault]:
    for outcome, mode in ((trial.strict, "strict"), (trial.lenient, "lenient")):
        found = difference(outcome, trial.bare)
        text = f"a call with nothing to repair is not the same under a guard in {mode} mode"
        if found is not None:
            fix = "code that looks at type(self), or at what called it"
            if _is_our_error(outcome):
                fix = birth_inside(trial) or "an annotation that the call breaks, or a contract inside the model"
            yield Fault(text, *found, fix)
        if outcome.wrote != trial.bare.wrote:
            got, expected = (", ".join(one.wrote) or "nothing" for one in (outcome, trial.bare))
            yield Fault(f"{text}: other inputs are changed in place", got, expected, "a contract inside the model")
        if outcome.casts or outcome.said:
            casts = [f"`{cast.argument}` of {cast.function} is cast" for cast in outcome.casts]
            said = [f"{type(warning).__name__}: {warning}" for warning in outcome.said]
            yield Fault(text, (casts + said)[0], "no repair and no warning", "a contract inside the model")


def _is_our_error(outcome: Outcome) -> bool:
    return isinstance(outcome.error, DtypeGuardError)


def repaired(trial: Trial) -> Iterator[Fault]:
    outcome = trial.lenient
    names = ", ".join(f"`{path}`" for path in trial.wrong)
    if _is_our_error(outcome):
        if not trial.loses and not trial.forbidden:
            yield Fault(
                f"lenient mode refuses {names}, though no value is lost",
                str(outcome.raised),
                f"a repair: {_by_hand(trial)}",
                birth_of_result(trial, outcome) or "an annotation that asks for another dtype than the parameters have",
            )
        return
    if trial.loses and trial.bench.contract.verify is not Verify.NEVER:
        yield Fault(
            f"lenient mode loses values of {names}: finite ones become infinite, or whole ones other numbers",
            outcome.raised or "it computes",
            "CastError",
            'guard(verify="first")',
        )
        return
    found = difference(outcome, trial.by_hand)
    if found is not None:
        expected = f"{found[1]}, as the bare model gives for {_by_hand(trial)}"
        fix = birth_of_result(trial, outcome)
        fix = fix or "what sees the input before forward does (a forward pre-hook, `__call__`), or keeps it elsewhere"
        yield Fault(f"lenient mode does not repair {names}", found[0], expected, fix)
    elif difference(trial.bare, trial.by_hand) is not None and trial.by_hand.error is None:
        stray = [cast.argument for cast in outcome.casts if cast.argument not in trial.wrong]
        silent = not any(isinstance(warning, CastWarning) for warning in outcome.said)
        if stray or silent or not outcome.casts:
            got = f"a repair of `{stray[0]}`" if stray else "no CastWarning" if outcome.casts else "nothing"
            yield Fault(f"a repair of {names} is not told", got, "a CastWarning and an entry in casts()", _SKIPPED)


def _by_hand(trial: Trial) -> str:
    texts = []
    for leaf in trial.given.floats():
        if leaf.path in trial.wrong:
            right = trial.wrong[leaf.path].tensor
            target = repr(right.dtype) if leaf.tensor.dtype is not right.dtype else repr(str(right.device))
            texts.append(f"{leaf.path}.to({target})")
    return ", ".join(texts[:3]) + (", ..." if len(texts) > 3 else "")


def argument_named(trial: Trial) -> Iterator[Fault]:
    several = list(trial.wrong) if len(trial.wrong) > 1 else []
    for one in (trial, *(trial.alone(path) for path in several[:_ALONE])):
        error = one.strict.error
        tells = isinstance(error, DtypeError | DeviceError) and error.argument in one.wrong
        if one.wrong and not tells and not _casts_before(one):
            names = " or ".join(f"`{path}`" for path in one.wrong)
            got = one.strict.raised or "it computes"
            if isinstance(error, DtypeGuardError):
                got = f"{type(error).__name__} that names `{error.argument}`"
            expected = f"DtypeError or DeviceError that names {names}"
            yield Fault(f"strict mode does not name {names}", got, expected, _SKIPPED)


def _casts_before(trial: Trial) -> bool:
    """Whether the model itself casts on the way to forward, where no guard is."""
    return all(difference(outcome, trial.by_hand) is None for outcome in (trial.bare, trial.strict))


def autocast(trial: Trial) -> Iterator[Fault]:
    if not trial.wrong and trial.bare.error is not None:
        return iter(())  # what PyTorch refuses inside of the model a guard may repair
    checks = (repaired, argument_named) if trial.wrong else (unchanged,)
    return itertools.chain.from_iterable(check(trial) for check in checks)


def inputs_untouched(trial: Trial) -> Iterator[Fault]:
    wrote = [f"`{path}`" for path in trial.by_hand.wrote if path in trial.wrong]
    if wrote:
        said = any(isinstance(warning, InplaceOnCastWarning) for warning in trial.lenient.said)
        yield Fault(
            f"forward writes to {wrote[0]}, so a repaired call is another program: the caller's tensor does not change",
            "InplaceOnCastWarning" if said else "nothing is said",
            "an input that is left alone",
            "an in-place operation on an argument (x += ..., x.relu_(), nn.ReLU(inplace=True)): write to a copy, "
            "or name the argument in enforce(mutates=...), so that it is never cast",
        )


def gradients(trial: Trial) -> Iterator[Fault]:
    expected, got = trial.call(cast_by_hand=trial.wrong, grads=True), trial.call("lenient", grads=True)
    if expected.error is not None or (_is_our_error(got) and (trial.loses or trial.forbidden)):
        return
    found = difference(got, expected)
    if found is not None:
        fix = birth_of_result(trial, got) or "a custom autograd Function or a hook"
        yield Fault("gradients are not those of the bare model", *found, fix)
        return
    owners = {leaf.path: leaf.tensor for leaf in trial.given.floats()}
    owners |= dict(trial.fresh().named_parameters())
    for name, grad in got.grads.items():
        if grad is not None and grad.dtype is not owners[name].dtype:
            want = name_of(owners[name].dtype)
            yield Fault(f"the gradient of `{name}` has another dtype", name_of(grad.dtype), want, "a custom Function")


# ---------------------------------------------------------------- what the model does


def stable(trial: Trial) -> Iterator[Fault]:
    own, mine = trial.cell.parameter_dtype, trial.bare.outputs()
    odd = [path for path, dtype in mine.items() if _real(dtype) is not own]
    if own is None or not odd:
        return
    cells = [replace(trial.cell, parameter_dtype=dtype, input_dtype=dtype) for dtype in sorted(FLOATING, key=name_of)]
    outputs = {c.parameter_dtype: Trial(trial.bench, c, trial.inputs).bare.outputs() for c in cells}
    for path in odd:
        found = {dtype: _real(known[path]) for dtype, known in outputs.items() if dtype and path in known}
        if len(set(found.values())) < 2:  # a loss in float32, whatever the model is
            yield from _creep(trial, path, own, found.get(own))
            continue
        born = all(result is torch.promote_types(dtype, torch.float32) for dtype, result in found.items())
        if born and path in trial.bare.numbers():  # a loss that is always at least float32
            continue
        rows = ", ".join(f"{name_of(dtype)} gives {name_of(result)}" for dtype, result in found.items())
        yield Fault(
            f"`{path}` is {name_of(mine[path])} where parameters and input are {name_of(own)}",
            rows,
            "the dtype of the parameters, or always the same",
            birth(trial) if born else "a branch on the dtype of the input",
        )


def _creep(trial: Trial, path: str, own: torch.dtype, dtype: torch.dtype | None) -> Iterator[Fault]:
    """A result that is always float64, though nobody asked for it."""
    if dtype is torch.float64:
        for finding, other, born in mixtures(trial):
            if finding.rule == "DG101" and finding.severity != "info":
                yield Fault(
                    f"`{path}` is float64 where parameters and input are {name_of(own)}",
                    f"{other} meets {name_of(own)} at {finding.site}", f"{name_of(own)}, or a cast that says so",
                    f"{born}. {WRITE}",
                )  # fmt: skip
                return


def _real(dtype: torch.dtype) -> torch.dtype:
    return dtype.to_real() if dtype.is_complex else dtype


def one_dtype(trial: Trial) -> Iterator[Fault]:
    """What PyTorch has no kernel for is not the model's fault; a tensor of another dtype beside its own is."""
    for finding, other, born in mixtures(trial):
        if "was refused" in finding.message:
            yield Fault(
                f"in {name_of(trial.anchor_dtype)} the model does not compute: it brings {other} of its own",
                f"{trial.bare.raised}, at {finding.site}",
                f"results in {name_of(trial.anchor_dtype)}",
                f"{born}. {WRITE}",
            )


def values_right_in_half(trial: Trial) -> Iterator[Fault]:
    """What float32 spoils as well is not the dtype's fault."""
    model = trial.fresh()
    with audit(select=("DG9",), ignore=(), values=True) as report:
        trial.call(model=model)
    for finding in report.findings:
        if finding.severity != "info" and (finding.rule != "DG901" or " where float32 has " in finding.message):
            yield Fault(
                f"in {name_of(trial.anchor_dtype)} values come out that are wrong: {finding.rule}, at {finding.site}",
                finding.message,
                "what float32 gives, but for rounding",
                finding.fix,
            )


def default_dtype(trial: Trial) -> Iterator[Fault]:
    before = torch.get_default_dtype()
    other = torch.float64 if before is not torch.float64 else torch.float32
    then = trial.bare.outputs()
    with as_default(other):
        outcome = trial.call()
        now = outcome.outputs()
        odd = [path for path in then if now.get(path, then[path]) is not then[path]]  # random layers may be skipped
        born = birth(trial) if odd else WRITE
    if odd or (outcome.error is None) is not (trial.bare.error is None):
        text = f"what comes out depends on torch.get_default_dtype(): it was set to {name_of(other)}"
        got = outcome.raised or _dtypes(odd, now)
        expected = f"{trial.bare.raised or _dtypes(odd or then, then)}, as under {name_of(before)}"
        yield Fault(text, got, expected, born)


def _dtypes(paths: Iterable[str], outputs: dict[str, torch.dtype]) -> str:
    return ", ".join(f"{path} is {name_of(outputs[path])}" for path in paths) or "nothing floating"


def refuses_meta(trial: Trial) -> Iterator[Fault]:
    first = next(leaf.path for leaf in trial.right.floats() if leaf.argument not in trial.bench.contract.skip_args)
    inputs = trial.right.map(lambda path, t: moved(t, None, torch.device("meta")) if path == first else t)
    for mode in ("strict", "lenient"):
        outcome = run(trial.fresh(mode), inputs, mode)
        if not _is_our_error(outcome) or getattr(outcome.error, "argument", None) != first:
            text = f"{mode} mode does not name `{first}`, which is on meta and has no data"
            yield Fault(text, outcome.raised or "it computes", f"an error that names `{first}`", _SKIPPED)


def _has_a_device(trial: Trial) -> bool:
    skipped = trial.bench.contract.skip_args
    there = any(leaf.argument not in skipped for leaf in trial.right.floats())
    return _all_dtypes_match(trial) and there and trial.anchor is not None and trial.anchor.device is not None


def state(trial: Trial) -> Iterator[Fault]:
    """Keys, a file and back, a state of another dtype, a copy, a pickle."""
    bare, guarded = trial.fresh(), trial.fresh("strict")
    mine, theirs = list(guarded.state_dict()), list(bare.state_dict())
    if mine != theirs:
        yield Fault("a guard changes the keys of the state_dict", str(mine), str(theirs), "state_dict hooks")
        return
    for text, way in _WAYS.items():
        try:
            twin = way(trial, trial.fresh())
        except Exception:  # not even without a guard: what the model holds cannot be saved
            continue
        expected = trial.call(model=twin)
        found = difference(expected, trial.bare)
        if found is not None:
            fix = "numbers that are no parameter and no buffer: register_buffer"
            yield Fault(f"the model is another after {text}", *found, fix)
            return
        try:
            model = way(trial, trial.fresh("strict"))
        except Exception as error:
            got = f"{type(error).__name__}: {error}"
            yield Fault(f"{text} fails under a guard", got, "what it does without", "`__reduce__` and `__deepcopy__`")
            return
        outcome = trial.call("strict", model=model)
        found = difference(outcome, expected)
        if found is not None or not is_held(model):
            facts = found or ("a model without a guard", "a guarded model")
            fix = birth_of_result(trial, outcome) or "`__reduce__` and `__deepcopy__`"
            yield Fault(f"{text} loses the guard", *facts, fix)
    yield from _kept_dtypes(trial, guarded)


def _loaded(trial: Trial, model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    fresh = trial.bench.anew(trial.cell.parameter_dtype, trial.cell.parameter_device)
    twin = trial.bench.guard(fresh, "strict") if is_held(model) else fresh
    twin.load_state_dict(torch.load(file, weights_only=True))
    return twin


_WAYS: dict[str, Callable[[Trial, nn.Module], nn.Module]] = {
    "load_state_dict into a new model": _loaded,
    "copy.deepcopy": lambda _, model: copy.deepcopy(model),
    "pickle": lambda _, model: pickle.loads(pickle.dumps(model)),
}


def _kept_dtypes(trial: Trial, model: nn.Module) -> Iterator[Fault]:
    before = {name: p.dtype for name, p in model.named_parameters()}
    other = torch.float64 if trial.cell.parameter_dtype is not torch.float64 else torch.float32
    state: dict[str, Any] = model.state_dict()
    try:
        model.load_state_dict({name: _as(value, other) for name, value in state.items()})
    except Exception:  # extra state of its own
        return
    for name, parameter in model.named_parameters():
        if parameter.dtype is not before[name]:
            text = f"loading a {name_of(other)} state changes the dtype of `{name}`"
            yield Fault(text, name_of(parameter.dtype), name_of(before[name]), "a `_load_from_state_dict` that assigns")


def _as(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def compiled(trial: Trial) -> Iterator[Fault]:
    for whole in (True, False):
        expected = trial.call(model=trial.bench.compiled(trial.fresh(), whole), cast_by_hand=trial.wrong, compiled=True)
        if expected.error is None:
            break
    else:  # the bare model does not compile, or does not compute
        return
    outcome = trial.call("lenient", model=trial.bench.compiled(trial.fresh("lenient"), whole), compiled=True)
    found = difference(outcome, expected)
    if found is not None:
        how = f"torch.compile(backend={trial.bench.compiler!r}, fullgraph={whole})"
        yield Fault(f"{how} of the guarded model is not that of the bare one", *found, "torch._dynamo.explain")


PROPERTIES: tuple[Property, ...] = (
    Property("repeatable", "the same call gives the same result twice",
             _all_dtypes_match, repeatable, "testing.md#what-is-tested", True),
    Property("matched", "where nothing is wrong, a guarded model is the bare one, bit for bit, and says nothing",
             lambda trial: _outside_autocast(trial) and _nothing_wrong(trial), unchanged, "testing.md#what-is-tested"),
    Property("lenient repairs", "lenient mode gives what inputs cast by hand give, and says so",
             _some_wrong, repaired, "semantics.md#casting"),
    Property("strict names the argument", "strict mode names an argument that is wrong",
             _some_wrong, argument_named, "semantics.md#modes"),
    Property("autocast", "inside autocast what autocast casts itself passes, and float64 is repaired",
             lambda trial: not _outside_autocast(trial) and (bool(trial.wrong) or _nothing_wrong(trial)),
             autocast, "semantics.md#autocast"),
    Property("inputs are left alone", "forward does not write to an input that is repaired",
             _some_wrong, inputs_untouched, "semantics.md#in-place-changes"),
    Property("gradients", "gradients come back in the caller's dtype, as those of the bare model",
             lambda trial: _some_wrong(trial) or _all_dtypes_match(trial), gradients, "semantics.md#casting"),
    Property("output dtype is stable", "every floating result follows the parameters' dtype, or is always of the same",
             _all_dtypes_match, stable, "testing.md#when-it-fails"),
    Property("one dtype", "converted to a dtype, a model computes inputs of that dtype: it brings no other of its own",
             lambda trial: _all_dtypes_match(trial) and trial.bare.error is not None,
             one_dtype, "testing.md#when-it-fails", True),
    Property("half", "in a half dtype the results are those of float32, but for rounding",
             lambda trial: _all_dtypes_match(trial) and trial.anchor_dtype in HALF and trial.bare.error is None,
             values_right_in_half, "testing.md#when-it-fails", True),
    Property("default dtype", "the dtypes that come out do not depend on torch.get_default_dtype()",
             _all_dtypes_match, default_dtype, "testing.md#when-it-fails", True),
    Property("meta", "an input on meta is refused by name",
             _has_a_device, refuses_meta, "semantics.md#what-a-tensor-must-be", True),
    Property("state", "state_dict, deepcopy and pickle go there and back as without a guard",
             _all_dtypes_match, state, "testing.md#what-is-tested", True),
    Property("compile", "the compiled guarded model is the compiled bare one, bit for bit",
             lambda trial: trial.bench.compiler is not None and (_some_wrong(trial) or _all_dtypes_match(trial)),
             compiled, "wild.md", True),
)  # fmt: skip
