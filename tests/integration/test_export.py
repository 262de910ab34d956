"""Guarded and enforced models leave Python: torch.export, ONNX, TorchScript, FX, quantization, packages.

What leaves computes what the bare model computes, holds the casts that the example input needed and no others, and
does not need dtypeguard to run.
"""

import copy
import io
import subprocess
import sys
import warnings

import onnxruntime
import pytest
import torch
import torch.ao.quantization as quantization
from jaxtyping import Float
from support import F32, F64
from torch import Tensor, nn
from torch.export import Dim
from torch.fx.passes.shape_prop import ShapeProp
from versions import need

import dtypeguard
from dtypeguard import CastWarning, DtypeError, ShapeError, enforce, guard, is_guarded

slow = pytest.mark.slow
DEPTHS = ("auto", "all")
QUICK = ("auto", pytest.param("all", marks=slow))

said = pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")  # where another test says that it warns
jit = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own
ao = pytest.mark.filterwarnings(  # torch's own
    "ignore:torch.ao.quantization is deprecated:DeprecationWarning",
    "ignore:Please use quant_min and quant_max:UserWarning",
    "ignore:.*quantized tensor creation functions:UserWarning",
    "ignore:torch.quantize_per_tensor:UserWarning",
)
pytestmark = pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning",  # torch's own, in its exporters
    "ignore:# The axis name. .* will not be used:UserWarning",  # two inputs share a batch axis, as they should
)


@pytest.fixture(autouse=True)
def _alone():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
        self.head = nn.Linear(4, 2)

    def forward(self, x, bias=None):
        y = self.head(self.body(x))
        return y if bias is None else y + bias


class Nested(nn.Module):
    """Takes and returns containers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, batch, more=()):
        y = self.fc(batch["x"])
        return {"y": y, "sums": [y.sum(), *(part.sum() for part in more)], "ids": batch["ids"] + 1}


class Pair(nn.Module):
    """Two inputs that share a batch axis, by contract."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    @enforce
    def forward(self, a: Float[Tensor, "n 3"], b: Float[Tensor, "n 3"]) -> Float[Tensor, "n"]:
        return (self.fc(a) * b).sum(-1)


class Symbolic(nn.Module):
    """An axis computed from another."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    @enforce
    def forward(self, x: Float[Tensor, "n 3"]) -> Float[Tensor, "2*n+1 3"]:
        y = self.fc(x)
        return torch.cat([y, y, y.new_zeros(1, 3)])


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()

    def forward(self, x):
        return self.relu(self.norm(self.conv(x)))


def rows(dtype=F32, n=5):
    return torch.linspace(-1, 1, n * 3).reshape(n, 3).to(dtype)


def image(dtype=F32):
    return torch.linspace(-1, 1, 50).reshape(1, 2, 5, 5).to(dtype)


def twins(make, **options):
    bare = make().eval()
    return bare, guard(copy.deepcopy(bare), **{"mode": "strict", **options})


def targets(graph):
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]


def casts_in(graph):
    return [target for target in targets(graph) if target in ("aten.to.dtype", "aten._to_copy.default")]


def refuses(model, *inputs):
    with pytest.raises(DtypeError) as caught:
        model(*(inputs or (rows(F64),)))
    return caught.value


# ---------------------------------------------------------------- torch.export


CASES = {
    "plain": (Net, lambda n: (rows(n=n),), ({0: Dim("n")},)),
    "optional argument": (Net, lambda n: (rows(n=n), torch.ones(2)), ({0: Dim("n")}, None)),
    "auto": (Net, lambda n: (rows(n=n),), ({0: Dim.AUTO},)),
    "dynamic": (Net, lambda n: (rows(n=n),), ({0: Dim.DYNAMIC},)),
    "containers": (
        Nested,
        lambda n: ({"x": rows(n=n), "ids": torch.arange(n)}, [rows(), rows(n=2)]),
        ({"x": {0: Dim("n")}, "ids": {0: Dim("m")}}, [None, None]),
    ),
    "named axes over two inputs": (Pair, lambda n: (rows(n=n), rows(n=n)), ({0: Dim("n")}, {0: Dim("n")})),
    "named axes, auto": (Pair, lambda n: (rows(n=n), rows(n=n)), ({0: Dim.AUTO}, {0: Dim.AUTO})),
    "computed axis": (Symbolic, lambda n: (rows(n=n),), ({0: Dim("n", min=2)},)),
}


def exported(name, strict, model):
    _, inputs, shapes = CASES[name]
    return torch.export.export(model, inputs(5), dynamic_shapes=shapes, strict=strict)


def same(got, expected):
    got, expected = (torch.utils._pytree.tree_leaves(value) for value in (got, expected))
    assert all(torch.equal(a, b) and a.dtype is b.dtype for a, b in zip(got, expected, strict=True))


@pytest.mark.thin(4)
@pytest.mark.parametrize("depth", QUICK)
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_an_exported_model_is_the_bare_models_export(name, strict, depth):
    make, inputs, _ = CASES[name]
    bare, model = twins(make, depth=depth)
    program = exported(name, strict, model)
    for n in (5, 7):
        same(program.module()(*inputs(n)), bare(*inputs(n)))
    if make in (Net, Nested):
        expected = exported(name, strict, bare)
        assert targets(program.graph) == targets(expected.graph)
        assert str(program.range_constraints) == str(expected.range_constraints)
        assert list(program.state_dict) == list(expected.state_dict)
    assert casts_in(program.graph) == []
    assert dtypeguard.casts() == []
    if make in (Net, Nested):
        if strict:
            need("torch", "2.10", "placeholders are named by the way to a parameter")
        assert program.graph_signature == expected.graph_signature


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch's own, once in a process
@pytest.mark.parametrize("strict", [True, False])
def test_decomposition_saving_and_loading_keep_the_program(strict, tmp_path):
    bare, model = twins(Net, depth="all")
    program = exported("plain", strict, model)
    decomposed = program.run_decompositions()
    torch.export.save(decomposed, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2")
    for n in (5, 7):
        same(decomposed.module()(rows(n=n)), bare(rows(n=n)))
        same(loaded.module()(rows(n=n)), bare(rows(n=n)))
    assert "dtypeguard" not in decomposed.graph_module.code


@pytest.mark.thin(2)
@pytest.mark.parametrize("depth", QUICK)
@pytest.mark.parametrize("strict", [True, False])
def test_a_cast_that_the_example_needed_is_in_the_program_once(strict, depth):
    bare, model = twins(Net, mode="lenient", depth=depth)
    with pytest.warns(CastWarning, match="`x` was cast from float64 to float32") as told:
        program = torch.export.export(model, (rows(F64),), dynamic_shapes=({0: Dim("n")},), strict=strict)
    assert len(told) == 1
    assert len(casts_in(program.graph)) == 1
    assert len(casts_in(program.run_decompositions().graph)) == 1
    same(program.module()(rows(F64, 7)), bare(rows(n=7)))
    (record,) = dtypeguard.casts()
    assert (record.argument, record.from_dtype, record.to_dtype, record.count) == ("x", F64, F32, 1)


@said
@pytest.mark.parametrize("strict", [True, False])
def test_only_the_leaf_of_a_container_that_needs_it_is_cast(strict):
    bare, model = twins(Nested, mode="lenient")
    given = {"x": rows(F64), "ids": torch.arange(5)}, [rows(F64), rows(F64, 2)]
    program = torch.export.export(model, given, strict=strict)
    assert len(casts_in(program.graph)) == 3
    same(program.module()(*given), bare({"x": rows(), "ids": torch.arange(5)}, [rows(), rows(n=2)]))


@pytest.mark.parametrize("strict", [True, False])
def test_a_wrong_example_is_refused_with_our_words(strict):
    kind = torch._dynamo.exc.Unsupported if strict else DtypeError
    with pytest.raises(kind, match="argument `x` is float64, the module's parameters are float32"):
        torch.export.export(twins(Net)[1], (rows(F64),), strict=strict)
    with dtypeguard.mode("strict"), pytest.raises(kind, match="argument `b` is float64, the module's parameters are"):
        torch.export.export(Pair(), (rows(), rows(F64)), strict=strict)
    kind = torch._dynamo.exc.Unsupported if strict else ShapeError
    for mode in ("strict", "lenient"):
        with dtypeguard.mode(mode), pytest.raises(kind, match="argument `b` has axis n=4, but n=5 in `a`"):
            torch.export.export(Pair(), (rows(), rows(n=4)), strict=strict)


@pytest.mark.filterwarnings("ignore:.*")  # what the failing export logs
@pytest.mark.parametrize("strict", [True, False])
def test_axes_of_one_name_cannot_be_exported_as_two(strict):
    """torch says which dimensions the contract makes equal, and suggests the mend."""
    with pytest.raises(torch._dynamo.exc.UserError, match="must always be equal") as caught:
        torch.export.export(Pair(), (rows(), rows()), dynamic_shapes=({0: Dim("n")}, {0: Dim("m")}), strict=strict)
    assert "m = n" in str(caught.value)


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_contract_between_axes_still_holds(strict):
    program = exported("named axes, auto", strict, Pair())
    with pytest.raises(AssertionError, match=r"b\.size\(\)\[0\] == a\.size\(\)\[0\]"):
        program.module()(rows(n=7), rows(n=6))


def test_an_unflattened_program_has_the_modules_and_their_classes():
    bare, model = twins(Net, depth="all")
    program, expected = torch.export.export(model, (rows(),)), torch.export.export(bare, (rows(),))
    unflattened = torch.export.unflatten(program)
    assert [name for name, _ in unflattened.named_modules()] == [name for name, _ in bare.named_modules()]
    same(unflattened(rows()), bare(rows()))

    def stacks(program):
        nodes = [node for node in program.graph.nodes if node.op == "call_function"]
        return [list(node.meta["nn_module_stack"].values()) for node in nodes]

    assert stacks(program) == stacks(expected)


@jit
@slow
def test_what_was_exported_or_traced_runs_where_dtypeguard_is_not_installed(tmp_path):
    bare, model = twins(Net)
    torch.export.save(exported("plain", False, model), tmp_path / "model.pt2")
    torch.jit.trace(model, rows()).save(tmp_path / "traced.pt")
    torch.save((rows(), bare(rows()).detach()), tmp_path / "example.pt")
    program = (
        "import sys; sys.modules['dtypeguard'] = None\n"
        "import torch\n"
        "x, y = torch.load('example.pt')\n"
        "assert torch.equal(torch.export.load('model.pt2').module()(x), y)\n"
        "assert torch.equal(torch.jit.load('traced.pt')(x), y)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)


@slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # inductor's own
def test_an_exported_program_is_compiled_ahead_of_time(tmp_path):
    bare, model = twins(Net)
    program = exported("plain", False, model)
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    torch.testing.assert_close(torch._inductor.aoti_load_package(package)(rows(n=7)), bare(rows(n=7)))


# ---------------------------------------------------------------- ONNX


def to_onnx(model, inputs, **options):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The exporter|.*legacy")  # torch's own
        return torch.onnx.export(model, inputs, dynamo=True, verbose=False, **options)


def run_onnx(program, *inputs):
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    feed = {node.name: value.numpy() for node, value in zip(session.get_inputs(), inputs, strict=True)}
    return torch.from_numpy(session.run(None, feed)[0])


def operators(program):
    return [node.op_type for node in program.model_proto.graph.node]


@slow
@pytest.mark.parametrize("depth", DEPTHS)
def test_an_onnx_program_computes_what_the_bare_model_computes(depth):
    bare, model = twins(Net, depth=depth)
    program = to_onnx(model, (rows(),), dynamic_shapes={"x": {0: Dim("n")}})
    for n in (5, 7):
        torch.testing.assert_close(run_onnx(program, rows(n=n)), bare(rows(n=n)).detach())
    assert operators(program) == operators(to_onnx(bare, (rows(),), dynamic_shapes={"x": {0: Dim("n")}}))
    assert dtypeguard.casts() == []


@slow
def test_an_onnx_program_holds_the_cast_that_its_example_needed():
    bare, model = twins(Net, mode="lenient")
    with pytest.warns(CastWarning, match="`x` was cast from float64 to float32"):
        program = to_onnx(model, (rows(F64),))
    assert operators(program).count("Cast") == 1
    torch.testing.assert_close(run_onnx(program, rows(F64)), bare(rows()).detach())


@jit
@pytest.mark.filterwarnings("ignore:.*legacy TorchScript-based ONNX:DeprecationWarning")  # torch's own
@pytest.mark.filterwarnings("ignore:The feature will be removed:DeprecationWarning")  # torch's own
def test_the_old_onnx_exporter_traces_a_guarded_model():
    bare, model = twins(Net, depth="all")
    files = []
    for each in (model, bare):
        files.append(io.BytesIO())
        torch.onnx.export(each, (rows(),), files[-1], dynamo=False, input_names=["x"])
    assert files[0].getvalue() == files[1].getvalue()


# ---------------------------------------------------------------- TorchScript


@jit
@pytest.mark.parametrize("depth", DEPTHS)
def test_a_trace_saved_and_frozen_is_the_bare_models(depth, tmp_path):
    bare, model = twins(Net, depth=depth)
    traced, expected = torch.jit.trace(model, rows()), torch.jit.trace(bare, rows())
    assert traced.code == expected.code
    assert [name for name, _ in traced.named_modules()] == [name for name, _ in expected.named_modules()]
    traced.save(tmp_path / "traced.pt")
    for form in (traced, torch.jit.load(tmp_path / "traced.pt"), torch.jit.freeze(traced)):
        same(form(rows(n=7)), bare(rows(n=7)))
    assert torch.jit.trace_module(model, {"forward": rows()}).code == expected.code


# ---------------------------------------------------------------- FX


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("where", ["root", "child"])
def test_symbolic_traces_are_those_of_the_bare_model(where, depth):
    bare, model = twins(Conv, depth=depth)
    if where == "child":
        bare, model = (nn.Sequential(each, nn.Flatten()) for each in (bare, model))
    traced, expected = torch.fx.symbolic_trace(model), torch.fx.symbolic_trace(bare)
    assert traced.code == expected.code
    same(traced(image()), bare(image()))
    ShapeProp(traced).propagate(image())
    assert {node.meta["tensor_meta"].dtype for node in traced.graph.nodes} == {F32}


# ---------------------------------------------------------------- quantization


class Static(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = quantization.QuantStub(), quantization.DeQuantStub()
        self.fc, self.relu = nn.Linear(3, 4), nn.ReLU()

    def forward(self, x):
        return self.dequant(self.relu(self.fc(self.quant(x))))


def converted(model, guard_when=None, depth="auto"):
    for moment in ("made", "prepared", "converted"):
        if moment == "prepared":
            quantization.fuse_modules(model, [["fc", "relu"]], inplace=True)
            model = quantization.prepare(model)
        if moment == "converted":
            model(rows())
            model = quantization.convert(model)
        if moment == guard_when:
            guard(model, mode="strict", depth=depth)
    return model


@ao
@pytest.mark.parametrize(
    ("moment", "depth"), [("made", "auto"), ("prepared", "auto"), ("converted", "auto"), ("converted", "all")]
)
def test_static_quantization_before_and_after_the_guard(moment, depth):
    bare = Static().eval()
    bare.qconfig = quantization.get_default_qconfig("fbgemm")
    model = converted(copy.deepcopy(bare), moment, depth)
    expected = converted(bare)
    assert [type(module).__name__ for module in model.children()] == [
        type(module).__name__ for module in expected.children()
    ]
    same(model(rows()), expected(rows()))
    assert is_guarded(model)
    assert refuses(model).argument == "x"
    assert dtypeguard.casts() == []


# ---------------------------------------------------------------- packages


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")  # torch.package's own
def test_a_guarded_model_in_a_torch_package(tmp_path):
    from torch.package import PackageExporter, PackageImporter

    model = guard(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), mode="strict", depth="all")
    with PackageExporter(tmp_path / "package.pt") as exporter:
        exporter.extern(["torch.**", "dtypeguard.**", "jaxtyping.**"])
        exporter.save_pickle("model", "model.pkl", model)
    loaded = PackageImporter(tmp_path / "package.pt").load_pickle("model", "model.pkl")
    same(loaded(rows()), model(rows()))
    assert is_guarded(loaded)
    assert refuses(loaded).argument == "input"
