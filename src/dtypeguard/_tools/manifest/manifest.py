"""`manifest`: a contract on what a model holds."""

import os
from typing import Any

from ..._core.base.dtypes import name_of
from ..._core.base.errors import ContractWarning
from ..._core.base.frames import caller, warn_at
from ..._core.base.modules import root_of
from ..._core.base.options import explained_as
from ..._core.state.contents import Contents, contents_of, is_manifest, load, save, written
from ..._core.state.differences import Difference, Differences, differences, state_error
from ..._core.state.patterns import quoted
from ..._core.state.reading import Held, Reading, read
from ..._show.result import Result
from ..._show.text import number
from .headers import checkpoint
from .libraries import as_saved, narrowed


class Manifest(Result):
    """What a model holds, by patterns of names. `print` shows it as the file has it.

    Attributes:
        title (str): the class of the model.
        lines (dict[str, list[tuple[str, str]]]): of each section (`tensors`, `gradients`, `optimizer`, `computes`)
            patterns with what matches them.
        tied (dict[str, str]): names of tensors that have another name already, with that name.
        names (frozenset[str] | None): the names that the model has, without numbers; None in a file that does not say.
    """

    kind = "manifest"

    def __init__(self, contents: Contents, reading: Reading | None = None) -> None:
        self.contents: Contents = contents
        self._reading = reading
        self.title: str = contents.title
        self.tied: dict[str, str] = contents.tied
        self.names: frozenset[str] | None = contents.names
        self.lines: dict[str, list[tuple[str, str]]] = {
            name: [(pattern, str(held)) for pattern, held in rows] for name, rows in contents.lines.items()
        }

    def __str__(self) -> str:
        return self.contents.text or written(self.contents)

    def __repr__(self) -> str:
        return f"<manifest of {self.title}: {number(sum(map(len, self.lines.values())), 'line')}>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the manifest to a file; `dtypeguard.manifest.load(path)` reads it again.

        A manifest that is there keeps its comments, and lines that are still right.

        Args:
            path: the path of the file.

        Raises:
            OSError: it cannot be written.
            ValueError: the file that is there is no manifest.
        """
        save(self.contents, self._reading, path)

    @explained_as("manifest.check")
    def check(self, model: Any, optimizer: Any = None, *, batch: Any = None) -> None:
        """Check that a model, or a checkpoint, holds what the manifest says.

        Tensors whose names the manifest does not know are new, and no fault. Gradients, optimizer state, attributes
        and buffers that are not saved may be missing. Inside an audit, the message names the lines that changed what
        differs.

        Args:
            model: an nn.Module, a mapping such as a `state_dict`, a path of a checkpoint, or another manifest.
            optimizer: an optimizer or several, to check their state too.
            batch: what the model is called with, to check in which dtypes its modules compute.

        Raises:
            StateError: something differs; the message has a line for each pattern.
            TypeError, ValueError, OSError: the model is none of these, or cannot be read.

        >>> import torch, dtypeguard
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3))
        >>> lock = dtypeguard.manifest(model)
        >>> lock.check(model)
        >>> lock.check(model.half())
        Traceback (most recent call last):
        ...
        dtypeguard.StateError: Sequential differs from the manifest in 4 of 4 tensors
          *  float32 -> float16 (4 tensors)
        ...
        """
        found = self._differences(model, optimizer, batch)
        if found:
            raise state_error(found)

    @explained_as("manifest.diff")
    def diff(self, other: Any, optimizer: Any = None, *, batch: Any = None) -> "StateDiff":
        """What differs between the manifest and a model, a checkpoint or another manifest.

        Args:
            other: what `check` takes as model.
            optimizer, batch: as for `check`.

        Returns:
            The differences, one line for each pattern; False if there are none.

        >>> import torch, dtypeguard
        >>> lock = dtypeguard.manifest(torch.nn.Linear(3, 1))
        >>> print(lock.diff({"weight": torch.zeros(1, 3), "bias": torch.zeros(1, dtype=torch.float64)}))
        dict differs from the manifest in 1 of 2 tensors
          bias  float32 -> float64
        """
        return StateDiff(self._differences(other, optimizer, batch))

    def _differences(self, other: Any, optimizer: Any, batch: Any) -> Differences:
        shapes, devices = map(self.contents.asks, ("shape", "device"))
        reading = _reading(other, optimizer, shapes, devices, self.contents)
        found = differences(self.contents, reading)
        if batch is not None and not found.stranger:
            try:
                reading.sections["computes"] = _computes(other, batch)
            except RuntimeError:  # it does not run; if it is because of what it holds, that is told
                if not found:
                    raise
            else:
                found = differences(self.contents, reading)
        return found

    def _data(self) -> dict[str, Any]:
        names = None if self.names is None else sorted(self.names)
        return {"title": self.title, "lines": self.lines, "tied": self.tied, "names": names}

    def _cell(self) -> tuple[Any, ...]:
        from .page import parts_of

        return parts_of(self.contents)


class StateDiff(Result):
    """What differs between a manifest and a model or checkpoint. False if nothing does.

    Attributes:
        rows (list[Difference]): a `Difference` for each pattern.
        new (list[tuple[str, str]]): patterns of names that the manifest does not know, with what they hold.
        unused (list[str]): patterns of the manifest that match nothing.
        stranger (str): why it is another model than the manifest's, or nothing; then there are no rows.
        compared (int): how many tensors were compared.
    """

    kind = "state diff"

    def __init__(self, found: Differences) -> None:
        self._found = found
        self.rows: list[Difference] = found.rows
        self.new: list[tuple[str, str]] = found.new
        self.unused: list[str] = found.unused
        self.stranger: str = found.stranger
        self.compared: int = found.compared

    def __bool__(self) -> bool:
        return bool(self._found)

    def __str__(self) -> str:
        rows = self._found.lines()
        new = [(f"new: {pattern}", held) for pattern, held in self.new]
        new += [(pattern, "matches nothing") for pattern in self._found.unused]
        width = max((len(pattern) for pattern, _ in (*rows, *new)), default=0)
        return "\n".join([self._found.head(), *(f"  {left:<{width}}  {right}" for left, right in (*rows, *new))])

    def _data(self) -> dict[str, Any]:
        found = self._found
        facts = {name: getattr(found, name) for name in ("title", "source", "rows", "unused", "stranger", "compared")}
        return {**facts, "new": [{"pattern": pattern, "holds": held} for pattern, held in found.new]}

    def _cell(self) -> tuple[Any, ...]:
        from .page import parts_of_diff

        return parts_of_diff(self._found)


Difference.__module__ = "dtypeguard.results"


class _Door:
    """What a model holds: the dtype of parameters, buffers, plain tensor attributes, gradients, optimizer state.

    A model can be right in what it computes and wrong in what it holds, since a load, a wrapper, a `.to()` or a new
    version of a library changed it. A manifest is a small file of patterns that is committed, read in reviews, and
    checked. It is the same for a model that is compiled, wrapped in DDP, FSDP2 or PEFT, copied or pickled.

    Args:
        model: an nn.Module, a mapping such as a `state_dict` or `{"model": model, "ema": ema}`, or the path of a
            checkpoint, of which only the header is read.
        optimizer: an optimizer or several, whose state is held too.
        batch: what the model is called with, as for `dryrun`: then the manifest also has the dtypes in which each
            module computes.
        shapes: whether shapes are held too.
        devices: whether devices are held too.

    Returns:
        The manifest. `save(path)` writes it, and `dtypeguard.manifest.load(path)` reads it; `check(model)` raises if a
        model differs, `diff(other)` tells how.

    Raises:
        TypeError, ValueError, OSError: the model is none of these, or cannot be read.

    Warns:
        ContractWarning: tensors are half that `_keep_in_fp32_modules` of the model's class keeps in float32.

    >>> import torch, dtypeguard
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3).half())
    >>> print(dtypeguard.manifest(model).lines["tensors"])
    [('*.num_batches_tracked', 'int64'), ('0.*', 'float32'), ('*', 'float16')]
    """

    @explained_as("manifest")
    def __call__(
        self, model: Any, /, optimizer: Any = None, batch: Any = None, *, shapes: bool = False, devices: bool = False
    ) -> Manifest:
        reading = _reading(model, optimizer, bool(shapes), bool(devices))
        wrong = narrowed(root_of(model), reading.sections["tensors"])
        if wrong:
            warn_at(caller(), ContractWarning(f"manifest: {wrong}"))
        files = as_saved(root_of(model))
        if files is not None:
            reading.sections["files"] = files
        if batch is not None:
            reading.sections["computes"] = _computes(model, batch)
        contents = contents_of(reading)
        if isinstance(model, str | os.PathLike):
            contents.title = os.path.basename(os.path.normpath(model))
        return Manifest(contents, reading)

    @explained_as("manifest.load")
    def load(self, path: str | os.PathLike[str]) -> Manifest:
        """Read a manifest from a file.

        Args:
            path: the path of a file that `save` wrote.

        Returns:
            The manifest.

        Raises:
            OSError: it cannot be read.
            ValueError: it is no manifest, one of a newer format, or a line of it cannot be read.
        """
        return Manifest(load(path))


manifest: _Door = _Door()


def _reading(subject: Any, optimizer: Any, shapes: bool, devices: bool, beside: Contents | None = None) -> Reading:
    """What a model, a checkpoint or a manifest holds."""
    if isinstance(subject, Manifest):
        return subject._reading or _as_read(subject.contents, beside)
    if isinstance(subject, str | os.PathLike):
        return _as_read(load(subject), beside) if is_manifest(subject) else checkpoint(subject, shapes)
    return read(root_of(subject), optimizer, shapes, devices)


def _computes(model: Any, batch: Any) -> dict[str, Held]:
    """The dtypes in which modules compute, by their paths."""
    from ..dryrun.dryrun import computes_in  # with all of the audit

    found = (
        (path.partition(".")[2] or "(root)", dtypes) for path, dtypes in computes_in(model, batch, "manifest").items()
    )
    return {quoted(path): Held(" and ".join(sorted(map(name_of, dtypes)))) for path, dtypes in found if dtypes}


def _as_read(contents: Contents, beside: Contents | None) -> Reading:
    """What a manifest holds, of which only patterns are known; where lines have numbers, a name for each number."""
    patterns = [pattern for one in (contents, beside or contents) for rows in one.lines.values() for pattern, _ in rows]
    numbers = {part for pattern in patterns for part in pattern.split(".") if part.isdecimal()}
    names = {name for kind in contents.names or () for name in (kind, *(kind.replace("*", n, 1) for n in numbers))}
    names |= {pattern for pattern in patterns if contents.names is None and pattern != "*"}
    found = Reading(contents.source or contents.title, tied=dict(contents.tied), unit="name")
    lines = ((name, contents.line("tensors", name)) for name in sorted(names))
    found.sections["tensors"] = {name: line[1] for name, line in lines if line is not None}
    return found
