"""`install_import_hook`: what of a package is enforced, what is left alone, and what does not change otherwise."""

import asyncio
import importlib
import inspect
import pickle
import subprocess
import sys
import textwrap
import typing
import zipfile

import jaxtyping
import pytest
import torch
from versions import since

import dtypeguard
from dtypeguard import DtypeError, DtypeGuardWarning, HintError, ShapeError, install_import_hook

HEAD = """\
import contextlib, dataclasses, functools, typing
from collections.abc import Iterator
import torch
from beartype import beartype
from jaxtyping import Float, Float32, jaxtyped
from torch import Tensor, nn
import dtypeguard

Row = Float32[Tensor, "n"]
typecheck = jaxtyped(typechecker=beartype)
"""
SHOP = """
def loss(x: Row, y: Row) -> Float32[Tensor, ""]:
    return (x - y).sum()

def count(n: int) -> int:
    return n

def strings(x: "Row", later: "Later | None" = None) -> "Row":
    return x

def outer(by):
    def inner(x: Row) -> Row:
        return x + by
    return inner

def stream(x: Row) -> Iterator[Row]:
    yield x

async def later(x: Row) -> Row:
    return x

@contextlib.contextmanager
def block(x: Row):
    yield x

@functools.lru_cache
def cached(n: int):
    return n

def result(x):
    return _double(x)

def _double(x) -> Row:
    return x

class Later:
    def method(self, x: Row) -> "Later":
        return self

@dataclasses.dataclass
class Pair:
    x: Row
    y: Row

@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: Row

@dataclasses.dataclass
class Constructed:
    x: Row
    def __init__(self, x: Row):
        self.x = x

class Named(typing.NamedTuple):
    x: Row
    def double(self) -> Row:
        return self.x * 2

class Net(nn.Module):
    def __init__(self, n: int = 3):
        super().__init__()
        self.fc = nn.Linear(n, 1)

    def forward(self, x: Float[Tensor, "b 3"]) -> Float[Tensor, "b 1"]:
        return self.fc(x)

    @staticmethod
    def static(x: Row): return x

    @classmethod
    def of_class(cls, x: Row): return x

    @property
    def prop(self) -> Row: return torch.ones(3, dtype=torch.float64)

    @prop.setter
    def prop(self, value: Row): pass

    @torch.no_grad()
    def without(self, x: Row): return x

    class Inner:
        def method(self, x: Row): return x

def fails(x: Row):
    raise RuntimeError("inside")
"""
ALONE = """
def plain(x): return x
def anything(x: typing.Any) -> typing.Any: return x

@typing.overload
def either(x: Row) -> Row: ...
@typing.overload
def either(x: int) -> int: ...
def either(x): return x

@typing.no_type_check
def free(x: Row): return x

@typing.no_type_check
class Free:
    def method(self, x: Row): return x

class Dict(typing.TypedDict):
    x: Row

@dtypeguard.enforce(mode="lenient")
def mine(x: Row) -> Row: return x

@typecheck
def theirs(x: Row) -> Row: return x

@jaxtyped(typechecker=beartype)
def theirs_too(x: Row) -> Row: return x

@jaxtyped(typechecker=beartype)
@dataclasses.dataclass
class Theirs:
    x: Row
"""


def f64(n=3):
    return torch.zeros(n, dtype=torch.float64)


def f32(n=3):
    return torch.zeros(n)


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes modules, `market_in_stall` as market/stall.py; what is imported of them is forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    before = set(sys.modules)

    def to(**modules):
        for name, source in modules.items():
            file = tmp_path / (name.replace("_in_", "/") + ".py")
            file.parent.mkdir(exist_ok=True)
            file.write_text(textwrap.dedent(source))
        importlib.invalidate_caches()
        return tmp_path

    yield to
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def shop(write):
    write(shop=HEAD + SHOP + ALONE)
    with install_import_hook("shop", mode="strict"):
        return importlib.import_module("shop")


def _enter(block):
    with block:
        pass


WRONG = {
    "a function": (lambda m: m.loss(f64(), f32()), DtypeError, "loss: argument `x` is float64"),
    "its axes": (lambda m: m.loss(f32(), f32(2)), ShapeError, "loss: argument `y` has axis n=2, but n=3 in `x`"),
    "a hint without a tensor": (lambda m: m.count("1"), HintError, "count: argument `n` is a str"),
    "annotations in quotes": (lambda m: m.strings(f64()), DtypeError, "strings: argument `x`"),
    "a result": (lambda m: m.result(f64()), DtypeError, "_double: the result is float64"),
    "a function in a function": (lambda m: m.outer(1)(f64()), DtypeError, "inner: argument `x`"),
    "a generator": (lambda m: list(m.stream(f64())), DtypeError, "stream: argument `x`"),
    "a coroutine": (lambda m: asyncio.run(m.later(f64())), DtypeError, "later: argument `x`"),
    "below a decorator": (lambda m: _enter(m.block(f64())), DtypeError, "block: argument `x`"),
    "below a cache": (lambda m: m.cached("1"), HintError, "cached: argument `n`"),
    "a dataclass": (lambda m: m.Pair(f32(), f32(4)), ShapeError, "Pair.__init__: argument `y`"),
    "a frozen one with slots": (lambda m: m.Frozen(f64()), DtypeError, "Frozen.__init__: argument `x`"),
    "a constructor of its own": (lambda m: m.Constructed(f64()), DtypeError, "Constructed.__init__: argument `x`"),
    "a method of a NamedTuple": (lambda m: m.Named(f64()).double(), DtypeError, "Named.double: the result"),
    "a forward": (lambda m: m.Net()(f64()[None]), DtypeError, "`x` is float64, the module's parameters are float32"),
    "an __init__": (lambda m: m.Net("3"), HintError, "Net.__init__: argument `n`"),
    "a static method": (lambda m: m.Net.static(f64()), DtypeError, "Net.static: argument `x`"),
    "a class method": (lambda m: m.Net.of_class(f64()), DtypeError, "Net.of_class: argument `x`"),
    "a property": (lambda m: m.Net().prop, DtypeError, "Net.prop: the result"),
    "a setter": (lambda m: setattr(m.Net(), "prop", f64()), DtypeError, "Net.prop: argument `value`"),
    "below no_grad": (lambda m: m.Net().without(f64()), DtypeError, "Net.without: argument `x`"),
    "a class in a class": (lambda m: m.Net.Inner().method(f64()), DtypeError, "Net.Inner.method: argument `x`"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_enforced(shop, name):
    call, error, text = WRONG[name]
    with pytest.raises(error) as caught:
        call(shop)
    assert type(caught.value) is error
    assert text in str(caught.value)


def test_what_is_left_alone(shop):
    for name in ("plain", "anything", "either", "free", "theirs", "theirs_too"):
        inside = inspect.unwrap(getattr(shop, name), stop=lambda fn: hasattr(fn, "__dtypeguard__"))
        assert not hasattr(inside, "__dtypeguard__"), name
    assert len(typing.get_overloads(shop.either)) == 2
    assert shop.Free().method(f64()).dtype is torch.float64
    assert (shop.Named(f64()).x.dtype, shop.Dict(x=1)) == (torch.float64, {"x": 1})
    for theirs in (shop.theirs, shop.theirs_too, shop.Theirs):
        with pytest.raises(jaxtyping.TypeCheckError):
            theirs(f64())
    with pytest.warns(dtypeguard.CastWarning):  # its own mode counts, and it is checked once
        assert shop.mine(f64()).dtype is torch.float32
    assert not hasattr(shop.mine.__wrapped__, "__dtypeguard__")


def test_right_calls_give_what_they_gave(shop):
    assert shop.cached(3) == 3
    shop.cached.cache_clear()
    assert shop.strings(f32(), shop.Later()).shape == (3,)
    assert isinstance(shop.Later().method(f32()), shop.Later)
    x = f32()
    assert shop.Pair(x, x).x is x
    net = shop.Net()
    assert torch.equal(net(torch.ones(2, 3)), net.fc(torch.ones(2, 3)))
    assert dtypeguard.guard(shop.Net(), mode="strict").forward.__dtypeguard__[0].__name__ == "forward"


def test_classes_and_functions_are_pickled(shop):
    assert pickle.loads(pickle.dumps(shop.loss)) is shop.loss
    assert pickle.loads(pickle.dumps(shop.Frozen(f32()))).x.shape == (3,)
    assert type(pickle.loads(pickle.dumps(shop.Net()))) is shop.Net


def test_source_and_lines_are_those_of_the_file(shop):
    lines = (HEAD + SHOP + ALONE).splitlines()
    for name, first in [
        ("loss", "def loss"), ("block", "@contextlib"), ("Pair", "@dataclasses"), ("mine", "@dtypeguard"),
        ("Net", "class Net"), ("theirs_too", "@jaxtyped(typechecker=beartype)"),
    ]:  # fmt: skip
        source, number = inspect.getsourcelines(getattr(shop, name))
        assert source[0].startswith(first)
        assert lines[number - 1] == source[0].rstrip()
    with pytest.raises(RuntimeError) as caught:
        shop.fails(f32())
    assert caught.traceback[-1].lineno == lines.index('    raise RuntimeError("inside")')
    assert caught.traceback[-1].path.name == "shop.py"


def test_a_tracer_sees_no_line_that_the_source_does_not_have(write):
    source = (
        '"""Doc."""\n# nothing\n\nfrom __future__ import annotations\nimport torch\n\n\ndef f(x: int):\n    return x\n'
    )
    write(traced=source)
    seen = set()

    def trace(frame, event, argument):
        if frame.f_code.co_filename.endswith("traced.py"):
            seen.add(frame.f_lineno)
            return trace
        return None

    with install_import_hook("traced"):
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            module = importlib.import_module("traced")
        finally:
            sys.settrace(before)
    assert seen <= {0, 1, 4, 5, 8}
    assert module.__doc__ == "Doc."
    assert module.f(1) == 1


def test_compiled_code_is_one_graph(shop):
    def calls(x):
        return shop.loss(shop.outer(1)(x), shop.strings(x))

    compiled = torch.compile(calls, fullgraph=True, backend="eager")
    assert compiled(f32()) == 3
    with pytest.raises(torch._dynamo.exc.Unsupported, match="strings: argument `x` is float64"):
        torch.compile(shop.strings, fullgraph=True, backend="eager")(f64())


# ---------------------------------------------------------------- which modules


FILES = {
    "market_in___init__": "from .stall import sell\nfrom . import deep\nfrom jaxtyping import Float32\n",
    "market_in_stall": HEAD + "def sell(x: Row) -> Row: return x\n",
    "market_in_deep": HEAD + "from .stall import sell as again\ndef dig(x: Row) -> Row: return again(x)\n",
    "other": "",
    "marketing": HEAD + "def sell(x: Row) -> Row: return x\n",
}


def test_a_package_means_its_submodules_and_nothing_of_like_name(write):
    write(**FILES)
    with install_import_hook(["market.deep", "other", "market"], mode="strict") as hook:
        market, marketing = importlib.import_module("market"), importlib.import_module("marketing")
        assert hook.missing() == ["other"]
        hook.packages = ("market",)
        hook.remove()
    for wrong in (market.sell, market.deep.dig):
        with pytest.raises(DtypeError):
            wrong(f64())
    assert marketing.sell(f64()).dtype is torch.float64


def test_a_module_of_a_package_can_be_meant_alone(write):
    write(**FILES)
    with install_import_hook("market.stall", mode="strict"):
        market = importlib.import_module("market")
    with pytest.raises(DtypeError):
        market.sell(f64())
    assert not hasattr(market.deep.dig, "__dtypeguard__")


def test_a_package_may_hook_itself(write):
    hooked = (
        "import dtypeguard\nwith dtypeguard.install_import_hook(__name__, mode='strict'):\n    from . import stall\n"
    )
    write(market_in___init__=hooked, market_in_stall=FILES["market_in_stall"])
    with pytest.raises(DtypeError):
        importlib.import_module("market").stall.sell(f64())


def test_a_module_that_runs_as_the_program(write):
    source = FILES["market_in_stall"] + "print(__name__, sell(torch.zeros(3, dtype=torch.float64)).dtype)\n"
    init = "import dtypeguard\ndtypeguard.install_import_hook(__name__)\n"
    folder = write(market_in___init__=init, market_in_stall=source)
    command = [sys.executable, "-m", "market.stall"]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert run.stdout == "__main__ torch.float32\n"
    assert "CastWarning: sell: `x` was cast from float64 to float32" in run.stderr


def test_what_is_imported_already_is_named(write):
    write(**FILES)
    importlib.import_module("market")
    with pytest.warns(DtypeGuardWarning) as said:
        hook = install_import_hook("market")
    hook.remove()
    assert said[0].filename == __file__
    assert str(said[0].message) == (
        "install_import_hook: market (and 2 more modules) is imported already, and stays unchecked: install the hook "
        "before the import"
    )


def test_a_name_that_nothing_has_is_named_at_once():
    with pytest.warns(DtypeGuardWarning, match="there is no package 'marcet', 'marcet.stall' to be") as said:
        install_import_hook(["marcet", "marcet.stall"]).remove()
    assert [warning.filename for warning in said] == [__file__]


def test_a_package_that_is_not_imported_is_named_at_the_end(write):
    write(**FILES)
    text = "no module of 'market' was imported while the hook was installed"
    with pytest.warns(DtypeGuardWarning, match=text) as said, install_import_hook("market"):
        pass
    assert "market" not in sys.modules
    assert said[0].filename == __file__
    with pytest.raises(KeyError), install_import_hook("market"):  # the error is what counts
        raise KeyError


@pytest.mark.parametrize(
    ("packages", "options", "error", "text"),
    [
        (3, {}, TypeError, "packages takes the name of a package such as 'mypackage', or several names, not 3 (int)"),
        (["a", None], {}, TypeError, "or several names, not None (NoneType)"),
        ([], {}, ValueError, "packages is empty: name at least one package"),
        ("my-package", {}, ValueError, "packages: 'my-package' is no name of a module: write it as in `import`"),
        ("a", {"mode": "loud"}, ValueError, "mode='loud' is not a mode: use one of 'strict', "),
        ("a", {"casting": "any"}, ValueError, "casting='any' is not a casting: use one of 'safe', "),
    ],
)
def test_bad_arguments(packages, options, error, text):
    before = [*sys.meta_path]
    with pytest.raises(error) as caught:
        install_import_hook(packages, **options)
    assert text in str(caught.value)
    assert sys.meta_path == before


def test_off_installs_nothing(write):
    write(shop=HEAD + SHOP)
    before = [*sys.meta_path]
    with install_import_hook("shop", mode="off"):
        assert sys.meta_path == before
        assert importlib.import_module("shop").loss.__code__.co_filename.endswith("shop.py")
    code = "import sys; before = [*sys.meta_path]; import dtypeguard; dtypeguard.install_import_hook('x').remove(); "
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code + "print(sys.meta_path == before)"],
        env={"PATH": "", "DTYPEGUARD_MODE": "off", "PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert run.stdout == "True\n"


# ---------------------------------------------------------------- modes


def test_the_mode_is_that_of_the_call_unless_the_hook_has_one(write):
    write(shop=HEAD + SHOP)
    with install_import_hook("shop", casting="promote"):
        shop = importlib.import_module("shop")
    integers = torch.zeros(3, dtype=torch.int64)
    with dtypeguard.mode("strict"), pytest.raises(DtypeError):
        shop.strings(integers)
    with pytest.warns(dtypeguard.CastWarning):
        assert shop.strings(integers).dtype is torch.float32
    with dtypeguard.mode("off"):
        assert shop.strings(integers) is integers


def test_a_base_below_a_directory_counts_for_modules_there(write):
    folder = write(shop=HEAD + SHOP)
    with install_import_hook("shop"):
        shop = importlib.import_module("shop")
    dtypeguard.set_mode("strict", under=folder)
    with pytest.raises(DtypeError):
        shop.loss(f64(), f32())


# ---------------------------------------------------------------- what cannot be read


UNREAD = {
    "malformed": ("def f(x: \"Float32[Tensor, 'a,b']\", y: Row = None): return x", "axis `a,b` has a comma"),
    "an expression that raises": ("def f(x: '1 / 0'): return x", "division by zero"),
    "a dataclass": ("@dataclasses.dataclass\nclass f:\n    x: \"Float32[Tensor, 'a,b']\"", "axis `a,b` has a comma"),
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_cannot_be_read_is_named_and_left_as_it_is(write, name):
    source, text = UNREAD[name]
    folder = write(odd=HEAD + source)
    with install_import_hook("odd", mode="strict"), pytest.warns(DtypeGuardWarning, match=text) as said:
        odd = importlib.import_module("odd")
    (warning,) = said
    assert warning.filename == str(folder / "odd.py")
    assert warning.lineno == len(HEAD.splitlines()) + 1
    assert str(warning.message).endswith("; install_import_hook leaves it unchecked")
    odd.f(f64())


def test_a_name_that_only_a_type_checker_imports_leaves_its_argument_unchecked(write):
    lines = """
        from __future__ import annotations
        from typing import TYPE_CHECKING
        import torch
        from jaxtyping import Float32
        from torch import Tensor
        if TYPE_CHECKING:
            from nowhere import Config
        def f(x: Float32[Tensor, "n"], config: Config) -> Config: return config
        def g(config: Config): return config
        """
    write(odd=lines)
    with install_import_hook("odd", mode="strict"):
        odd = importlib.import_module("odd")
    with pytest.warns(DtypeGuardWarning, match="name 'Config' is not defined.*leaves it unchecked"):
        assert odd.f(f32(), 3) == 3
    assert odd.f(f32(), 3) == 3
    with pytest.raises(DtypeError, match="argument `x`"):
        odd.f(f64(), 3)
    with pytest.warns(DtypeGuardWarning, match="Config"):
        assert odd.g(3) == 3


def test_a_zipped_package_is_imported_unchecked_and_named(tmp_path, monkeypatch):
    archive = tmp_path / "zipped.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("zipped.py", HEAD + SHOP)
    monkeypatch.syspath_prepend(archive)
    try:
        with (
            install_import_hook("zipped", mode="strict"),
            pytest.warns(
                DtypeGuardWarning, match="zipped is in an archive, and install_import_hook leaves it unchecked"
            ),
        ):
            zipped = importlib.import_module("zipped")
    finally:
        sys.modules.pop("zipped", None)
    assert zipped.strings(f64()).dtype is torch.float64


# ---------------------------------------------------------------- bytecode


@since("jaxtyping", "0.3.4", "its hook may take the bytecode of a module without checks for its own")
def test_bytecode_of_each_kind_has_files_of_its_own(write):
    folder = write(shop=HEAD + SHOP)
    kinds = {"plain": None, "ours": {"mode": "strict"}, "lenient": {}, "theirs": "theirs"}
    for _ in range(2):  # the second time from the files
        for kind, options in kinds.items():
            sys.modules.pop("shop", None)
            if kind == "plain":
                shop = importlib.import_module("shop")
            elif kind == "theirs":
                with jaxtyping.install_import_hook("shop", "beartype.beartype"):
                    shop = importlib.import_module("shop")
            else:
                with install_import_hook("shop", **options):
                    shop = importlib.import_module("shop")
            expected = {"ours": DtypeError, "theirs": jaxtyping.TypeCheckError}.get(kind)
            if expected is not None:
                with pytest.raises(expected) as caught:
                    shop.strings(f64())
                assert type(caught.value) is expected
            elif kind == "lenient":
                with pytest.warns(dtypeguard.CastWarning):
                    assert shop.strings(f64()).dtype is torch.float32
                dtypeguard.reset_casts()
            else:
                assert shop.strings(f64()).dtype is torch.float64
    assert len([*folder.glob("__pycache__/shop.*.pyc")]) == len(kinds)
    assert len([*folder.glob("__pycache__/shop.*.dtypeguard*.pyc")]) == 2


def test_under_the_hook_of_jaxtyping_a_package_stays_jaxtypings(write):
    write(shop=HEAD + SHOP)
    theirs = jaxtyping.install_import_hook("shop", "beartype.beartype")
    with theirs, install_import_hook("shop"):
        shop = importlib.import_module("shop")
    with pytest.raises(jaxtyping.TypeCheckError):
        shop.loss(f64(), f32())
