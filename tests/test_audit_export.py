"""Programs that export, trace and compile in an audit: what comes out is the same, and its faults are said."""

import io
import re
import subprocess
import sys
import textwrap
import types

import numpy as np
import pytest
import torch
from support import BF16, F32, F64
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.utils.flop_counter import FlopCounterMode
from versions import since

import dtypeguard

SERIOUS = ("warning", "error")

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated:DeprecationWarning"),  # torch's own
    pytest.mark.filterwarnings("ignore:`torch.jit.trace_method` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:torch.tensor results are registered as constants"),
    pytest.mark.filterwarnings("ignore:To copy construct from a tensor"),
]


def found(report, rule):
    assert report.faults == []
    return [f for f in report.findings if f.rule == rule]


class Base(nn.Module):
    def __init__(self, **buffers):
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(3, 3)
        for name, value in buffers.items():
            self.register_buffer(name, value)


def Net(function, **buffers):  # noqa: N802  # it makes a class
    """A float32 model with this forward: torch keeps the lines of functions of that name."""
    forward = types.FunctionType(function.__code__.replace(co_name="forward"), globals())
    return type("Net", (Base,), {"forward": forward})(**buffers)


def doubles():
    return torch.from_numpy(np.array([0.1, 0.2, 0.3]))


# ---------------------------------------------------------------- float64 in an exported graph


def subtracts(net, x):
    return net.fc((x - net.mean).to(x.dtype))


def scales(net, x):
    return net.fc((x * net.scale).float())


def makes_a_constant(net, x):
    return net.fc(x) + torch.tensor(np.array([1.0, 2.0, 3.0]))


def counts(net, x):
    return net.fc(x) * torch.arange(3, dtype=F64)


def takes_doubles(net, x):
    return net.fc(x.float()) + x


def follows(net, x):
    return x.type_as(net.mean).sum() + net.fc(x).sum()


def in_two_places(net, x):
    y = (x - net.mean).float()
    return net.fc((y / net.std).float())


WITH_FLOAT64 = {
    "a buffer": (lambda: Net(subtracts, mean=doubles()), F32, "x - net.mean",
                 "`sub` of the exported graph is float64, the parameters are float32: buffer `mean` is float64"),
    "a buffer of a bfloat16 model": (lambda: fixed_buffer(Net(subtracts, mean=doubles())), BF16, "x - net.mean",
                 "`sub` of the exported graph is float64, the parameters are bfloat16: buffer `mean` is float64"),
    "an attribute": (lambda: attribute(Net(scales)), F32, "x * net.scale",
                     "`mul` of the exported graph is float64, the parameters are float32: constant `scale` is float64"),
    "a constant in forward": (lambda: Net(makes_a_constant), F32, "np.array([1", "constant `lifted_tensor_0`"),
    "a factory": (lambda: Net(counts), F32, "torch.arange", "`arange`, `mul` of the exported graph are float64"),
    "an input": (lambda: Net(takes_doubles), F64, "net.fc(x.float()) + x", "input `x` is float64"),
    "a dtype that is followed": (lambda: Net(follows, mean=doubles()), F32, "x.type_as(net.mean)", "buffer `mean`"),
}  # fmt: skip


def fixed_buffer(net):
    net.fc.bfloat16()
    return net


def attribute(net):
    net.scale = doubles()
    return net


def example(dtype):
    return (torch.linspace(0, 1, 6).reshape(2, 3).to(dtype),)


@pytest.mark.thin(3)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(("make", "dtype", "source", "message"), WITH_FLOAT64.values(), ids=WITH_FLOAT64)
def test_float64_that_nobody_asked_for(make, dtype, source, message, strict):
    with dtypeguard.audit() as report:
        torch.export.export(make(), example(dtype), strict=strict)
    (finding,) = found(report, "DG801")
    assert finding.severity == "warning"
    assert source in finding.source
    assert message in finding.message
    assert f"(exported at tests/{__file__.rpartition('/')[2]}:" in finding.message
    assert finding.module_path == "Net"
    assert finding.to_dtype is F64
    assert [f for f in report.findings if f.severity in SERIOUS] == [finding]


def test_the_origin_of_a_buffer_is_told():
    with dtypeguard.audit() as report:
        torch.export.export(Net(subtracts, mean=doubles()), example(F32))
    (finding,) = found(report, "DG801")
    assert finding.origin[0].startswith("torch.from_numpy(np.array([0.1, 0.2, 0.3])) at ")
    assert finding.op == "aten.sub.Tensor"
    assert "`.float()` on what comes from NumPy" in finding.fix


def test_each_place_is_told_once_with_its_module():
    model = nn.Sequential(nn.Linear(3, 3), Net(in_two_places, mean=doubles(), std=doubles()))
    with dtypeguard.audit(model) as report:
        torch.export.export(model, example(F32))
    one, other = found(report, "DG801")
    assert (one.source, other.source) == ("y = (x - net.mean).float()", "return net.fc((y / net.std).float())")
    assert "buffer `1.mean`" in one.message
    assert "buffer `1.std`" in other.message
    assert {one.module_path, other.module_path} == {"Sequential.1"}
    assert one.origin


def test_a_default_dtype_that_leaked():
    torch.set_default_dtype(F64)
    try:
        with dtypeguard.audit() as report:
            net = Net(lambda net, x: net.fc(x) + torch.linspace(0, 1, 3)).float()
            torch.export.export(net, example(F32))
    finally:
        torch.set_default_dtype(F32)
    (finding,) = found(report, "DG801")
    assert (finding.severity, "`linspace` makes float64" in finding.message) == ("warning", True)


def computes_in_double(net, x):
    return net.fc(x.double().cumsum(-1).float())


def positions(net, x):
    angles = torch.arange(3, dtype=F64) * 0.1
    return net.fc(x) + angles.cos().float()


def a_float64_parameter(net, x):
    return net.fc(x) * net.gain


def gain(net):
    net.gain = nn.Parameter(torch.ones(3, dtype=F64))
    return net


MEANT = {
    "a cast": (lambda: Net(computes_in_double), "casts to float64"),
    "angles": (lambda: Net(positions), "`arange` makes float64"),
    "a parameter": (lambda: gain(Net(a_float64_parameter)), "parameter `gain` is float64"),
}


@pytest.mark.parametrize(("make", "message"), MEANT.values(), ids=MEANT)
def test_float64_that_is_meant_is_information(make, message):
    with dtypeguard.audit() as report:
        torch.export.export(make(), example(F32))
    (finding,) = found(report, "DG801")
    assert finding.severity == "info"
    assert message in finding.message


NONE = {
    "a float32 model": (lambda: Net(subtracts, mean=doubles().float()), F32),
    "a float64 model": (lambda: Net(subtracts, mean=doubles()).double(), F64),
    "a buffer that is cast at once": (lambda: Net(lambda net, x: net.fc(x - net.mean.float()), mean=doubles()), F32),
    "a buffer that nobody uses": (lambda: Net(lambda net, x: net.fc(x), mean=doubles()), F32),
    "a scalar": (lambda: Net(lambda net, x: net.fc(x) * net.scale, scale=torch.tensor(2.0, dtype=F64)), F32),
    "factories": (lambda: Net(lambda net, x: net.fc(x) + torch.linspace(0, 1, 3) + torch.arange(3) / 3), F32),
    "an input that is cast at once": (lambda: Net(lambda net, x: net.fc(x.float())), F64),
    "integers": (lambda: Net(lambda net, x: net.fc(x.float()) * torch.ones(3, dtype=torch.int64)), torch.int64),
    "no parameters": (lambda: nn.Sequential(nn.ReLU()), F64),
    "batch norm and dropout": (lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout()), F32),
    "attention": (lambda: nn.TransformerEncoderLayer(3, 1, 4, batch_first=True), F32),
}


@pytest.mark.thin(2)
@pytest.mark.parametrize(("make", "dtype"), NONE.values(), ids=NONE)
def test_a_healthy_export_is_silent(make, dtype):
    with dtypeguard.audit() as report:
        torch.export.export(make(), example(dtype))
    assert found(report, "DG801") == []
    assert [f for f in report.findings if f.severity in SERIOUS] == []


# ---------------------------------------------------------------- what comes out is the same


def told(program):
    """All of an exported program that can be compared."""
    nodes = [(n.name, str(n.target), str(n.meta.get("val")), n.meta.get("stack_trace")) for n in program.graph.nodes]
    state = {name: tensor.tolist() for name, tensor in program.state_dict.items()}
    return program.graph_module.code, str(program.graph_signature), nodes, state, str(program.range_constraints)


def exports(strict):
    batch = torch.export.Dim("batch", max=64)
    net = Net(subtracts, mean=doubles())
    shapes = {"x": {0: batch}}
    program = torch.export.export(net, example(F32), dynamic_shapes=shapes, strict=strict)
    return told(program), told(program.run_decompositions()), program.module()(*example(F32))


@pytest.mark.thin(2)
@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_is_the_same(strict):
    alone = exports(strict)
    with dtypeguard.audit() as report:
        watched = exports(strict)
    assert report.faults == []
    assert watched[:2] == alone[:2]
    assert torch.equal(watched[2], alone[2])


@since("torch", "2.13", "what is exported under a counter of flops fails, watched or not")
def test_in_nested_audits_and_under_a_mode_of_the_program():
    alone = exports(False)
    with FlopCounterMode(display=False) as expected:
        exports(False)
    with dtypeguard.audit() as outer, dtypeguard.audit() as inner, FlopCounterMode(display=False) as flops:
        watched = exports(False)
    assert watched[:2] == alone[:2]
    assert flops.get_total_flops() == expected.get_total_flops()
    for report in (outer, inner):
        (finding,) = found(report, "DG801")
        assert finding.count == 1


def standing():
    owners = torch, torch.export._trace, torch.export.ExportedProgram, torch.jit, torch.jit._trace, nn.Module
    stack = torch.utils._python_dispatch._len_torch_dispatch_stack()
    return [{name: id(value) for name, value in vars(owner).items()} for owner in owners], stack


@pytest.mark.parametrize("strict", [False, True])
def test_an_export_that_raises_leaves_nothing(strict):
    def branches(net, x):
        return net.fc(x) if x.sum() > 0 else x

    def error():
        with pytest.raises(Exception, match=r"data-dependent|dynamic control flow|Could not guard") as caught:
            torch.export.export(Net(branches), example(F32), strict=strict)
        return type(caught.value)

    before, alone = standing(), error()
    with dtypeguard.audit() as report:
        inside = standing()
        assert error() is alone
        assert standing() == inside
        torch.ones(3, dtype=F32).to(BF16)
    assert standing() == before
    assert [f.rule for f in found(report, "DG103")] == ["DG103"]  # it sees again what comes afterwards


FIRST = """
    import sys, torch
    from torch.export import export
    import dtypeguard
    assert "torch.export._trace" not in sys.modules
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(3, 3)
            self.register_buffer("mean", torch.ones(3, dtype=torch.float64))
        def forward(self, x):
            return self.fc((x - self.mean).float())
    with dtypeguard.audit():
        torch.ones(3).sum()
    assert "torch.export._trace" not in sys.modules
    with dtypeguard.audit() as outer, dtypeguard.audit() as report:
        program = {call}(Net(), (torch.ones(2, 3),), strict={strict})
    assert "dtypeguard" not in torch.export._trace._export.__code__.co_filename
    for r in (outer, report):
        assert r.faults == [], r.faults
        assert {{f.rule for f in r.findings}} == {{"{rule}"}}, r.findings
    again = export(Net(), (torch.ones(2, 3),), strict={strict})
    assert program.graph_module.code == again.graph_module.code
"""
# Imported by name before the audit, it is seen from a process's second export on; the first is a program like others.
FIRST_CALLS = [("torch.export.export", "DG801"), ("export", "DG101")]


@pytest.mark.slow
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(("call", "rule"), FIRST_CALLS)
def test_the_first_export_of_a_program(call, rule, strict):
    script = textwrap.dedent(FIRST).format(call=call, rule=rule, strict=strict)
    run = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr[-2000:]


# ---------------------------------------------------------------- compile


def step(x):
    return (x.sin() * 2).sum()


@pytest.fixture
def compiled():
    torch._dynamo.reset()
    counter = CompileCounter()
    yield torch.compile(step, backend=counter), counter
    torch._dynamo.reset()


def test_a_function_that_is_called_in_the_audit_first_is_compiled_afterwards(compiled):
    function, counter = compiled
    x = torch.randn(3)
    with dtypeguard.audit() as report:
        assert torch.equal(function(x), step(x))
    assert report.faults == []
    assert counter.frame_count == 0
    assert torch.equal(function(x), step(x))
    assert counter.frame_count == 1


def test_a_function_that_was_compiled_before_is_not_compiled_again(compiled):
    function, counter = compiled
    x = torch.randn(3)
    function(x)
    with dtypeguard.audit() as report, dtypeguard.audit():
        assert torch.equal(function(x), step(x))
        function(torch.randn(5))
    function(x)
    assert report.faults == []
    assert counter.frame_count == 1


def test_a_whole_graph_may_be_asked_for():
    torch._dynamo.reset()
    counter = CompileCounter()
    with dtypeguard.audit():
        function = torch.compile(step, backend=counter, fullgraph=True)
        function(torch.ones(2))
    function(torch.ones(2))
    assert counter.frame_count == 1


# ---------------------------------------------------------------- dtypes in a trace


def follows_the_input(net, x):
    return net.fc(x) * (x > 0).to(x.dtype)


def makes_like_the_input(net, x):
    return net.fc(x) + torch.zeros(3, dtype=x.dtype)


def follows_a_tensor(net, x):
    return net.fc(x) + torch.arange(3).to(net.fc.weight)


def helper(x):
    return (x > 0).to(dtype=x.dtype)


BAKED = {
    "to": (follows_the_input, "`to`"),
    "zeros": (makes_like_the_input, "`zeros`"),
    "a tensor": (follows_a_tensor, "`to`"),
}


@pytest.mark.thin(5)
@pytest.mark.parametrize(("forward", "op"), BAKED.values(), ids=BAKED)
@pytest.mark.parametrize("dtype", [F32, F64, BF16])
def test_a_dtype_that_a_trace_holds(forward, op, dtype):
    with dtypeguard.audit() as report:
        traced = torch.jit.trace(Net(forward).to(dtype), example(dtype))
        traced(*example(dtype))
    (finding,) = found(report, "DG802")
    assert finding.severity == "info"
    assert finding.source.startswith("traced = torch.jit.trace(")
    line = forward.__code__.co_firstlineno + 1
    name = str(dtype).removeprefix("torch.")
    assert finding.message == f"the trace holds {op} at tests/test_audit_export.py:{line} as {name}"
    assert finding.to_dtype is dtype


@pytest.mark.parametrize(("forward", "op"), BAKED.values(), ids=BAKED)
@pytest.mark.parametrize("call", [False, True])
def test_it_is_a_fault_once_the_module_is_converted(forward, op, call):
    with dtypeguard.audit() as report:
        traced = torch.jit.trace(Net(forward), example(F32))
        traced.to(BF16)
        if call:
            traced(*example(BF16))
    (finding,) = found(report, "DG802")
    assert finding.severity == "warning"
    assert finding.message.endswith("as float32, and the module was converted to bfloat16 since")


def test_it_is_a_fault_once_it_is_given_something_else():
    class Masks(nn.Module):
        def forward(self, x, y):
            return x * y.to(x.dtype)

    x = torch.ones(3)
    with dtypeguard.audit() as report:
        traced = torch.jit.trace(Masks(), (x, x))
        traced(x, x)
        assert [f.severity for f in found(report, "DG802")] == ["info"]
        assert traced(x.bfloat16(), x.bfloat16()).dtype is F32
    (finding,) = found(report, "DG802")
    assert finding.severity == "warning"
    assert finding.message.endswith("as float32, and it was given bfloat16 since")


NOT_BAKED = {
    "in the graph": lambda net, x: net.fc(x) + torch.zeros_like(x) + x.new_ones(3) + torch.arange(3).type_as(x),
    "by name": lambda net, x: net.fc(x).float().softmax(-1).to(torch.float32),
    "a factory by name": lambda net, x: net.fc(x) + torch.zeros(3, dtype=torch.float32),
    "the default": lambda net, x: net.fc(x) + torch.zeros(3) + torch.linspace(0, 1, 3),
    "a number": lambda net, x: net.fc(x) * torch.tensor(0.5),
    "integers": lambda net, x: net.fc(x) * (x > 0).to(torch.int64),
    "nothing": lambda net, x: net.fc(x),
}


@pytest.mark.parametrize("forward", NOT_BAKED.values(), ids=NOT_BAKED)
@pytest.mark.parametrize("convert", [False, True])
def test_what_a_trace_does_not_hold(forward, convert):
    with dtypeguard.audit() as report:
        traced = torch.jit.trace(Net(forward), example(F32))
        if convert:
            traced.double()
        else:
            traced(*example(F32))
    assert found(report, "DG802") == []


def test_functions_and_methods_are_traced_too():
    with dtypeguard.audit() as report:
        torch.jit.trace(helper, torch.ones(3))
        torch.jit.trace_module(Net(follows_the_input), {"forward": example(F32)})
        torch.jit.trace(Net(follows_the_input).forward, example(F32))
    assert [f.severity for f in found(report, "DG802")] == ["info"] * 3
    assert [f.count for f in found(report, "DG802")] == [1, 1, 1]


@pytest.mark.filterwarnings("ignore:You are using the legacy TorchScript-based ONNX export:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The feature will be removed:DeprecationWarning")
def test_onnx_by_torchscript_is_the_same():
    """A division by a number: torch's exporter computes it itself, and takes the number for a tensor below a mode."""

    def export():
        file = io.BytesIO()
        torch.onnx.export(Net(lambda self, x, *rest: x.div(-2).exp()), example(F32), file, dynamo=False)
        return file.getvalue()

    expected = export()
    with dtypeguard.audit() as report:
        assert export() == expected
    assert report.faults == []


def test_a_graph_of_torchscript_is_the_same():
    """As counters of FLOPs make it, fvcore's for one."""

    def graph():
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
        return str(torch.jit._get_trace_graph(model, (torch.ones(1, 3, 8, 8),))[0])

    expected = graph()
    with dtypeguard.audit() as report:
        assert graph() == expected
    assert report.faults == []


def test_an_explanation_of_graphs_is_the_same():
    with dtypeguard.audit() as report:
        explained = torch._dynamo.explain(Net(follows_the_input))(*example(F32))
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)
    assert report.faults == []


@pytest.mark.parametrize("forward", [*(row[0] for row in BAKED.values()), *NOT_BAKED.values()])
def test_a_trace_is_the_same(forward):
    def trace():
        traced = torch.jit.trace(Net(forward), example(F32))
        texts = str(traced.inlined_graph), traced.code
        # Not the comments: the innermost line of `torch.tensor` is that of the function that stands in for it.
        return *(re.sub(r"___torch_mangle_\d+\.| # .*", "", text) for text in texts), traced(*example(F32))

    alone = trace()
    with dtypeguard.audit() as report, dtypeguard.audit():
        watched = trace()
    assert report.faults == []
    assert watched[:2] == alone[:2]
    assert torch.equal(watched[2], alone[2])


def test_a_traced_module_dies_when_the_program_lets_go_of_it():
    import gc
    import weakref

    with dtypeguard.audit() as report:
        traced = torch.jit.trace(Net(follows_the_input), example(F32))
        known = weakref.ref(traced)
        del traced
        gc.collect()
        assert known() is None
    assert [f.severity for f in found(report, "DG802")] == ["info"]


# ---------------------------------------------------------------- script


def test_a_module_is_scripted_first_in_an_audit():
    class Attention(nn.MultiheadAttention):  # not one that torch has scripted before
        pass

    attention, x = Attention(4, 2), torch.randn(3, 1, 4)
    with dtypeguard.audit() as outer, dtypeguard.audit() as report:
        scripted = torch.jit.script(attention)
    assert outer.faults == report.faults == []
    assert torch.equal(scripted(x, x, x)[0], attention(x, x, x)[0])


def test_a_scripted_class_finds_the_names_around_it():
    def double(x: int) -> int:
        return 2 * x

    class Pair:
        def __init__(self, x: int):
            self.x = double(x)

    with dtypeguard.audit(), dtypeguard.audit():
        pair = torch.jit.script(Pair)
    assert pair(3).x == 6
