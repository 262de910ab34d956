"""One cell of a dry run: the twin is called bare and, if that is refused, with a guard around it."""

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch

from ..._core.base.config import ModeName
from ..._core.base.dtypes import dtype_title, name_of
from ..._core.base.frames import let_go
from ..._core.base.numbers import seed
from ..._core.doors.guard import guard
from ..._core.repair.records import casts, reset_casts
from ..._engine.watch.findings import Findings
from ..._engine.watch.lineage import Node
from ..._engine.watch.mode import Watching
from ..._engine.watch.recorder import Recorder
from ..._engine.watch.rule import Finding
from ..._engine.watch.selection import Selection
from ..._engine.watch.sites import here, raised_at
from ..._rules._refusals import explaining
from ..._show.result import Result
from ..audit.audit import Audit
from ..calls import Inputs, autocast, converted, flat, under
from .ghosts import Ghosts, unread
from .mode import Imagining, birth
from .paths import Decisions, Unknown, paths, raised_by_python
from .twin import Original, attributes_of, inputs_of

Dtypes = tuple[torch.dtype, ...]

# A tensor that `.to()` does not reach: how a refusal names it, by its path, and what mends it, by its name.
_ATTRIBUTE = "attribute `%s`, no buffer"
_REGISTER = 'make `{0}` a buffer, which `.to()` reaches: `self.register_buffer("{0}", ...)`'

Status = Literal["runs", "repaired", "refused", "unknown"]


@dataclass(eq=False)
class DryrunCell(Result):
    """What a model does in one combination of dtypes.

    Attributes:
        parameters: the dtype that the model was converted to; None: as it is.
        inputs: the dtype of all floating inputs; None if there are none.
        region: the dtype of the autocast region, or None.
        status: 'runs', 'repaired' (bare PyTorch refuses, a guard in lenient mode would cast), 'refused' or 'unknown'.
        outputs: the dtypes of the tensors that come out, in order; of a guarded model where it is 'repaired'.
        error: what PyTorch raises, with the line; where it is 'refused', what it raises behind a guard, if that is
            something else; where it is 'unknown', why. None if it runs.
        finding: the refusal as `audit` reports it, with the operands and the lines that their dtypes come from.
        repairs: what a guard would cast, where it is 'repaired'.
        modules: by path, the floating dtypes of what the operations of the module itself give.
        births: where floating dtypes are born inside that the parameters do not have: the line, and the dtype.
        title (str): the combination of dtypes, as text.
    """

    kind: ClassVar[str] = "dryrun cell"

    parameters: torch.dtype | None
    inputs: torch.dtype | None
    region: torch.dtype | None
    status: Status = "unknown"
    outputs: Dtypes = ()
    error: str | None = None
    finding: Finding | None = None
    repairs: tuple[str, ...] = ()
    modules: dict[str, Dtypes] = field(default_factory=dict)
    births: tuple[str, ...] = ()

    def __str__(self) -> str:
        came = ", ".join(map(name_of, self.outputs))
        parts = [f"{self.title}: {self.status}{came and f', outputs {came}'}"]
        parts += [f"  {line}" for line in (self.error or "").splitlines()]
        parts += [f"  a guard casts {text}" for text in self.repairs]
        return "\n".join(parts)

    @property
    def title(self) -> str:
        """The combination of dtypes, as text."""
        region = "no autocast" if self.region is None else f"autocast {name_of(self.region)}"
        return f"parameters {dtype_title(self.parameters)}, inputs {dtype_title(self.inputs)}, {region}"

    def _data(self) -> dict[str, Any]:
        return vars(self)

    def _heading(self) -> str:
        return self.title

    def _cell(self) -> tuple[Any, ...]:
        from .page import parts_of_cell

        return parts_of_cell(self)


@dataclass(eq=False)
class Outcome:
    """What one run of a twin came to."""

    cell: DryrunCell  # without a status
    error: Exception | None = None
    own: bool = False  # whether the program itself raised its exception, for values or sizes that it does not want


class Runner:
    """Runs the cells of one model with one example."""

    def __init__(self, original: Original, inputs: Inputs, device: torch.device) -> None:
        self._original, self._inputs, self._device = original, inputs, device
        self._rules = Selection(explaining())  # it reads a file once for all that it is asked

    def fill(self, cell: DryrunCell) -> Exception | None:
        """Run a cell, and write down what comes of it; gives the exception, if it is not about dtypes or devices."""
        bare = None
        try:
            bare = self._outcome(cell, "off")
            guarded = bare if bare.error is None else self._outcome(cell, "lenient")
        except Unknown as why:
            cell.status, cell.error = "unknown", str(why)
            if bare is not None:
                cell.error, cell.finding = f"{bare.cell.error}\n  whether a guard helps: {why}", bare.cell.finding
            return None
        repaired = guarded is not bare and guarded.error is None and bool(guarded.cell.repairs)
        cell.status = "runs" if bare.error is None else "repaired" if repaired else "refused"
        behind = not repaired and bool(guarded.cell.repairs) and guarded.cell.finding is not None  # what a guard leaves
        told = guarded if behind else bare
        cell.error, cell.finding = told.cell.error, told.cell.finding
        last = guarded.cell if repaired else bare.cell
        cell.outputs, cell.modules, cell.births, cell.repairs = last.outputs, last.modules, last.births, last.repairs
        return bare.error if cell.finding is None else None

    def _outcome(self, cell: DryrunCell, mode: ModeName) -> Outcome:
        """What all paths of the program come to, if that is the same."""
        asked: list[Any] = []

        def one(decisions: Decisions) -> Outcome:
            outcome = self._run(cell, mode, decisions)
            if outcome.cell.finding is not None or mode != "off":  # nobody will raise it
                let_go(outcome.error)
            asked.extend(site for site in decisions.asked if site not in asked)
            return outcome

        found = paths(one)
        counted = [outcome for outcome in found if not outcome.own] or found
        if len({(outcome.error is None, outcome.cell.outputs) for outcome in counted}) > 1:
            line = f"`{asked[0].source}` " if asked[0].source else ""
            raise Unknown(f"{asked[0]}: {line}decides, by a value that is not computed")
        return counted[0]

    def _run(self, cell: DryrunCell, mode: ModeName, decisions: Decisions) -> Outcome:
        ghosts, outcome = Ghosts(), Outcome(dataclasses.replace(cell))
        found = outcome.cell
        recorder = Recorder(Findings(self._rules), Watching)
        imagining = Imagining(ghosts, decisions, recorder, cell.parameters)
        model = self._original.twin(ghosts, self._device)
        inputs = inputs_of(self._inputs, cell.inputs, ghosts, self._device)
        region = None if cell.region is None else (self._device.type, cell.region)
        seed(0)
        reset_casts()  # the caller's are put back by `aside`
        with unread(ghosts), imagining.on():
            model = converted(model, cell.parameters, self._device)
            if mode != "off":
                model = guard(model, mode=mode, verify="never")
            try:
                with under(mode), Audit(recorder, [model]), autocast(region):
                    named = [(f"argument `{leaf.path}`", leaf.tensor) for leaf in inputs.tensors()]
                    for name, tensor in (*named, *((_ATTRIBUTE % path, one) for path, one in attributes_of(model))):
                        born = Node(name, here(), tensor.dtype, named=True)
                        recorder.lineage.set(tensor, born)  # as the lines of a refusal name it
                    result = model(*inputs.args, **inputs.kwargs)
            except Exception as error:
                outcome.error = error
            else:
                found.outputs = tuple(leaf.dtype for _, leaf in flat(result) if isinstance(leaf, torch.Tensor))
        found.repairs = tuple(dict.fromkeys(f"`{c.argument}` of {c.function} from {dtype_title(c.from_dtype)} to "
                                            f"{dtype_title(c.to_dtype)}" for c in casts()))  # fmt: skip
        found.modules = {path: tuple(dtypes) for path, dtypes in imagining.modules.items()}
        found.births = _births(imagining.births, recorder, cell.parameters)
        if outcome.error is not None:
            found.finding = _refusal(recorder)
            outcome.own = found.finding is None and raised_by_python(outcome.error.__traceback__)
            found.error = _error_text(outcome.error, found.finding)
        return outcome


def _births(made: Iterable[str], recorder: Recorder, parameters: torch.dtype | None) -> tuple[str, ...]:
    """Where floating dtypes are born that parameters do not have: of nothing, by a cast, or by promotion."""
    found = dict.fromkeys(made)
    for cast, site in recorder.findings.casts():
        other = cast.to_dtype is not parameters and cast.to_dtype.is_floating_point
        if other and cast.kind in ("explicit", "promotion"):
            what = site.expression or f"{cast.op} of {name_of(cast.from_dtype)}"  # without the program's source
            found[birth(what, cast.site, cast.to_dtype)] = None
    return tuple(found)


def _refusal(recorder: Recorder) -> Finding | None:
    """What explains the exception that ended the run: the finding of an error, of which there is one at most."""
    found = [finding for finding in recorder.findings.rows() if finding.severity == "error"]
    if not found:
        return None
    place = found[0].site if found[0].line else f"in {found[0].module_path}"  # no line of the user's runs
    stays = re.match(_ATTRIBUTE % r"(?:.*\.)?(.+?)", found[0].origin[0]) if found[0].origin else None
    fix = _REGISTER.format(*stays.groups()) if stays else found[0].fix
    return dataclasses.replace(found[0], site=place, fix=fix)


def _error_text(error: Exception, finding: Finding | None) -> str:
    """The exception with its line; with the operands and the lines of their dtypes, where that is known."""
    if finding is not None:
        several = finding.origin if len(finding.origin) > 1 else ()  # one alone is in the message
        lines = [line for line in several if f"({line})" not in finding.message]
        return "\n".join([f"{finding.site}: {finding.message}", *(f"  {line}" for line in lines)])
    site, _, _ = raised_at(error.__traceback__)
    return f"{site}: {type(error).__name__}: {error}".partition("\n")[0]
