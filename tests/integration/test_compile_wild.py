"""torch.compile as people use it: as many graphs as without a guard, the same operations, the same answers.

tests/test_compile.py has the rules; here are the ways in which programs are compiled, changed and compiled again.
"""

import copy
import functools
import itertools
import threading
import warnings

import pytest
import torch
from functorch.compile import make_boxed_func
from jaxtyping import Float, Float32, Int64
from support import BF16, F32, F64
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TorchDynamoException, Unsupported
from torch._dynamo.testing import CompileCounter
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention
from versions import since

import dtypeguard
from dtypeguard import CastWarning, DtypeError, DtypeGuardError, enforce, guard, is_guarded, unguard

slow = pytest.mark.slow
DEPTHS = ("auto", pytest.param("all", marks=slow))

said = pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")  # where another test says that it warns
# Dynamo's own, about every input that has a history.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
inductor = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # inductor's own


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Body(nn.Sequential):
    def forward(self, x):
        for module in self:
            x = module(x)
        return x


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.randn(2))

    def forward(self, input):
        return nn.functional.linear(input, self.weight, self.bias)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = Body(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5))
        self.head = Head()

    def forward(self, x, bias=None):
        y = self.head(self.body(x))
        return y if bias is None else y + bias


class Nested(nn.Module):
    """Inputs and outputs as Hugging Face models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.fc = nn.Embedding(7, 3), nn.Linear(3, 3)

    def forward(self, ids, *, attention_mask=None, past=None, options=None, **more):
        x = self.fc(self.table(ids))
        if attention_mask is not None:
            x = x * attention_mask[..., None]
        past = tuple((k + x.sum(), v) for k, v in past or ())
        return {"last": x, "past": past, "more": more.get("pooled"), "scale": (options or {}).get("scale", 1.0)}


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    @enforce
    def forward(self, a: Float[Tensor, "n 3"], b: Float[Tensor, "n 3"]) -> Float[Tensor, "n 3"]:
        return self.fc(a) + b


@enforce
def add(a: Float32[Tensor, "n d"], b: Float32[Tensor, "n d"]) -> Float32[Tensor, "n d"]:
    return a + b


@enforce
def times(a: Float32[Tensor, "n"], b: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
    return a * b


@enforce
def doubled(a: Float32[Tensor, "n"], both: Float32[Tensor, "2*n"]) -> Float32[Tensor, "n"]:
    return a + both[: a.shape[0]]


@enforce
def flat(*parts: Float32[Tensor, "_ d"], index: Int64[Tensor, "n"] | None = None) -> Float32[Tensor, "n d"]:
    together = torch.cat(parts)
    return together if index is None else together[index]


def rows(dtype=F32, n=5):
    return torch.linspace(-1, 1, n * 3).reshape(n, 3).to(dtype)


def twins(make=Net, **options):
    bare = make()
    return bare, guard(copy.deepcopy(bare), **{"mode": "strict", **options})


class Graphs:
    """A backend that keeps the graphs that it is given."""

    def __init__(self) -> None:
        self.graphs = []

    def __call__(self, module, inputs):
        self.graphs.append(module.graph)
        return module.forward

    def operations(self):
        """Of each graph, without the dead code of the checks."""
        found = [[name(node) for node in graph.nodes if node.op.startswith("call")] for graph in self.graphs]
        found = [[each for each in names if each not in ("getattr", "is_", "is_not", "eq", "ne")] for names in found]
        return [names for names in found if names]

    def casts(self):
        return [each for names in self.operations() for each in names if each in ("to", "float", "_to_copy")]


def name(node):
    return node.target if isinstance(node.target, str) else node.target.__name__


def compiled(model, backend="eager", fullgraph=True, **options):
    return torch.compile(model, backend=backend, fullgraph=fullgraph, **options)


# ---------------------------------------------------------------- as many graphs


def batch_sizes(model, run):
    for n in (5, 6, 9, 1, 2, 5):
        run(rows(n=n))


def grad_modes(model, run):
    for context in (torch.enable_grad, torch.no_grad, torch.inference_mode, torch.enable_grad, torch.no_grad):
        with context():
            run(rows())


def train_and_eval(model, run):
    for training in (True, False, True, False):
        model.train(training)
        run(rows())


def autocast_on_and_off(model, run):
    for dtype in (None, BF16, torch.float16, None, BF16):
        with torch.autocast("cpu", dtype or BF16, enabled=dtype is not None):
            run(rows())


def frozen_parameters(model, run):
    for frozen in (False, True, False):
        model.requires_grad_(not frozen)
        run(rows())


def conversions(model, run):
    for dtype in (F32, F64, BF16, F32):
        model.to(dtype)
        run(rows(dtype))


def new_weights(model, run):
    run(rows())
    model.load_state_dict({key: value * 2 for key, value in model.state_dict().items()})
    run(rows())
    model.load_state_dict({key: value * 2 for key, value in model.state_dict().items()}, assign=True)
    run(rows())


def optional_arguments(model, run):
    run(rows())
    run(rows(), torch.ones(2))
    run(rows(), bias=torch.ones(5, 2))
    run(rows(), None)


def layouts(model, run):
    run(rows())
    run(torch.ones(3, 5).T)
    run(rows(n=10)[::2])
    run(torch.ones(1, 3).expand(5, 3))
    run(nn.Parameter(rows()))


def training_steps(model, run):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        run(rows()).sum().backward()
        optimizer.step()


def modes_of_the_guard(model, run):
    """A call that keeps its contract does not ask for the mode, so a change of it traces nothing anew."""
    run(rows())
    for mode in ("lenient", "strict", "warn", "off"):
        with dtypeguard.mode(mode):
            run(rows())


STORIES = [
    batch_sizes,
    grad_modes,
    train_and_eval,
    autocast_on_and_off,
    frozen_parameters,
    conversions,
    new_weights,
    optional_arguments,
    layouts,
    training_steps,
    modes_of_the_guard,
]


def told(model, story):
    """After each call of a story: how many graphs there are, and what came out."""
    torch._dynamo.reset()
    counter, log = CompileCounter(), []
    call = compiled(model, counter)

    def run(*args, **kwargs):
        torch.manual_seed(0)
        result = call(*args, **kwargs)
        log.append((counter.frame_count, result.dtype, result.detach().clone()))
        return result

    story(model, run)
    return log


@pytest.mark.thin(3)
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_a_guarded_model_is_traced_when_the_bare_one_is_and_answers_the_same(story, depth):
    bare, model = twins(depth=depth, mode=None)
    dtypeguard.set_mode("strict")
    expected, got = told(bare, story), told(model, story)
    assert [(count, dtype) for count, dtype, _ in got] == [(count, dtype) for count, dtype, _ in expected]
    assert all(torch.equal(a, b) for (*_, a), (*_, b) in zip(got, expected, strict=True))
    assert dtypeguard.casts() == []


@pytest.mark.thin(2)
@pytest.mark.parametrize("dynamic", [None, pytest.param(True, marks=slow)])
@pytest.mark.parametrize("function", [add, times, doubled, flat])
def test_an_enforced_function_is_traced_when_its_body_is(function, dynamic, strict):
    """Axes that agree by contract are one symbol; a body that adds its arguments says as much."""

    def counts(target):
        torch._dynamo.reset()
        counter = CompileCounter()
        call = compiled(target, counter, dynamic=dynamic)
        for n in (5, 6, 9, 7):
            call(*ARGUMENTS[function](n))
        return counter.frame_count

    assert counts(function) == counts(function.__wrapped__)


ARGUMENTS = {
    add: lambda n: (rows(n=n), rows(n=n)),
    times: lambda n: (torch.ones(n), torch.ones(n)),
    doubled: lambda n: (torch.ones(n), torch.ones(2 * n)),
    flat: lambda n: (rows(n=n), rows(n=n)),
}


def test_a_model_that_was_compiled_and_is_called_again_needs_no_new_graph():
    """Under a stance that forbids it."""
    _, model = twins()
    call = compiled(model.eval(), dynamic=True)
    call(rows())
    with torch.compiler.set_stance("fail_on_recompile"):
        for n in (5, 6, 7):
            assert torch.equal(call(rows(n=n)), model(rows(n=n)))
    with torch.compiler.set_stance("force_eager"), pytest.raises(DtypeError, match="argument `x` is float64"):
        call(rows(F64))


# ---------------------------------------------------------------- in any order


def compile_outside(model):
    return compiled(model)


def compile_in_place(model):
    model.compile(backend="eager", fullgraph=True)
    return model


def compile_the_method(model):
    model.forward = compiled(model.forward)
    return model


def compile_a_part(model):
    model.head = compiled(model.head)
    return model


def compile_a_part_in_place(model):
    model.body.compile(backend="eager", fullgraph=True)
    return model


WAYS = [compile_outside, compile_in_place, compile_the_method, compile_a_part, compile_a_part_in_place]


@pytest.mark.thin(3)
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("order", [pytest.param("compile, run, guard", marks=slow), "guard, compile, run"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_guard_compile_and_unguard_in_any_order(way, order, depth):
    bare = Net().eval()
    model, expected = copy.deepcopy(bare), bare(rows())
    for step in order.split(", "):
        if step == "guard":
            guard(model, mode="strict", depth=depth)
        elif step == "compile":
            model = way(model)
        else:
            assert torch.equal(model(rows()), expected)
    assert is_guarded(model)
    assert torch.equal(model(rows()), expected)
    with pytest.raises((DtypeError, Unsupported), match="is float64, the module's parameters are float32"):
        model(rows(F64))
    unguard(model)
    assert not is_guarded(model)
    assert torch.equal(model(rows()), expected)
    with pytest.raises((RuntimeError, Unsupported, DtypeError), match="dtype") as caught:
        model(rows(F64))
    if way is not compile_the_method or order.startswith(
        "compile"
    ):  # a method taken from a guarded model stays guarded
        assert "dtypeguard" not in str(caught.value)
    guard(model, mode="strict", depth=depth)
    torch._dynamo.reset()
    assert torch.equal(model(rows()), expected)
    assert list(unguard(model).state_dict()) != []


# ---------------------------------------------------------------- many


def twenty_counts(make, call):
    torch._dynamo.reset()
    counter, counts = CompileCounter(), []
    for _ in range(20):
        call(make(), counter)
        counts.append(counter.frame_count)
    return counts


def run_outside(model, counter):
    call = compiled(model, counter)
    call(rows()), call(rows(n=6))


def run_forward(model, counter):
    call = compiled(model.forward, counter)
    call(rows()), call(rows(n=6))


@pytest.mark.thin(2)
@pytest.mark.parametrize("run", [run_outside, run_forward])
@pytest.mark.parametrize("depth", DEPTHS)
def test_twenty_models_of_one_class_are_compiled_one_by_one(run, depth):
    expected = twenty_counts(Net, run)
    assert twenty_counts(lambda: guard(Net(), mode="strict", depth=depth), run) == expected


@slow
def test_twenty_enforced_functions_in_one_program_and_one_by_one(strict):
    """Written in one place, so alike but for what they close over; Dynamo allows 8 recompiles of one code."""

    def make(n):
        @enforce
        def fn(x: Float32[Tensor, "b d"], by: Float32[Tensor, "d"] | None = None) -> Float32[Tensor, "b d"]:
            return x * n if by is None else x * by

        return fn

    functions = [make(n) for n in range(20)]
    counter = CompileCounter()
    for n, fn in enumerate(functions):
        call = compiled(fn, counter)
        assert torch.equal(call(rows()), rows() * n)
    assert counter.frame_count == 20

    def program(x):
        return sum(fn(x, x[0]) for fn in functions)

    one = CompileCounter()
    assert torch.equal(compiled(program, one)(rows()), program(rows()))
    assert one.frame_count == 1


# ---------------------------------------------------------------- sizes that depend on data


@pytest.fixture
def data_dependent():
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        yield


PAIR = Pair()
PAIR(rows(), rows())
GUARDED_PAIR = guard(Pair(), mode="strict")
MASK = torch.tensor([True, False, True, True, False])


UNBACKED = {
    "x[mask]": lambda x, mask: times(x[mask], x[mask] + 1),
    "x[mask], the same tensor twice": lambda x, mask: times(part := x[mask], part),
    "two arrays, one mask": lambda x, mask: times(x[mask], x.sin()[mask]),
    "nonzero": lambda x, mask: times(x[mask.nonzero().squeeze(1)], x[mask]),
    "computed axis": lambda x, mask: doubled(x[mask], torch.cat([x[mask], x[mask]])),
    "any number of arrays": lambda x, mask: flat(x[mask][:, None], x[:, None], x[mask][:, None]),
    "an enforced method": lambda x, mask: PAIR(x[mask][:, None].expand(-1, 3), x[mask][:, None].expand(-1, 3)),
    "a guarded model": lambda x, mask: GUARDED_PAIR(x[mask][:, None].expand(-1, 3), x[mask][:, None].expand(-1, 3)),
    "repeat": lambda x, mask: times(x.repeat_interleave(mask.long()), x[mask]),
    "unique": lambda x, mask: times(x.unique(), x.unique()),
    "two calls in a row": lambda x, mask: times(times(x[mask], x[mask]), x[mask]),
}


@pytest.mark.thin(4)
@pytest.mark.parametrize("name", UNBACKED)
def test_sizes_that_depend_on_data_are_compared_in_one_graph(name, data_dependent, strict):
    program, counter = UNBACKED[name], CompileCounter()
    call = compiled(program, counter)
    x = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    for mask in (MASK, ~MASK, torch.ones(5, dtype=torch.bool)):
        torch.testing.assert_close(call(x, mask), program(x, mask))
    assert counter.frame_count == 1


def test_a_size_that_depends_on_data_and_breaks_the_contract_fails_at_run_time(data_dependent):
    """While tracing nobody knows; the graph asserts what the contract says."""
    call = compiled(lambda x, mask: times(x[mask], x[~mask]))
    assert call(torch.ones(4), torch.tensor([True, False, True, False])).shape == (2,)
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        call(torch.ones(5), MASK)


@said
def test_a_repair_keeps_a_size_that_depends_on_data(data_dependent):
    graphs = Graphs()
    call = compiled(lambda x, mask: times(x[mask], x[mask].float()), graphs)
    for mask in (MASK, ~MASK):
        part = torch.arange(5.0)[mask]
        assert torch.equal(call(torch.arange(5.0, dtype=F64), mask), part * part)
    assert len(graphs.graphs) == 1


@pytest.mark.thin(4)
@pytest.mark.parametrize("mark", [torch._dynamo.mark_dynamic, torch._dynamo.decorators.mark_unbacked])
@pytest.mark.parametrize("target", ["function", "method", "guarded model"])
def test_marked_sizes_stay_dynamic(mark, target, strict):
    call = {"function": add, "method": Pair(), "guarded model": guard(Pair())}[target]
    counter = CompileCounter()
    fast = compiled(call, counter)
    for n in (5, 6, 9):
        a, b = rows(n=n), rows(n=n)
        mark(a, 0), mark(b, 0)
        assert torch.equal(fast(a, b), call(a, b))
    assert counter.frame_count == 1


# ---------------------------------------------------------------- casts in the graph


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("dynamic", [None, pytest.param(True, marks=slow)])
def test_a_repair_is_one_node_of_the_graph(depth, dynamic):
    bare, model = twins(mode="lenient", depth=depth)
    bare.eval(), model.eval()
    graphs = Graphs()
    call = compiled(model, graphs, dynamic=dynamic)
    with pytest.warns(CastWarning, match="`x` was cast from float64 to float32") as said:
        assert torch.equal(call(rows(F64)), bare(rows()))
    assert len(said) == 1
    assert torch.equal(call(rows(F64)), bare(rows()))
    assert len(graphs.graphs) == 1
    assert len(graphs.casts()) == 1
    assert torch.equal(call(rows()), bare(rows()))
    assert len(graphs.graphs) == 2
    assert len(graphs.casts()) == 1


@said
@pytest.mark.parametrize("target", ["enforced", "guarded"])
def test_eager_repairs_beside_a_compiled_one_trace_nothing_anew(target):
    """What eager calls remember about repairs, of this model and of others of its class, is no matter of the graph."""
    make = Pair if target == "enforced" else lambda: guard(Pair(), mode="lenient")
    model, others = make(), [make(), make()]
    model(rows(), rows())
    counter = CompileCounter()
    call = compiled(model, counter)
    wide = rows(F64), rows()
    for _ in range(2):
        call(*wide)
        for other in (model, *others):
            other(*wide)
        others.pop()
    dtypeguard.reset_casts()
    call(*wide)
    assert counter.frame_count == 1


@said
def test_the_decomposed_graph_has_one_copy_forwards_and_one_home():
    seen = []

    def keep(module, inputs):
        seen.append([node for node in module.graph.nodes if node.target is torch.ops.aten._to_copy.default])
        return make_boxed_func(module.forward)

    x = rows(F64).requires_grad_()
    call = compiled(guard(Net().eval(), mode="lenient"), aot_autograd(fw_compiler=keep, bw_compiler=keep))
    call(x).square().sum().backward()
    assert [len(nodes) for nodes in seen] == [1, 1]
    assert x.grad.dtype is F64


@inductor
@said
@slow
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("depth", DEPTHS)
def test_inductor_trains_a_guarded_model(mode, depth):
    bare, model = twins(mode="lenient", depth=depth)
    bare.eval(), model.eval()
    call = torch.compile(model, mode=mode, fullgraph=True)
    for dtype in (F32, F64):
        x, y = rows(dtype).requires_grad_(), rows().requires_grad_()
        call(x).square().sum().backward()
        bare(y).square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad.to(dtype))


# ---------------------------------------------------------------- refusals


BROKEN = {
    "function, dtype": (lambda: add, (rows(), rows(F64))),
    "function, axis": (lambda: add, (rows(), rows(n=4))),
    "function, rank": (lambda: add, (rows(), rows()[0])),
    "function, other type": (lambda: add, (rows(), None)),
    "function, computed axis": (lambda: doubled, (torch.ones(3), torch.ones(5))),
    "function, *args": (lambda: flat, (rows(), rows(F64))),
    "method, dtype": (Pair, (rows(), rows(BF16))),
    "method, axis": (Pair, (rows(), rows(n=4))),
    "model": (lambda: guard(Net()), (rows(F64),)),
    "model, second argument": (lambda: guard(Net()), (rows(F64), torch.ones(2, dtype=F64))),
    "model, container": (
        lambda: guard(Nested()),
        (torch.tensor([[1, 2]]), {"past": (([rows(F64)] * 2),)}),
    ),
    "model, integers to floats": (lambda: guard(nn.Linear(3, 2), casting="safe"), (rows(F64),)),
}


def headline_of(call, arguments):
    keywords = arguments[-1] if isinstance(arguments[-1], dict) else {}
    with pytest.raises((DtypeGuardError, Unsupported)) as caught:
        call(*[value for value in arguments if not isinstance(value, dict)], **keywords)
    return caught.value


@pytest.mark.thin(8)
@pytest.mark.parametrize(
    ("what", "mode"),
    list(itertools.product(BROKEN, ("strict", "lenient"))),
)
def test_compiled_code_refuses_with_the_words_of_eager(what, mode):
    make, arguments = BROKEN[what]
    target = make()
    repairable = mode == "lenient" and what in (
        "function, dtype",
        "function, *args",
        "method, dtype",
        "model",
        "model, second argument",
        "model, container",
    )
    with dtypeguard.mode(mode):
        if repairable:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CastWarning)
                keywords = arguments[-1] if isinstance(arguments[-1], dict) else {}
                given = [value for value in arguments if not isinstance(value, dict)]
                got, expected = compiled(target)(*given, **keywords), target(*given, **keywords)
            assert str(torch.utils._pytree.tree_structure(got)) == str(torch.utils._pytree.tree_structure(expected))
            return
        eager = headline_of(target, arguments)
        words = str(eager).splitlines()[0]
        broken = headline_of(compiled(target, fullgraph=False), arguments)
        assert (type(broken), broken.code) == (type(eager), eager.code)
        told = f"{words} [{eager.code}]; {'the same call without torch.compile' if eager.fix is None else 'fix: '}"
        assert str(broken).splitlines()[0] == words or str(broken).startswith(told)
        torch._dynamo.reset()
        full = headline_of(compiled(target), arguments)
        assert type(full) is Unsupported
        assert told in str(full)
        assert type(eager).__name__ in str(full)


def test_a_refusal_can_be_caught_inside_compiled_code(strict):
    """As a program that falls back does."""

    def program(x):
        try:
            return add(x, x)
        except DtypeError:
            return x.float() * 2

    call = compiled(program)
    assert torch.equal(call(rows()), rows() * 2)
    assert torch.equal(call(rows(F64)), rows() * 2)


@pytest.mark.thin(2)
@pytest.mark.parametrize("mode", ["warn", "off"])
def test_modes_that_let_pass_leave_the_refusal_to_torch(mode):
    with dtypeguard.mode(mode), pytest.raises(Exception, match="dtype"):
        compiled(guard(Net()))(rows(F64))
    with dtypeguard.mode(mode):
        assert compiled(add)(rows(F64), rows(F64)).dtype is F64


# ---------------------------------------------------------------- graph breaks


class Breaking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x):
        y = self.first(x)
        torch._dynamo.graph_break()
        return self.second(y.relu())


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_graph_break_inside_a_body_leaves_the_same_graphs(depth):
    bare, model = twins(Breaking, depth=depth)
    got, expected = Graphs(), Graphs()
    fast, slow = compiled(model, got, fullgraph=False), compiled(bare, expected, fullgraph=False)
    for n in (5, 6, 7, 5):
        assert torch.equal(fast(rows(n=n)), slow(rows(n=n)))
    assert got.operations() == expected.operations() != []
    with pytest.raises(DtypeError, match="argument `x` is float64"):
        fast(rows(F64))


# ---------------------------------------------------------------- inputs as people have them


@pytest.mark.parametrize("depth", DEPTHS)
def test_nested_inputs_are_checked_in_one_graph(depth):
    bare, model = twins(Nested, depth=depth)
    calls = [
        ({"ids": torch.tensor([[1, 2]])}),
        ({"ids": torch.tensor([[1, 2]]), "attention_mask": torch.ones(1, 2, dtype=torch.int64)}),
        ({"ids": torch.tensor([[1, 2]]), "past": ((rows(), rows()), (rows(), rows()))}),
        ({"ids": torch.tensor([[1, 2]]), "options": {"scale": 2.0}, "pooled": [rows(), {"deep": rows()}]}),
    ]
    for keywords in calls:
        got, expected = Graphs(), Graphs()
        torch._dynamo.reset()
        result, wanted = compiled(model, got)(**keywords), compiled(bare, expected)(**keywords)
        assert got.operations() == expected.operations()
        leaves = zip(*map(torch.utils._pytree.tree_leaves, (result, wanted)), strict=True)
        assert all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in leaves)
    with pytest.raises(Unsupported, match=r"argument `past\[0\]\[1\]` is float64"):
        compiled(model)(torch.tensor([[1, 2]]), past=((torch.tensor(1), rows(F64)), (rows(F64), torch.tensor(1))))


@said
def test_only_the_wrong_leaf_of_a_nested_input_is_cast_in_the_graph():
    model, graphs = guard(Nested(), mode="lenient"), Graphs()
    past = ((torch.tensor(1), torch.tensor(1)), (rows(F64), torch.tensor(1)))
    result = compiled(model, graphs)(torch.tensor([[1, 2]]), past=past)
    assert len(graphs.casts()) == 1
    assert result["past"][1][0].dtype is F32
    assert past[1][0].dtype is F64


# ---------------------------------------------------------------- higher-order operators


LAYER = guard(nn.Linear(3, 3), mode="strict")
OPERATORS = {
    "cond": lambda x: torch.cond(x.sum() > 0, lambda x: add(x, x), lambda x: add(x, -x), (x,)),
    "cond, guarded": lambda x: torch.cond(x.sum() > 0, lambda x: LAYER(x), lambda x: x.sin(), (x,)),
    "while_loop": lambda x: while_loop(
        lambda i, x: i < 3, lambda i, x: (i + 1, add(x, x)), (torch.tensor(0), x.clone())
    )[1],
    "scan": lambda x: scan(lambda c, y: (times(c, y), times(c, y).clone()), x[0].clone(), x)[1],
    "vmap": lambda x: torch.vmap(times)(x, x),
    "vmap, guarded": lambda x: torch.vmap(LAYER)(x),
    "grad": lambda x: torch.func.grad(lambda x: times(x, x).sum())(x[0]),
    "per-sample gradients": lambda x: torch.vmap(torch.func.grad(lambda x: LAYER(x).square().sum()))(x),
    "jacrev": lambda x: torch.func.jacrev(LAYER)(x[0]),
    "checkpoint": lambda x: torch.utils.checkpoint.checkpoint(LAYER, x, use_reentrant=False),
}


UNKNOWN = {"vmap, guarded": since("torch", "2.10", "Dynamo cannot trace `vmap` of a module, guarded or not")}


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", [pytest.param(name, marks=UNKNOWN.get(name, ())) for name in OPERATORS])
def test_higher_order_operators_call_enforced_and_guarded_code(name, strict):
    program, counter = OPERATORS[name], CompileCounter()
    call = compiled(program, counter)
    for x in (rows() + 2, rows() - 2):
        torch.testing.assert_close(call(x), program(x))
    assert counter.frame_count == 1
    assert dtypeguard.casts() == []


@said
@pytest.mark.parametrize("name", [pytest.param("cond", marks=slow), pytest.param("grad", marks=slow), "vmap"])
def test_a_repair_inside_a_higher_order_operator(name):
    program = OPERATORS[name]
    x = rows(F64) + 2
    torch.testing.assert_close(compiled(program)(x), program(x))
    assert dtypeguard.casts()


# ---------------------------------------------------------------- below Dynamo


@slow
@pytest.mark.parametrize("depth", ["auto", "all"])
def test_a_deep_copy_of_a_compiled_guarded_model_runs_its_own_weights(depth):
    call = compiled(guard(Net().eval(), mode="strict", depth=depth))
    call(rows())
    twin = copy.deepcopy(call)
    for parameter in twin.parameters():
        nn.init.zeros_(parameter)
    assert twin(rows()).abs().sum() == 0 != call(rows()).abs().sum()
    with pytest.raises(Unsupported, match="argument `x` is float64"):
        twin(rows(F64))


@enforce
@torch.library.custom_op("wild::scale", mutates_args=(), schema="(Tensor x, float by) -> Tensor")
def scale(x: Float32[Tensor, "n"], by: float) -> Float32[Tensor, "n"]:
    return x * by


@scale.register_fake
def _(x, by):
    return torch.empty_like(x)


@slow
def test_an_enforced_custom_operator_is_one_node_of_the_graph():
    graphs = Graphs()
    call = compiled(lambda x: scale(x, 2.0) + 1, graphs)
    assert call(torch.ones(3)).tolist() == [3.0] * 3
    nodes = [str(node.target) for node in graphs.graphs[0].nodes if node.op == "call_function"]
    assert nodes.count("wild.scale.default") == 1
    with pytest.warns(CastWarning, match="`x` was cast from float64 to float32"):
        assert call(torch.ones(3, dtype=F64)).dtype is F32
    assert len(graphs.casts()) == 1
    with dtypeguard.mode("strict"), pytest.raises(Unsupported, match="scale: argument `x` is float64"):
        call(torch.ones(3, dtype=F64))


@slow
def test_compiled_autograd_runs_a_guarded_models_backward():
    bare, model = twins()
    bare.eval(), model.eval()
    with torch._dynamo.compiled_autograd._enable(functools.partial(compiled, fullgraph=True)):
        model(rows()).square().sum().backward()
    bare(rows()).square().sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), bare.parameters(), strict=True))


@enforce
def score(score: Float32[Tensor, ""], b, h, q, k) -> Float32[Tensor, ""]:
    return score * 2


@enforce
def attend(
    q: Float32[Tensor, "b h t d"], k: Float32[Tensor, "b h s d"], v: Float32[Tensor, "b h s d"]
) -> Float32[Tensor, "b h t d"]:
    return flex_attention(q, k, v, score_mod=score)


@slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")  # torch's own
def test_flex_attention_inside_an_enforced_function_with_an_enforced_score(strict):
    q = torch.linspace(-1, 1, 512).reshape(1, 2, 16, 16)
    counter = CompileCounter()
    torch.testing.assert_close(compiled(attend, counter)(q, q, q), attend(q, q, q))
    assert counter.frame_count == 1
    with pytest.raises(Unsupported, match="argument `v` has axis s=8, but s=16 in `k`"):
        compiled(attend)(q, q, q[:, :, :8])


def by_item(x, count):
    n = count.item()
    return times(torch.zeros(n), torch.ones(n))


def test_a_size_from_item_is_compared_in_one_graph(data_dependent, strict):
    counter = CompileCounter()
    call = compiled(by_item, counter)
    for n in (3, 4, 7):
        assert torch.equal(call(torch.ones(5), torch.tensor(n)), torch.zeros(n))
    assert counter.frame_count == 1


@said
def test_one_tensor_passed_twice_is_cast_once_in_the_graph():
    graphs = Graphs()
    x = torch.ones(5, dtype=F64)
    assert compiled(lambda x: times(x, x), graphs)(x).dtype is F32
    assert len(graphs.casts()) == 1


@said
def test_a_lenient_model_becomes_strict_while_compiled():
    model = guard(Net().eval(), mode="lenient")
    call = compiled(model)
    assert call(rows(F64)).dtype is F32
    guard(model, mode="strict")
    with pytest.raises(Unsupported, match="argument `x` is float64"):
        call(rows(F64))
    guard(model, mode="lenient", dtype=F64, skip_args=("bias",))
    with pytest.raises(Exception, match="dtype"):
        call(rows())


def test_an_eager_call_between_compiled_ones_traces_nothing_anew(strict):
    for model in (Pair(), guard(Pair()), Net(), guard(Net())):
        torch._dynamo.reset()
        arguments = (rows(), rows()) if isinstance(model, Pair) else (rows(),)
        counter = CompileCounter()
        call = compiled(model, counter)
        call(*arguments)
        model(*arguments)
        call(*arguments)
        assert counter.frame_count == 1


@said
def test_threads_with_modes_of_their_own_share_a_compiled_model():
    """One after the other, and in each the mode is the thread's own."""
    model = guard(Net().eval())
    call = compiled(model)
    outcomes = []

    def work(mode):
        with dtypeguard.mode(mode):
            try:
                outcomes.append(call(rows(F64)).dtype)
            except Exception as error:
                outcomes.append("argument `x` is float64, the module's parameters are float32" in str(error))

    for mode in ("lenient", "strict", "lenient", "strict"):
        thread = threading.Thread(target=work, args=(mode,))
        thread.start()
        thread.join()
    assert outcomes == [F32, True, F32, True]


def test_torchs_own_error_comes_out_of_a_compiled_guarded_model_as_out_of_the_bare_one():
    bare, model = twins()
    errors = []
    for each in (bare, model):
        torch._dynamo.reset()
        with pytest.raises(Exception, match=r"cannot be multiplied|fake tensor call|same reduction dim") as caught:
            compiled(each)(torch.ones(2, 7))
        errors.append(caught.value)
    assert all(isinstance(error, TorchDynamoException) for error in errors)  # of one class before torch 2.15


BACKENDS = ("eager", "aot_eager_decomp_partition")


@inductor
@said
@pytest.mark.parametrize("backend", ["aot_eager", *(pytest.param(name, marks=slow) for name in BACKENDS)])
@pytest.mark.parametrize(
    "target",
    ["guarded model", pytest.param("enforced function", marks=slow), pytest.param("containers", marks=slow)],
)
def test_gradients_come_home_in_the_callers_dtype(target, backend):
    bare = Net().eval()
    model = guard(copy.deepcopy(bare), mode="lenient")
    programs = {
        "guarded model": (lambda x: model(x), lambda x: bare(x.float())),
        "enforced function": (lambda x: add(x, x.float()), lambda x: x.float() + x.float()),
        "containers": (lambda x: flat(x, x.float(), x), lambda x: torch.cat([x.float()] * 3)),
    }
    x, y = rows(F64).requires_grad_(), rows(F64).requires_grad_()
    program, expected = programs[target]
    compiled(program, backend)(x).square().sum().backward()
    expected(y).square().sum().backward()
    assert x.grad.dtype is F64
    torch.testing.assert_close(x.grad, y.grad)


@slow
@said
def test_a_repair_before_a_graph_break():
    bare = Breaking()
    model = guard(copy.deepcopy(bare), mode="lenient")
    graphs = Graphs()
    fast = compiled(model, graphs, fullgraph=False)
    x = rows(F64).requires_grad_()
    for _ in range(2):
        result = fast(x)
        assert torch.equal(result, bare(rows()))
    result.sum().backward()
    assert x.grad.dtype is F64
    assert {record.argument for record in dtypeguard.casts()} == {"x"}


@slow
def test_after_a_refusal_the_compiled_model_goes_on():
    model = guard(Net().eval(), mode="strict")
    for fullgraph in (True, False):
        torch._dynamo.reset()
        call = compiled(model, fullgraph=fullgraph)
        for _ in range(2):
            assert torch.equal(call(rows()), model(rows()))
            with pytest.raises((DtypeError, Unsupported), match="argument `x` is float64"):
                call(rows(F64))
