"""`install_import_hook`: the annotated functions of a package are enforced, and nothing in the package is changed.

A finder puts a loader in the place of Python's own for source files. The loader adds a decorator to each function with
annotations (below all others, so that it gets the function itself) and to each decorated class (above all others, so
that it gets the dataclass). The decorator and its options stand in the module's code, for `python -m` runs the code
without the loader. So the bytecode depends on the options, and has files of its own.
"""

import ast
import contextlib
import copy
import functools
import sys
import zipimport
from collections.abc import Callable, Iterable
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec
from types import FrameType, ModuleType
from typing import Any, Literal

import torch

from ..base import config as _config
from ..base.config import CastingName, ModeName, read, written_in
from ..base.errors import DtypeGuardWarning
from ..base.frames import caller, warn_at, warn_of
from ..base.options import explained, several
from ..wrap.build import signed
from .enforce import DEFAULTS, UNCHECKED, decorate, names_around

_FORMAT = 1  # of the code that is made here, and so of the files with its bytecode
_NAME = "_dtypeguard_hook"  # in the module
_START = f"from {__name__} import hook as {_NAME}\n{_NAME} = {_NAME}({{mode!r}}, {{casting!r}})"
# A function with a decorator from one of these modules is checked already, or its source is read.
_APART = ("dtypeguard._core.doors.enforce", "jaxtyping", "beartype", "typeguard", "torch.jit", "triton", "numba")

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@explained
def install_import_hook(
    packages: str | Iterable[str], /, *, mode: ModeName | None = None, casting: CastingName | None = None
) -> "ImportHook":
    """Enforce the annotated functions, methods and dataclasses of packages that are imported from now on.

    The hook does what `enforce` above each of them would do. Functions without annotations, and those that `enforce`,
    jaxtyping or beartype decorate, stay as they are. A function that `enforce` refuses stays as it is too, with a
    warning. Install the hook before the first import of the package. `remove()`, or the end of a `with` block,
    removes it; modules that were imported meanwhile stay enforced. With the mode 'off', and with `DTYPEGUARD_MODE=off`,
    nothing is installed.

    Args:
        packages: the name of a package or module, as in `import`, or several names. Submodules are included.
        mode: 'strict', 'lenient', 'warn' or 'off'; default: the mode that is set when a call is checked.
        casting: which casts lenient mode may make: 'safe', 'precision' (default), 'promote' or 'unsafe'.

    Returns:
        The hook, which is a context manager.

    Raises:
        ValueError: for an unknown mode or casting, and for what is no name of a module.
        TypeError: if `packages` has something else than strings.

    Warns:
        DtypeGuardWarning: if there is no such package yet, or modules of it are imported already; and at the end of
            the block if none was imported in it.

    >>> import dtypeguard
    >>> with dtypeguard.install_import_hook("colorsys"):  # your package
    ...     import colorsys
    """
    return installed(packages, mode, casting)


def installed(
    packages: str | Iterable[str],
    mode: ModeName | None = None,
    casting: CastingName | None = None,
    *,
    now: bool = True,
) -> "ImportHook":
    """The same; `now` says whether packages must be there already."""
    names = several("packages", packages, str, "the name of a package such as 'mypackage', or several names")
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"packages: {name!r} is no name of a module: write it as in `import`")
    if not names:
        raise ValueError("packages is empty: name at least one package")
    read(mode=mode, casting=casting)
    return ImportHook(names, mode, casting, now)


def _is_there(name: str) -> bool:
    """Whether the outermost package can be found; nothing is imported to see that."""
    outermost = name.partition(".")[0]
    with contextlib.suppress(ValueError):  # a module that was made by hand has no spec
        return find_spec(outermost) is not None
    return outermost in sys.modules


class ImportHook:
    """What `install_import_hook` returns. `remove()`, or the end of a `with` block, removes the hook."""

    def __init__(self, packages: tuple[str, ...], mode: str | None, casting: str | None, now: bool) -> None:
        self.packages = packages
        self._told: list[str] = []  # those that the user was told of
        self._finder = _Finder(packages, mode, casting)
        if mode == "off" or _config.OFF_AT_IMPORT:
            return
        modules = sys.modules.copy()
        known = sorted(name for name in modules if self._finder.wants(name) and _is_plain(modules[name]))
        if known:
            more = f" (and {len(known) - 1} more modules)" * (len(known) > 1)
            text = f"install_import_hook: {known[0]}{more} is imported already, and stays unchecked"
            text += ": install the hook before the import"
            warn_at(caller(), DtypeGuardWarning(text))
        absent = [name for name in packages if not _is_there(name)] if now else []
        self._told = absent + [name for name in packages if any(f"{one}.".startswith(f"{name}.") for one in known)]
        if absent:
            text = f"install_import_hook: there is no package {', '.join(map(repr, absent))} to be checked"
            warn_at(caller(), DtypeGuardWarning(text))
        sys.meta_path.insert(0, self._finder)

    def missing(self) -> list[str]:
        """The packages of which no module was imported while the hook was installed."""
        return [name for name in self.packages if name not in self._finder.met]

    def remove(self) -> None:
        """Remove the hook. Modules that were imported meanwhile stay enforced."""
        missing = [name for name in self.missing() if name not in self._told]
        if self._finder in sys.meta_path and missing:
            names = ", ".join(map(repr, missing))
            text = f"install_import_hook: no module of {names} was imported while the hook was installed"
            warn_at(caller(), DtypeGuardWarning(text))
        self._take_off()

    def _take_off(self) -> None:
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)

    def __enter__(self) -> "ImportHook":
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> Literal[False]:
        if error is None:
            self.remove()
        else:
            self._take_off()
        return False

    def __repr__(self) -> str:
        state = "installed" if self._finder in sys.meta_path else "not installed"
        return f"<ImportHook of {', '.join(self.packages)}: {state}>"


def _is_plain(module: ModuleType) -> bool:
    """Whether a module was loaded from source without a hook; one that is being imported is still to load others."""
    spec = getattr(module, "__spec__", None)
    return spec is not None and type(spec.loader) is SourceFileLoader and not getattr(spec, "_initializing", False)


# --- import -------------------------------------------------------------------------------------------------------


class _Finder:
    """Asks the finders behind it, and gives what they find a loader of ours."""

    def __init__(self, packages: tuple[str, ...], mode: str | None, casting: str | None) -> None:
        self._packages, self._told = packages, (mode, casting)
        self.met: set[str] = set()

    def wants(self, module: str) -> str | None:
        """The package that a module belongs to, if it is one of ours."""
        return next((name for name in self._packages if f"{module}.".startswith(f"{name}.")), None)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package = self.wants(name)
        if package is None:
            return None
        finders = list(sys.meta_path)
        behind = finders[finders.index(self) + 1 :] if self in finders else finders  # removed meanwhile
        asked = (finder.find_spec(name, path, target) for finder in behind if not isinstance(finder, _Finder))
        spec = next((spec for spec in asked if spec is not None), None)
        if spec is None:
            return None
        self.met.add(package)
        if type(spec.loader) is SourceFileLoader:  # not of an extension; nor one of pytest or jaxtyping, made from it
            spec.loader = _Loader(spec.loader.name, spec.loader.path, *self._told)
        elif isinstance(spec.loader, zipimport.zipimporter):
            warn_at(caller(), DtypeGuardWarning(f"{name} is in an archive, and {UNCHECKED}: unpack it"))
        return spec


class _Loader(SourceFileLoader):
    """Compiles a module with our decorators, into bytecode files of its own."""

    def __init__(self, name: str, path: str, mode: str | None, casting: str | None) -> None:
        super().__init__(name, path)
        self._told = {"mode": mode, "casting": casting}
        self._tag = f".dtypeguard{_FORMAT}-{mode}-{casting}.pyc"

    # typeshed has the static method of a base class of the importlib before
    def source_to_code(self, data: Any, path: Any, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        tree = _decorated(ast.parse(data, path), _START.format(**self._told))
        return super().source_to_code(tree, path, *args, **options)

    def get_data(self, path: str) -> bytes:
        return super().get_data(self._own(path))

    def set_data(self, path: str, *args: Any, **options: Any) -> None:
        super().set_data(self._own(path), *args, **options)

    def _own(self, path: str) -> str:
        return path.removesuffix(".pyc") + self._tag if path.endswith(".pyc") else path


# --- source -------------------------------------------------------------------------------------------------------


def _decorated(tree: ast.Module, start: str) -> ast.Module:
    """A module with our decorators, and with what makes them in front."""
    _Decorator().visit(tree)
    first = 0
    while first < len(tree.body) and _must_be_first(tree.body[first]):
        first += 1
    before = tree.body[first:] or tree.body
    tree.body[first:first] = [_placed_at(before[0], line) for line in ast.parse(start).body] if before else []
    return tree


def _must_be_first(line: ast.stmt) -> bool:
    docstring = isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)
    return docstring or (isinstance(line, ast.ImportFrom) and line.module == "__future__")


def _placed_at(place: ast.AST, made: Any) -> Any:
    """New code that stands where other code does: tracebacks, coverage and `inspect` know no other lines."""
    for node in ast.walk(made):
        if "lineno" in node._attributes:
            ast.copy_location(node, place)
    return made


class _Decorator(ast.NodeVisitor):
    """Adds our decorator to functions with annotations, and to decorated classes."""

    def visit_FunctionDef(self, node: _Function) -> None:
        names = _last_names(node)
        if "no_type_check" in names:
            return
        self.generic_visit(node)
        given = node.args
        several = [arg for arg in (given.vararg, given.kwarg) if arg is not None]
        arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, *several]
        annotated = node.returns is not None or any(arg.annotation is not None for arg in arguments)
        if annotated and "overload" not in names:
            others = [copy.deepcopy(name) for name in map(_name_of_decorator, node.decorator_list) if name is not None]
            node.decorator_list.append(_placed_at(node, _call(others)))

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815  (ast's names)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if "no_type_check" in _last_names(node):
            return
        self.generic_visit(node)
        if node.decorator_list:
            node.decorator_list.insert(0, _placed_at(node.decorator_list[0], _call([])))


def _call(arguments: list[ast.expr]) -> ast.expr:
    return ast.Call(ast.Name(_NAME, ast.Load()), arguments, [])


def _name_of_decorator(decorator: ast.expr) -> ast.expr | None:
    """The name of a decorator, `a.b` of `@a.b(c)`; None for what would be computed twice."""
    name = inside = decorator.func if isinstance(decorator, ast.Call) else decorator
    while isinstance(inside, ast.Attribute):
        inside = inside.value
    return name if isinstance(inside, ast.Name) else None


def _last_names(node: _Function | ast.ClassDef) -> set[str]:
    """`no_type_check` of `@typing.no_type_check`."""
    names = (_name_of_decorator(decorator) for decorator in node.decorator_list)
    return {ast.unparse(name).rpartition(".")[2] for name in names if name is not None}


# --- what a hooked module calls -----------------------------------------------------------------------------------


def hook(mode: ModeName | None, casting: CastingName | None) -> Callable[..., Any]:
    """Makes the decorator of one module."""
    options = {**DEFAULTS, **read(mode=mode, casting=casting), "returns": True, "hooked": True}

    def below(*decorators: Any) -> Callable[[Any], Any]:
        """The decorator of a function or class, below others that may have checked it already."""
        compiling = torch.compiler.is_compiling()  # a function in a function: the graph checks what is around it
        return _as_it_is if compiling or any(map(_is_apart, decorators)) else enforced

    def enforced(target: Any) -> Any:
        return _enforced(target, options, sys._getframe(1))

    return below


def _as_it_is(target: Any) -> Any:
    return target


def _is_apart(decorator: Any) -> bool:
    while isinstance(decorator, functools.partial):
        decorator = decorator.func
    home = str(getattr(decorator, "__module__", None))
    return any(f"{home}.".startswith(f"{name}.") for name in _APART)


def _enforced(target: Any, options: dict[str, Any], frame: FrameType) -> Any:
    init = vars(target).get("__init__") if isinstance(target, type) else target
    if init is not target and not ("__dataclass_params__" in vars(target) and _is_generated(init)):
        return target
    try:
        made = decorate(target, {**options, "file": written_in(frame)}, names_around(frame))
    except Exception as error:  # reading an annotation runs the code in it
        text = str(error.args[0]) if isinstance(error, TypeError) else f"{type(error).__name__}: {error}"
        warning = DtypeGuardWarning(f"{text}; {UNCHECKED}")
        if init is target:
            warn_of(target, warning)
        else:
            warn_at(frame, warning)
        return target
    note = signed(made)
    return target if note is not None and not note[1].specs else made


def _is_generated(init: Any) -> bool:
    """Whether `dataclass` wrote this `__init__`; another one is a function of the module, or checked already."""
    return getattr(getattr(init, "__code__", None), "co_filename", None) == "<string>"


ImportHook.__module__ = "dtypeguard.results"
