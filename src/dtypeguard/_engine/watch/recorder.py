"""The recorder: what torch does while an audit is on, turned into events.

The dispatch mode shows operations, functions that are replaced for the time show modules, autocast regions and threads.
"""

import contextlib
import itertools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from ..._core.base import private
from ..._core.base.frames import chain_of
from ..._core.base.modules import inside, tensors_of, walk
from ..._core.base.patches import here as threads
from ..._core.base.patches import to_the_end
from ..integers import INTEGERS
from .apart import apart
from .events import KINDS, Handler, ModuleRow, Op, Operand, Refusal, Suspect, handlers, handlers_of
from .failures import Caught, Failure
from .findings import Findings
from .lineage import Cause, Lineage, Node
from .local import Local, Place
from .looks import Looks
from .patches import Patches
from .rule import Finding, Rule, Severity
from .scope import Scope
from .sites import Site, here, line, raised_at, raising, user
from .steps import Steps
from .text import size_of

State = TypeVar("State")
_SEQUENCES = 50_000
_FAULTS = 100


class Recorder:
    """One audit, while it runs; the families of rules use what is public here."""

    def __init__(self, findings: Findings, mode: Callable[["Recorder"], TorchDispatchMode]) -> None:
        self.findings: Findings = findings
        self.patches: Patches = Patches(self)
        self.lineage: Lineage = Lineage()
        self.local: Local = Local(Place())
        self.scope: Scope | None = findings.scope
        self.handles: list[Any] = []
        self.optimizers: list[Any] = []  # those that `audit` was given
        self.scalers: list[Any] = []
        self.running: bool = False
        self.promotions = 0  # that are open
        self.integers: set[torch.dtype] = {*INTEGERS}  # dtypes of which every operation is told
        self.operations = 0
        self.values: Any = None  # what looks at values, where that is asked for
        self.steps: Steps | None = None  # which of them are looked at, where not all are
        self.births: dict[torch.dtype, Cause] = {}  # why tensors that are made of no others have their dtype
        self.broken: list[BaseException] = []  # what went wrong in the audit itself
        self.calls: dict[str, ModuleRow] = {}  # by path
        self.on: dict[str, list[Handler]] = {kind: handlers(kind, findings.wanted) for kind in KINDS}
        self.before: dict[str, list[Handler]] = handlers_of("before", findings.wanted)
        self.after: dict[str, list[Handler]] = handlers_of("after", findings.wanted)
        self._paths: dict[int, tuple[weakref.ref[nn.Module], str]] = {}
        self._titles: dict[str, weakref.ref[nn.Module]] = {}  # of the roots among them
        self._numbers: dict[str, int] = {}  # of the last root of a class that had to have one
        self._states: dict[type, Any] = {}
        self.looks: Looks = Looks()
        self.due: Callable[..., bool] = self.looks.due
        self._causes: dict[int, tuple[Site, str | None]] = {}  # of casts in backward, by sequence number
        self._mode = mode(self)

    @property
    def records_here(self) -> bool:
        """Whether it runs, and this thread takes part; a thread of autograd has the mode of the one that waits."""
        return self.running and (self.local.on or (threads.foreign and self._mode in _stack()))

    @property
    def listens_here(self) -> bool:
        """Whether it listens in this thread, even in what it does itself."""
        return self.running and (self.patches.listens_here or threads.foreign)

    # ------------------------------------------------------------ for the families

    def find(self, rule: Rule | str, site: Site, **fields: Any) -> Finding | None:
        """Enter a finding; see `Findings.add`."""
        return self.findings.add(rule, site, **fields)

    def suspect(self, rule: Rule, event: Op, source: Tensor, op: str | None = None, /, **facts: Any) -> Suspect:
        """What may become a finding: what an operation made of `source`. `what` it was is a fact of each."""
        origin = tuple(map(str, self.origin_of(source)))  # the operation is the fault, not the birth of its dtype
        fields = {
            "module": event.module, "op": op or event.name, "from_dtype": source.dtype, "to_dtype": event.out.dtype,
            "bytes": size_of(event.out), "origin": origin,
        }  # fmt: skip
        return Suspect(rule, event.site, {"what": event.what, **facts}, fields)

    def here(self) -> Site:
        """The user's line that is running."""
        site = here(frame := sys._getframe(1))
        return site if self.scope is None else self.scope.seen(site, frame)

    def line(self, frame: FrameType | None) -> Site:
        """The user's line of a frame; looked for once for all operations of a module of torch's."""
        doors = self.local.doors
        site = line(frame, doors, len(doors) - 1)
        return site if self.scope is None else self.scope.seen(site, frame)

    def user(self) -> Site:
        """The user's line that is running, past installed packages, where there is such a line."""
        site = user(frame := sys._getframe(1))
        return site if self.scope is None else self.scope.seen(site, frame)

    def blame(self, nodes: Iterable[Node], effect: str, kind: type[Cause] = Cause, *, own_dtype: bool = False) -> None:
        """Something harmful came of tensors: the causes of their dtypes are no mere information any more.

        Args:
            own_dtype: only causes that made something of the dtype that the tensor has; no other gave it that dtype.
                A buffer did not, where a parameter would have given it that dtype as well.
        """
        for node in nodes:
            line = list(node.ancestors(own_dtype=own_dtype))
            parameters = [one for one in line if one.named and one.op.startswith("parameter ")] if own_dtype else []
            for ancestor in line:
                other = parameters and ancestor.named and ancestor not in parameters
                if isinstance(ancestor.cause, kind) and not other:
                    ancestor.cause.blame(self, effect)

    def module(self) -> str | None:
        """The module whose forward is running."""
        modules = self.local.modules
        return modules[-1] if modules else None

    def autocast(self) -> bool:
        """Whether an autocast region is enabled; in an operation torch itself would say no."""
        return any(self.local.regions.values())

    def region(self) -> tuple[str, torch.dtype]:
        """The enabled region, as arguments of `torch.autocast`."""
        device = next((kind for kind, enabled in self.local.regions.items() if enabled), "cpu")
        return device, torch.get_autocast_dtype(device)

    def origin_of(self, tensor: Tensor) -> tuple[str, ...]:
        """The lines from the birth of a tensor to now."""
        return self.lineage.origin_of(tensor)

    def origin_for_error(self, tensor: Tensor) -> tuple[str, ...]:
        """The origin of a tensor for an error; none in a thread that takes no part, whose errors are its own."""
        return self.origin_of(tensor) if self.records_here else ()

    def state(self, kind: type[State]) -> State:
        """What a family keeps for the time of the audit."""
        if kind not in self._states:
            self._states[kind] = kind()
        state: State = self._states[kind]
        return state

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What torch does in here, in this thread, is not recorded."""
        self.local.paused += 1
        try:
            yield
        finally:
            self.local.paused -= 1

    @contextlib.contextmanager
    def without_mode(self) -> Iterator[None]:
        """In here the mode is off, in this thread; not merely paused, which costs something at each operation."""
        above = self.mode_off()
        try:
            with self.paused():
                yield
        finally:
            for _ in above[:-1]:
                _python_dispatch._pop_mode()
            for mode in reversed(above):
                _python_dispatch._push_mode(mode)

    @contextlib.contextmanager
    def without_audit(self) -> Iterator[None]:
        """In here torch is as it is without an audit, in this thread: for what would trace the audit too."""
        on, self.local.on = self.local.on, False
        self.patches.leave_thread()
        try:
            with self.without_mode():
                yield
        finally:
            self.local.on = on
            if on and self.running:
                self.patches.enter_thread()

    def emit(self, kind: str, *event: Any) -> None:
        """Call the functions for a kind of event; what they raise never reaches the program."""
        if self.on[kind]:
            self.call(self.on[kind], *event)

    def call(self, functions: Iterable[Callable[..., Any]], *event: Any) -> None:
        """Call these functions with an event; what they raise never reaches the program."""
        self.local.paused += 1
        try:
            with apart(own=1):
                for function in functions:
                    try:
                        function(*event, self)
                    except Exception as error:  # a fault of the audit must not be one of the program
                        self.fault(error)
        finally:
            self.local.paused -= 1

    def guarded(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of the audit's; None if it raises, which never reaches the program."""
        self.local.paused += 1
        try:
            with apart(own=1):
                return function(*args, **kwargs)
        except Exception as error:  # a fault of the audit must not be one of the program
            self.fault(error)
            return None
        finally:
            self.local.paused -= 1

    def fault(self, error: BaseException) -> None:
        """Something of the audit itself went wrong; what keeps going wrong is kept some times."""
        if len(self.broken) < _FAULTS:
            self.broken.append(error)

    # ------------------------------------------------------------ life

    def start(self) -> None:
        try:
            self.local.enter()
            self.patches.enter_thread()
            for device in ("cuda", "cpu"):
                self.local.regions[device] = torch.is_autocast_enabled(device)
            self.patches.begin(self)
            if self.values is not None:
                self.values.begin()
            if self.steps is not None:
                self.steps.begin()
            self.emit("start")
            _python_dispatch._push_mode(self._mode)  # its `__enter__` keeps flags for the whole process
            self.running = True
        except BaseException:
            self.put_back()
            raise

    def stop(self, error: BaseException | None) -> None:
        try:
            self.running = False
            self.mode_off()
            if error is not None:
                self.exception_leaves(error, final=True)
            if self.values is not None:
                self.guarded(self.values.close)
            self.emit("end")
            self.findings.unite()
        finally:
            self.put_back()

    @property
    def resting(self) -> bool:
        """Whether the step that runs is not looked at."""
        return self.steps is not None and self.steps.resting

    def mode_on(self) -> None:
        """Put it back, below those that the program has entered."""
        modes: Any = _python_dispatch
        above = [modes._pop_mode() for _ in _stack()]
        for mode in (self._mode, *reversed(above)):
            modes._push_mode(mode)

    @contextlib.contextmanager
    def in_thread(self) -> Iterator[None]:
        """Record in a thread that the program started."""
        _python_dispatch._push_mode(self._mode)
        self.local.on = True
        self.patches.enter_thread()
        try:
            yield
        except Exception as error:
            if self.records_here:
                self.guarded(self.exception_leaves, error, True)
            raise
        finally:
            self.patches.leave_thread()
            self.mode_off()

    def mode_off(self) -> list[Any]:
        """Take the mode off this thread's stack; what was popped: those that the program entered since, and ours."""
        modes: Any = _python_dispatch
        popped: list[Any] = []
        stack = _stack()
        try:
            while self._mode in stack and (not popped or popped[-1] is not self._mode):
                popped.append(modes._pop_mode())
        finally:
            for mode in reversed(popped):
                if mode is not self._mode:
                    modes._push_mode(mode)
        return popped

    def put_back(self) -> None:
        """Leave torch as it was; it can be called again."""
        self.running = False
        to_the_end(self.mode_off, self.patches.undo, self._let_go)

    def _let_go(self) -> None:
        while self.handles:
            self.handles[-1].remove()
            self.handles.pop()
        self.optimizers, self.scalers = [], []
        self._states.clear()
        self.looks.clear()
        self._causes.clear()

    # ------------------------------------------------------------ modules

    def known_path(self, module: nn.Module) -> str | None:
        """The path of a module that was met."""
        entry = self._paths.get(id(module))
        return entry[1] if entry is not None and entry[0]() is module else None

    def path_of(self, module: nn.Module) -> str:
        """`Net.encoder.fc`; a module that no known one holds is a root."""
        entry = self._paths.get(id(module))
        if entry is None or entry[0]() is not module:
            self.register_paths(module)
            entry = self._paths[id(module)]
        return entry[1]

    def register_paths(self, root: nn.Module) -> None:
        """Know a module and all in it by their paths."""
        kind = title = type(root).__name__.lstrip("_") or "Module"
        for number in itertools.count(self._numbers.get(kind, 2)):  # from the last one on, whose root may be gone
            if not self._title_is_taken(title, root):
                break
            title, self._numbers[kind] = f"{kind}#{number}", number
        self._titles[title] = weakref.ref(root)
        site = self.here()
        for name, module in walk(root):
            path = inside(title, name)
            self._paths[id(module)] = (weakref.ref(module), path)
            if isinstance(module, torch.jit.ScriptModule):
                continue
            for kind, key, tensor in tensors_of(module):
                if self.lineage.get(tensor) is None:
                    self.lineage.hold(module, key, tensor, Node(f"{kind} {path}.{key}", site, tensor.dtype, named=True))

    def _title_is_taken(self, title: str, root: nn.Module) -> bool:
        """Whether another root has the title, and has not become a part of a larger one."""
        ref = self._titles.get(title)
        other = None if ref is None else ref()
        return other is not None and other is not root and self.known_path(other) == title

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Those that are known and alive."""
        for ref, path in list(self._paths.values()):
            module = ref()
            if module is not None:
                yield path, module

    # ------------------------------------------------------------ exceptions

    def exception_raised(self, error: BaseException, op: str | None = None, tensors: Iterable[Tensor] = ()) -> None:
        """An exception was raised; whether it is a finding is known when it leaves the program's modules.

        One of an operation outside of all modules is told at once: nobody hears of it again if the program catches it.
        """
        own = op is not None and not self.local.modules
        if own:
            self.local.failure = None  # ids of exceptions are used again
        failure, inner = self.local.failure, error.__cause__ or error.__context__
        if failure is not None and inner is not None and failure.error == id(inner):
            failure.outer = id(error)
        elif failure is None or id(error) not in (failure.error, failure.outer):
            function = getattr(private.current_node(), "_forward_cls", None)
            module, operands = self.module(), []
            for number, tensor in enumerate(tensors):
                node = self.lineage.get(tensor)
                owner = None if node is not None and node.named else self._owner(tensor, module)
                operands.append(Operand.of(owner or f"operand {number}", tensor, node, owned=owner is not None))
            depth = len(self.local.modules)
            failure = Failure(id(error), module, self.autocast(), op, operands, function, depth=depth)
            failure.raised = error if op is not None else None
            self.local.failure = failure
            if own:
                self._emit_refusal(error, failure, *raising(sys._getframe(1)))

    def _owner(self, tensor: Tensor, path: str | None) -> str | None:
        """The name of what a running module holds, as `CrossEntropyLoss.weight`: no argument is wrong then."""
        module = next((module for known, module in self.modules() if known == path), None)
        if module is None:
            return None
        held = [(key, value) for _, key, value in tensors_of(module)] + list(vars(module).items())
        return next((f"{path}.{key}" for key, value in held if value is tensor), None)

    def exception_leaves(self, error: BaseException, final: bool = False) -> None:
        """An exception leaves the outermost module, or, which is final, the audit or a thread."""
        self.exception_raised(error)
        failure = self.local.failure
        if failure is None or (final and self._enter_final(error)) or failure.said:
            return
        if failure.outer == id(error):
            error = error.__cause__ or error.__context__ or error
        self._emit_refusal(error, failure, *raised_at(error.__traceback__), final=final)

    def exception_caught(self, failure: Failure) -> None:
        """A module has ended that an operation was refused in: it has caught the exception."""
        error = failure.raised
        if error is not None and failure.depth > len(self.local.modules):
            self._emit_refusal(error, failure, *raised_at(error.__traceback__))

    def _emit_refusal(
        self, error: BaseException, failure: Failure, site: Site, outer: Site, frame: FrameType | None,
        final: bool = False,
    ) -> None:  # fmt: skip
        failure.said, failure.raised = True, None
        if frame is None:
            return
        if self.scope is not None:
            site, outer = (self.scope.raised(at, error.__traceback__, sys._getframe(1)) for at in (site, outer))
        event = Refusal(
            error, site, frame, failure.module, failure.autocast, failure.op, failure.operands, failure.function,
            outer, final,
        )  # fmt: skip
        self.emit("refused", event)

    def enter_refusal(
        self, event: Refusal, rule: str, site: Site, nodes: list[Node], *, dtypes: bool = False, **fields: Any
    ) -> None:
        """Enter what explains an exception: an error if it ends the program, else an info until it does.

        Args:
            dtypes: whether the dtypes of the tensors were refused.
        """
        if event.final:
            self._enter_error(rule, site, nodes, dtypes, fields)
        elif self.find(rule, site, severity=Severity.INFO, **fields) is not None:
            caught = Caught(id(event.error), str(event.error), rule, site, nodes, dtypes, {**fields, "again": True})
            self.local.caught.append(caught)
            self._tell_debts(nodes, final=False)

    def _enter_error(self, rule: str, site: Site, nodes: list[Node], dtypes: bool, fields: dict[str, Any]) -> None:
        self.find(rule, site, severity=Severity.ERROR, **fields)
        self._tell_debts(nodes, final=True)
        self.blame(nodes, f"refused at {site}", own_dtype=dtypes)

    def _tell_debts(self, nodes: list[Node], final: bool) -> None:
        for node in nodes:
            for debt in node.debts:
                debt.refused(final)

    def _enter_final(self, error: BaseException) -> bool:
        """Whether the program ends with an exception that was seen when it left a module."""
        found = False
        for one in chain_of(error):
            for caught in self.local.caught:
                if caught.error == id(one) and caught.text == str(one):
                    self._enter_error(caught.rule, caught.site, caught.nodes, caught.dtypes, caught.fields)
                    found = True
        return found

    # ------------------------------------------------------------ casts

    def cast(self, kind: str, op: str, source: Tensor, like: Tensor, size: int, site: Site, module: str | None) -> None:
        self.findings.cast(kind, op, source, like.dtype, like.device, size, site, module)

    def remember_forward_line(self, inputs: list[Tensor], site: Site, module: str | None) -> None:
        """Which line the casts in backward will belong to that this operation causes."""
        if inputs and (inputs[0].requires_grad or any(tensor.requires_grad for tensor in inputs[1:])):
            causes = self._causes
            if len(causes) > _SEQUENCES:
                for key in list(causes)[: _SEQUENCES // 2]:
                    del causes[key]
            causes[private.next_sequence() - 1] = (site, module)

    def forward_line(self) -> tuple[Site, str | None] | None:
        """The line in forward that the running node of backward belongs to."""
        node = private.current_node()
        return None if node is None else self._causes.get(node._sequence_nr())


def _stack() -> list[Any]:
    """The dispatch modes of this thread."""
    modes: Any = _python_dispatch
    return [modes._get_dispatch_stack_at(n) for n in range(modes._len_torch_dispatch_stack())]
