"""What an audit must never do: change a result, leave something behind, keep something alive, fall over."""

import asyncio
import contextlib
import copy
import gc
import json
import os
import pickle
import subprocess
import sys
import threading
import time
import types
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch._dynamo  # replaces functions of torch when it is imported, which some programs here would do
import torch.nn.functional as F
from support import BF16, F16, F32, F64, assert_same
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import dtypeguard
from dtypeguard import audit

BAD = {"warning", "error"}

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),  # torch's own, in jacfwd
    pytest.mark.filterwarnings("ignore:`torch.jit.trace"),  # torch's own
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),  # torch's own, in its encoder
]


def harmful(report):
    return [(f.rule, f.severity, f.message) for f in report.findings if f.severity in BAD]


# ---------------------------------------------------------------- results


def train(model, data, steps=3, autocast=None, scaler=None, optimizer=None):
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=autocast or BF16, enabled=autocast is not None):
            loss = model(data).float().square().mean()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        losses.append(loss.detach())
    return losses, [p.detach() for p in model.parameters()], [p.grad for p in model.parameters()]


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 4))


def trains_under_float16_autocast_with_a_scaler():
    return train(mlp(), torch.randn(5, 8), autocast=F16, scaler=torch.amp.GradScaler("cpu", init_scale=2.0**10))


def encoder(**options):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=True).eval()


PADDED = torch.tensor([[False, False, False, True], [False, False, True, True]])


def an_encoder_takes_its_fast_path_without_gradients():
    model, x = encoder(), torch.randn(2, 4, 16)
    with torch.no_grad():
        return model(x), model(x, src_key_padding_mask=PADDED)


def sparse_tensors():
    table = nn.Embedding(10, 4, sparse=True)
    table(torch.tensor([1, 2, 2])).sum().backward()
    matrix = torch.eye(4).to_sparse()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = torch.eye(4).to_sparse_csr()
    return table.weight.grad, matrix @ torch.randn(4, 2), matrix.double().coalesce(), rows @ torch.randn(4, 2)


def nested_tensors():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        strided = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)])
        jagged = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged)
    net = nn.Linear(3, 2)
    return net(strided), list(net(jagged).unbind()), list((jagged.half() * 2).unbind())


def functional_transforms():
    def loss(w, x):
        return (x @ w).tanh().square().sum()

    w, x = torch.randn(3, 2), torch.randn(5, 3)
    return (
        torch.func.grad(loss)(w, x),
        torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(w, x),
        torch.func.jacrev(lambda w: (x @ w).tanh())(w),
        torch.func.jacfwd(lambda w: (x @ w).tanh())(w),
        torch.func.hessian(lambda w: loss(w, x))(w),
        torch.func.vmap(lambda x: x.double() * 2, randomness="different")(x),
        torch.func.functional_call(nn.Linear(3, 2), {"weight": w.t(), "bias": torch.zeros(2)}, x),
    )


def recomputed_activations():
    net = mlp()
    x = torch.randn(5, 8, requires_grad=True)
    out = []
    for reentrant in (True, False):
        with torch.autocast("cpu", dtype=BF16):
            y = checkpoint(net, x, use_reentrant=reentrant)
        y.float().sum().backward()
        out += [y, x.grad.clone(), *(p.grad.clone() for p in net.parameters())]
    return out


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 3 * x**2


def functions_of_ones_own():
    x = torch.randn(4, requires_grad=True)
    y = Cube.apply(x)
    y.sum().backward()
    assert torch.autograd.gradcheck(Cube.apply, torch.randn(3, dtype=F64, requires_grad=True))
    return y, x.grad


def double_gradient(parameter):
    parameter.grad.mul_(2)


def hooks_of_the_user():
    net, seen = mlp(), []
    net[0].register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    net[0].register_forward_hook(lambda m, args, out: out.bfloat16().float())
    net[4].register_forward_hook(lambda m, args, kwargs, out: out + 1, with_kwargs=True)
    net[4].register_full_backward_hook(lambda m, inputs, outputs: seen.append(outputs[0]))
    net[4].weight.register_post_accumulate_grad_hook(double_gradient)
    x = torch.randn(5, 8, requires_grad=True)
    x.register_hook(lambda gradient: gradient * 3)
    net(x).sum().backward()
    return x.grad, seen, [p.grad for p in net.parameters()]


def a_branch_by_cond():
    x = torch.randn(4)
    return [torch.cond(y.sum() > 0, lambda x: x.cos(), lambda x: x.double().sin().float(), (y,)) for y in (x, -x)]


def a_model_that_compiles_in_place():
    torch._dynamo.reset()
    net = Attends()
    net.compile(backend="eager", fullgraph=True)
    return net(torch.randn(1, 2, 4, 8)), net(torch.randn(1, 2, 5, 8))


class Labelled(torch.Tensor):
    """A subclass with `__torch_function__` and something of its own."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(out, cls):
            out.label = "made"
        return out


class Wrapped(torch.Tensor):
    """A wrapper subclass: its tensor is inside."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args = tuple(a.inner if isinstance(a, cls) else a for a in args)
        out = func(*args, **(kwargs or {}))
        return cls(out) if isinstance(out, torch.Tensor) else out


class Made(torch.Tensor):
    """As PyTorch's notes on extending it have it."""

    def __new__(cls, data, *, label=""):
        made = super().__new__(cls, data)
        made.label = label
        return made


def subclasses_that_are_called():
    made, lists = Made(torch.randn(3), label="x"), Labelled([1.0, 2.0])
    assert type(made) is Made
    assert made.label == "x"
    assert type(lists) is Labelled
    return [t.as_subclass(torch.Tensor) for t in (made, made.half(), lists * 2)], torch.Tensor([1.0, 2.0])


def subclasses_of_tensor():
    labelled = torch.randn(3).as_subclass(Labelled)
    doubled = labelled * 2
    assert doubled.label == "made"
    assert type(doubled) is Labelled
    wrapped = Wrapped(torch.randn(3))
    result = (wrapped + 1).to(F16)
    assert type(result) is Wrapped
    parameter = nn.Parameter(torch.randn(3).as_subclass(Labelled))
    return doubled.as_subclass(torch.Tensor), result.inner, parameter.detach().as_subclass(torch.Tensor)


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Naming(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


def modes_of_the_user_inside():
    net, x = mlp().eval(), torch.randn(5, 8)
    with Counting() as counting:
        y = net(x).half()
    with Naming() as naming:
        z = net(x).half()
    return y, z, counting.names, naming.names


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return F.scaled_dot_product_attention(self.fc(x), x, x) + torch.tensor(1.0)


def traces_of_fx():
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.randn(4, 8)
    graphs = [make_fx(lambda x: x.half().float() * 2, tracing_mode=mode)(x) for mode in ("real", "fake", "symbolic")]
    symbolic = torch.fx.symbolic_trace(mlp().eval())
    return [g(x) for g in graphs], [g.code for g in graphs], symbolic(x), symbolic.code


def inference_tensors():
    with torch.inference_mode():
        x = torch.ones(3)
        x += 1
        y = x.double() * 2
        y[0] = 3
    return x.clone(), y.clone(), (x * 2).half()


def meta_tensors():
    with torch.device("meta"):
        net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Embedding(10, 4))
        x = torch.randn(3, 4)
    out = net[:2](x).half() + torch.ones(4, device="meta", dtype=F16)
    net.to_empty(device="cpu")
    for parameter in net.parameters():
        nn.init.constant_(parameter, 0.5)
    return out, list(net.parameters())


def random_numbers():
    generator = torch.Generator().manual_seed(3)
    return (
        torch.rand(3), torch.randn(3, generator=generator), torch.randperm(5), torch.bernoulli(torch.full((4,), 0.5)),
        F.dropout(torch.ones(8)), torch.empty(3).uniform_(), torch.distributions.Normal(0.0, 1.0).sample((2,)),
        torch.multinomial(torch.ones(5), 2), F.gumbel_softmax(torch.zeros(4)), np.random.rand(2).tolist(),
    )  # fmt: skip


def conversions_of_every_kind():
    x = torch.randn(2, 3)
    out = torch.empty(2, 3, dtype=F64)
    torch.add(x, 1, out=out)
    target = torch.zeros(3, dtype=torch.int32)
    target[0] = 1.5
    target.copy_(torch.tensor([1.0, 2.0, 3.0]))
    canvas = torch.zeros(3, dtype=F16)
    canvas[[0, 1]] = torch.ones(2, dtype=F16)
    return (
        x.to(F16), x.half().double(), x.type(BF16), x.int(), x.bool(), x.char(), x.to("cpu", BF16, copy=True),
        x.to(torch.zeros(1, dtype=F64)), x.type_as(canvas), x.view(torch.int32), out, target, canvas,
        torch.cat([x, x.half()]), torch.where(x > 0, x, 0.0), x + torch.tensor(1.0, dtype=F64), x.sum(dtype=F64),
        x.softmax(0, dtype=F64), torch.result_type(x, 1.0), (x > 0) + 1, x.long() // 2, x.numpy().sum().item(),
        torch.from_numpy(np.ones(3)), torch.as_tensor(np.float64(3)), torch.tensor([np.float64(1)]), x.tolist(),
        torch.from_dlpack(np.ones(3)), torch.frombuffer(bytearray(16), dtype=F32), torch.asarray([1.0]),
    )  # fmt: skip


def parameters_that_are_swapped():
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        net, other = mlp(), mlp()
        net(torch.randn(2, 8))
        other.load_state_dict(net.state_dict())
        net.bfloat16()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    return net.state_dict(), other.state_dict()


def tensors_that_are_swapped():
    one, two = torch.ones(3) * 2, nn.Parameter(torch.zeros(2, dtype=F64))
    three, four = torch.ones(3).half(), nn.Parameter(torch.ones(2))
    torch.utils.swap_tensors(one, three)
    torch.utils.swap_tensors(two, four)
    return one, two, three, four


class Unhashable(nn.Module):
    __hash__ = None

    def __eq__(self, other):
        raise TypeError("not comparable")

    def forward(self, x):
        return x * 2


class Falsy(nn.ModuleList):
    def __bool__(self):
        raise TypeError("neither true nor false")

    def forward(self, x):
        return x + 1


class Jealous(nn.Module):
    def __getattr__(self, name):
        if name.startswith("_dtype") or name == "table":
            raise RuntimeError(name)
        return super().__getattr__(name)

    def parameters(self, recurse=True):
        raise RuntimeError("mine")

    named_parameters = named_buffers = buffers = parameters

    def forward(self, x):
        return x - 1


class OwnCall(nn.Module):
    def __call__(self, x):
        return super().__call__(x) * 2

    def forward(self, x):
        return x / 2


class Unborn(nn.Module):
    def __init__(self):
        pass

    def forward(self, x):
        return x * 3


def odd_modules():
    x = torch.randn(3)
    out = [Unhashable()(x), Falsy()(x), Jealous()(x), OwnCall()(x), Falsy().half()(x)]
    try:
        out.append(Unborn()(x))
    except AttributeError as error:
        out.append(str(error))
    return out


def copies_and_pickles():
    net = mlp()
    net(torch.randn(2, 8)).sum().backward()
    deep = copy.deepcopy(net)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = pickle.loads(pickle.dumps(net))
    return deep.state_dict(), again.state_dict(), copy.copy(net).state_dict(), pickle.loads(pickle.dumps(torch.ones(2)))


def gradients_of_a_part_of_the_graph_in_other_threads():
    x = torch.randn(4, requires_grad=True)
    results = [None] * 3

    def work(number):
        results[number] = torch.autograd.grad((x.double() * number).sum(), x)[0]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


PROGRAMS = [
    trains_under_float16_autocast_with_a_scaler, an_encoder_takes_its_fast_path_without_gradients, sparse_tensors,
    nested_tensors, functional_transforms, recomputed_activations, functions_of_ones_own, hooks_of_the_user,
    a_branch_by_cond, a_model_that_compiles_in_place, traces_of_fx, subclasses_of_tensor, modes_of_the_user_inside,
    inference_tensors, meta_tensors, random_numbers, conversions_of_every_kind, odd_modules,
    subclasses_that_are_called, parameters_that_are_swapped, tensors_that_are_swapped, copies_and_pickles,
    gradients_of_a_part_of_the_graph_in_other_threads,
]  # fmt: skip


def seeded(program):
    torch.manual_seed(7)
    np.random.seed(7)
    return program(), torch.get_rng_state(), torch.initial_seed()


LOUD = (conversions_of_every_kind,)  # which do what rules warn of


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("values", [False, True, "range"])
def test_a_program_computes_the_same_bits_and_draws_the_same_numbers(program, values):
    expected = seeded(program)
    with audit(values=values) as report:
        result = seeded(program)
    assert_same(result, expected)
    assert report.faults == []
    assert program in LOUD or harmful(report) == []
    json.loads(report.to_json())
    assert str(report)


# ---------------------------------------------------------------- with and without gradients


def many_faults():
    x = torch.linspace(1, 3, 12).reshape(3, 4)
    net = nn.Linear(4, 4)
    x.half()
    large = (x * 1e6).to(torch.float16)
    wide = x.double() * torch.ones(4)
    with torch.autocast("cpu", dtype=BF16):
        y = net(x) @ x.t()
    moved = x.to("meta")
    counts = torch.zeros(4, dtype=torch.int32)
    counts.copy_(x[0])
    kept = x.float(), x.to(x), x.type_as(x), x.to("cpu")
    return large, wide, y, moved, counts, kept


def seen(report):
    casts = [
        (c.kind, c.from_dtype, c.to_dtype, c.from_device, c.to_device, c.module_path, c.count) for c in report.casts
    ]
    return sorted(map(str, casts)), sorted((f.rule, f.severity, f.line) for f in report.findings)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
def test_the_same_is_seen_with_and_without_gradients(context):
    torch.manual_seed(0)
    with audit() as expected:
        many_faults()
    with audit() as report, context():
        torch.manual_seed(0)
        many_faults()
    assert {f.rule for f in expected.findings} >= {"DG101", "DG103", "DG105", "DG106"}
    assert seen(report) == seen(expected)
    assert report.faults == []


@pytest.mark.parametrize("values", [False, "range", True])
def test_under_autocast_inference_mode_computes_what_it_does_without_an_audit(values):
    x, net = torch.randn(4, 4), nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))

    def program():
        with torch.inference_mode(), torch.autocast("cpu", dtype=BF16):
            products = torch.einsum("ij,jk->ik", x, x), torch.tensordot(x, x, 1), torch.inner(x, x), x @ x
            return *products, net(x), torch.cdist(x, x), F.cosine_similarity(x, x), F.cross_entropy(net(x), x[:, :2])

    expected = program()
    with audit(values=values) as report:
        results = program()
    assert [result.dtype for result in results] == [one.dtype for one in expected]
    assert all(map(torch.equal, results, expected))
    assert report.faults == []


# ---------------------------------------------------------------- inside of the user's own contexts


def a_small_program():
    net = nn.Linear(4, 2)
    y = net(torch.randn(3, 4)).half()
    return tuple(y.shape), y.dtype


CONTEXTS = {
    "dispatch mode": Counting, "function mode": Naming, "fake tensors": FakeTensorMode, "no_grad": torch.no_grad,
    "inference mode": torch.inference_mode, "autocast": lambda: torch.autocast("cpu", dtype=BF16),
    "a device": lambda: torch.device("meta"), "deterministic": lambda: torch.random.fork_rng(),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(False), "profile": torch.profiler.profile,
    "saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
}  # fmt: skip


@pytest.mark.parametrize("context", CONTEXTS)
def test_an_audit_works_inside_of_other_contexts(context):
    before = installed()
    with CONTEXTS[context]() as mode:
        expected = a_small_program()
        plain = list(getattr(mode, "names", []))
        with audit() as report:
            assert a_small_program() == expected
        audited = getattr(mode, "names", [])[len(plain) :]
        assert a_small_program() == expected
    assert [name for name in audited if "." in name or name in plain] == plain
    assert installed() == before
    assert report.faults == []
    assert (F16, 1) in [(c.to_dtype, c.count) for c in report.casts if c.kind == "explicit"]


def test_an_audit_inside_of_transforms_forward_and_backward_leaves_nothing():
    before = installed()
    reports = []

    class Audited(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            with audit() as report:
                y = x.double()
            reports.append(report)
            return y

        @staticmethod
        def backward(ctx, gradient):
            with audit() as report:
                y = gradient.float()
            reports.append(report)
            return y

    def loss(x):
        with audit() as report:
            y = (x.double() ** 2).sum()
        reports.append(report)
        return y

    Audited.apply(torch.ones(3, requires_grad=True)).sum().backward()
    assert torch.func.grad(loss)(torch.ones(3)).tolist() == [2.0] * 3
    assert torch.func.vmap(loss)(torch.ones(2, 3)).tolist() == [3.0] * 2
    assert installed() == before
    assert [report.faults for report in reports] == [[]] * 4
    assert [bool(report.casts) for report in reports] == [True] * 4


def test_an_audit_in_a_generator_ends_with_it():
    before, reports = installed(), []

    def steps():
        with audit() as report:
            reports.append(report)
            for n in range(3):
                torch.ones(n + 1).half()
                yield n

    generator = steps()
    assert next(generator) == 0
    assert next(generator) == 1
    generator.close()
    assert installed() == before
    assert reports[0].casts[0].count == 2
    assert list(steps()) == [0, 1, 2]
    assert installed() == before


# ---------------------------------------------------------------- nothing is left


OWNERS = [
    torch, torch.Tensor, torch.utils.dlpack, torch.autocast, torch.amp, torch.amp.GradScaler, torch.autograd, F,
    torch.autograd.Function, nn.Module, nn.Linear, nn.init, nn.utils, nn.utils.clip_grad, torch.optim.Optimizer,
    torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.jit, torch.onnx, torch.export, torch.distributed,
    torch.distributed.distributed_c10d, torch.jit._trace, torch.export.ExportedProgram, torch.utils.checkpoint,
    torch.random, torch.serialization, torch.cuda, torch.compiler, torch.func, threading, threading.Thread, np, os,
    sys, warnings, dtypeguard, dtypeguard._core.base.errors, torch.nn.modules.module, torch.utils._python_dispatch,
    torch.overrides, torch.optim.swa_utils,
]  # fmt: skip


torch.optim.AdamW([nn.Parameter(torch.ones(1))])  # torch replaces the step of a class when it is made first


def installed():
    """All that an audit could leave behind in torch."""
    values = {f"{owner.__name__}.{name}": value for owner in OWNERS for name, value in vars(owner).items()}
    return {
        **{name: id(value) for name, value in values.items() if type(value) is not types.ModuleType},
        "modes": torch._C._len_torch_dispatch_stack(),
        "functions": torch._C._len_torch_function_stack(),
        "any mode": _python_dispatch.is_in_any_mode_without_ignore_compile_internals(),
        "mode": _python_dispatch.is_in_torch_dispatch_mode(),
        "hooks": [
            len(hooks)
            for name, hooks in vars(nn.modules.module).items()
            if name.startswith("_global_") and isinstance(hooks, dict)
        ],
        "optimizers": [
            len(hooks)
            for name, hooks in vars(sys.modules["torch.optim.optimizer"]).items()
            if name.startswith("_global") and isinstance(hooks, dict)
        ],
        "default": torch.get_default_dtype(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "anomaly": torch.is_anomaly_enabled(),
        "stance": torch._dynamo.eval_frame._stance.stance,
        "threads": threading.active_count(),
        "tracing": sys.gettrace(),
        "profiling": sys.getprofile(),
        "modules": [
            name for name, module in list(sys.modules.items()) if type(module).__module__.startswith("dtypeguard")
        ],
        "excepthooks": (sys.excepthook, threading.excepthook),
    }


def a_training_step():
    train(mlp(), torch.randn(5, 8), steps=1, autocast=BF16)


def raises(kind):
    def program():
        net = mlp()
        with torch.autocast("cpu", dtype=BF16):
            net(torch.randn(2, 8))
            raise kind("stop")

    return program


def raises_in_a_module():
    nn.Sequential(nn.Linear(3, 3), nn.Linear(4, 4))(torch.randn(2, 3))


def raises_in_backward():
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError("in backward")

    Broken.apply(torch.ones(2, requires_grad=True)).sum().backward()


def raises_of_a_dtype():
    nn.Linear(3, 3)(torch.randn(2, 3, dtype=F64))


def leaves_a_generator():
    def batches():
        with torch.autocast("cpu", dtype=BF16):
            yield nn.Linear(3, 3)(torch.ones(2, 3))
            yield 1

    next(iter(batches()))


LEAVING = [
    (a_training_step, None),
    (raises(ValueError), ValueError),
    (raises(KeyboardInterrupt), KeyboardInterrupt),
    (raises(GeneratorExit), GeneratorExit),
    (raises_in_a_module, RuntimeError),
    (raises_in_backward, ValueError),
    (raises_of_a_dtype, RuntimeError),
    (leaves_a_generator, None),
    (lambda: torch.compile, None),
]


@pytest.mark.parametrize(
    ("program", "error"), LEAVING, ids=[p.__name__ + (e.__name__ if e else "") for p, e in LEAVING]
)
def test_nothing_stays_installed(program, error):
    before = installed()
    with pytest.raises(error) if error else contextlib.nullcontext(), audit() as report:
        assert installed() != before
        program()
    assert installed() == before
    assert report.faults == []
    assert report.to_dict()["error"] == (None if error is None else report.error)
    assert (report.error is None) == (error is None)


def test_the_programs_exception_goes_through_as_it_is():
    error = ValueError("mine")
    with pytest.raises(ValueError, match=r"^mine$") as caught, audit():
        raise error
    assert caught.value is error
    assert (error.__cause__, error.__context__, getattr(error, "__notes__", [])) == (None, None, [])


def test_a_function_that_raises_gets_the_findings_as_a_note():
    def program():
        x = torch.ones(3)
        x.half()
        raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        audit(program)
    (note,) = caught.value.__notes__
    assert "DG103" in note
    assert "x.half()" in note


@pytest.mark.slow
def test_an_audit_imports_nothing_that_is_slow():
    code = """
import sys, torch, dtypeguard
before = set(sys.modules)
with dtypeguard.audit() as report:
    torch.ones(3).half()
slow = {"torch._dynamo", "torch._inductor", "torch.export._trace", "rich", "jinja2", "transformers"}
assert not slow & (set(sys.modules) - before), slow & set(sys.modules)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)


def test_an_audit_that_cannot_begin_leaves_nothing(monkeypatch):
    from dtypeguard._engine.watch import patches as _patches

    real, calls = _patches.Patches.replace, []

    def replace(self, *args):
        calls.append(args)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return real(self, *args)

    before = installed()
    monkeypatch.setattr(_patches.Patches, "replace", replace)
    with pytest.raises(KeyboardInterrupt), audit():
        pass
    monkeypatch.undo()
    assert installed() == before


def test_what_the_program_replaces_itself_stays_replaced():
    real = nn.Module.__call__

    def mine(self, *args, **kwargs):
        return real(self, *args, **kwargs)

    try:
        with audit() as report:
            nn.Module.__call__ = mine
            nn.Linear(2, 2)(torch.ones(1, 2))
        assert nn.Module.__call__ is mine
        assert report.faults == []
    finally:
        nn.Module.__call__ = real


def test_a_function_that_the_program_kept_works_after_the_audit():
    with audit() as report:
        kept = torch.tensor, nn.Module.__call__, nn.Module.to, torch.from_dlpack, threading.Thread.start
        count = report.to_dict()["operations"]
    make, call, to, dlpack, start = kept
    net = nn.Linear(2, 2)
    assert call(to(net, F16), make([[1.0, 2.0]], dtype=F16)).dtype is F16
    assert dlpack(np.ones(2)).dtype is F64
    thread = threading.Thread(target=lambda: torch.ones(2).half())
    start(thread)
    thread.join()
    assert report.to_dict()["operations"] == count
    assert report.findings == []


def test_a_default_device_holds_for_replaced_functions_during_the_audit_and_after_it():
    """`with torch.device(...)` looks a function up in a set that torch makes once: here during the audit."""
    code = """
import torch
from dtypeguard import audit

def devices():
    with torch.device("meta"):
        return {make([1.0]).device.type for make in (torch.tensor, torch.as_tensor, torch.asarray)}

with audit():
    assert devices() == {"meta"}
assert devices() == {"meta"}
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)


def test_replaced_functions_keep_name_module_and_signature():
    import inspect

    before = {f: (f.__name__, f.__doc__) for f in (torch.tensor, torch.from_dlpack, F.scaled_dot_product_attention)}
    signature = inspect.signature(nn.Module.load_state_dict)
    with audit():
        after = {f: (f.__name__, f.__doc__) for f in (torch.tensor, torch.from_dlpack, F.scaled_dot_product_attention)}
        assert inspect.signature(nn.Module.load_state_dict) == signature
        assert [pickle.loads(pickle.dumps(f)) is f for f in after] == [True] * 3
        assert copy.deepcopy(torch.tensor) is torch.tensor
    assert list(after.values()) == list(before.values())


def test_users_objects_get_no_attributes():
    net, scaler = mlp(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
    x, thread = torch.randn(5, 8), threading.Thread(target=lambda: torch.ones(2).half())
    things = [x, optimizer, scaler, *net.modules(), *net.parameters()]
    before = [dict(vars(thing)) for thing in things]
    with audit(net, optimizer, scaler) as report:
        during = [set(vars(thing)) for thing in things]
        out = net(x)
        thread.start()
        thread.join()
        assert vars(out) == {}
    assert report.faults == []
    assert [set(vars(thing)) for thing in things] == [set(row) for row in before] == during
    for thing, row in zip(things, before, strict=True):
        assert all(vars(thing)[name] is value for name, value in row.items() if name not in ("training",))
    assert "run" not in vars(thread)
    assert [len(net._forward_hooks), len(net._backward_hooks), x._backward_hooks] == [0, 0, None]


# ---------------------------------------------------------------- nesting and use


def discards(x):
    x.half()


def test_ten_nested_audits_leave_nothing():
    before = installed()
    with contextlib.ExitStack() as stack:
        reports = [stack.enter_context(audit()) for _ in range(10)]
        discards(torch.ones(3))
        train(mlp(), torch.randn(2, 8), steps=1)
    assert installed() == before
    assert [[f.rule for f in report.findings] for report in reports] == [["DG103"]] * 10
    assert [report.faults for report in reports] == [[]] * 10


def test_audits_that_end_in_another_order_leave_nothing():
    before = installed()
    one, two = audit(), audit()
    first = one.__enter__()
    two.__enter__()
    try:
        one.__exit__(None, None, None)
    finally:
        two.__exit__(None, None, None)
    assert installed() == before
    assert first.faults == []


def test_an_audit_is_used_once():
    watch = audit()
    with watch:
        pass
    with pytest.raises(ValueError, match="used already: begin another"), watch:
        pass
    with pytest.raises(ValueError, match="used already"), audit() as _, watch:
        pass


# ---------------------------------------------------------------- threads


def test_audits_in_several_threads_do_not_disturb_each_other():
    reports, errors = {}, []
    gate = threading.Barrier(4)

    def work(number):
        try:
            gate.wait()
            with audit() as report:
                for _ in range(20):
                    torch.ones(number + 2).to(F16).sum()
                    nn.Linear(2, 2)(torch.ones(1, 2))
                gate.wait()
            reports[number] = report
        except BaseException as error:
            errors.append(error)

    before = installed()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    # An earlier test's thread may end meanwhile.
    assert {**installed(), "threads": before["threads"]} == before
    assert not any(thread.is_alive() for thread in threads)
    for number in range(4):
        assert reports[number].faults == []
        (cast,) = [c for c in reports[number].casts if c.to_dtype is F16]
        assert cast.count == 20
        assert cast.bytes == 20 * 2 * (number + 2)


def test_an_audit_leaves_threads_alone_that_it_did_not_start():
    inside, done = threading.Event(), threading.Event()
    theirs, mine = nn.Linear(2, 2), nn.Linear(2, 2)

    def other():
        inside.wait(10)
        theirs.register_buffer("table", torch.ones(2))
        theirs.half()
        theirs.load_state_dict(nn.Linear(2, 2).state_dict(), strict=False)
        torch.tensor(np.float64(1))
        theirs(torch.ones(1, 2).half())
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with audit() as report:
        inside.set()
        done.wait(10)
        mine(torch.ones(1, 2))
    thread.join()
    assert [row["path"] for row in report.to_dict()["modules"]] == ["Linear"]
    assert report.findings == []
    assert report.faults == []


def test_a_pool_that_outlives_the_audit_works_on():
    pool = ThreadPoolExecutor(1)
    with audit() as report:
        pool.submit(discards, torch.ones(3)).result()
    count = report.to_dict()["operations"]
    assert pool.submit(lambda: torch.ones(3).double().sum().item()).result() == 3
    pool.submit(discards, torch.ones(3)).result()
    pool.shutdown()
    assert report.to_dict()["operations"] == count
    assert [f.count for f in report.findings] == [1]
    assert report.faults == []


def test_an_exception_in_a_thread_goes_where_it_went():
    seen = []
    hook, threading.excepthook = threading.excepthook, lambda args: seen.append(args.exc_value)
    try:
        with audit() as report:
            thread = threading.Thread(target=lambda: 1 / 0)
            thread.start()
            thread.join()
    finally:
        threading.excepthook = hook
    assert [type(error) for error in seen] == [ZeroDivisionError]
    assert report.faults == []


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_a_loader_with_processes_gives_the_same_batches(options):
    data = TensorDataset(torch.arange(20.0).reshape(10, 2))

    def load():
        torch.manual_seed(3)
        return [batch[0] for batch in DataLoader(data, batch_size=3, shuffle=True, **options)]

    expected = load()
    with audit() as report:
        assert_same(load(), expected)
    assert report.faults == []
    assert harmful(report) == []


def test_backward_is_seen_on_the_threads_of_autograd():
    x = torch.randn(4, 4, requires_grad=True)
    with audit() as report:
        with torch.autocast("cpu", dtype=BF16):
            y = x @ x
        threading.Thread(target=y.float().sum().backward).run()
    assert {c.kind for c in report.casts} >= {"autocast", "backward"}
    assert report.faults == []


def test_tasks_of_asyncio_are_seen_and_keep_their_modules_apart():
    class Slow(nn.Module):
        def forward(self, x):
            return x.half()

    async def one(net, x):
        await asyncio.sleep(0)
        return net(x)

    async def main():
        nets = [Slow() for _ in range(3)]
        return await asyncio.gather(*(one(net, torch.ones(2)) for net in nets))

    with audit() as report:
        out = asyncio.run(main())
    assert [t.dtype for t in out] == [F16] * 3
    assert sorted(c.module_path for c in report.casts) == ["Slow", "Slow#2", "Slow#3"]
    assert report.faults == []


def test_a_child_of_fork_runs_and_the_parent_goes_on():
    with audit() as report:
        read, write = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there are threads, from 3.12 on
            child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(BaseException):
                result = nn.Linear(2, 2)(torch.ones(1, 2)).double()
                os.write(write, str(result.dtype).encode())
                code = 0
            os._exit(code)
        os.close(write)
        text = os.read(read, 100).decode()
        os.close(read)
        assert os.waitpid(child, 0)[1] == 0
        discards(torch.ones(3))
    assert text == "torch.float64"
    assert [f.rule for f in report.findings] == ["DG103"]
    assert report.faults == []


# ---------------------------------------------------------------- memory


def nodes():
    from dtypeguard._engine.watch.lineage import Node

    gc.collect()
    return sum(type(thing) is Node for thing in gc.get_objects())


@pytest.mark.slow
def test_a_long_loop_keeps_bounded_memory():
    net, average = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    state, counts = torch.zeros(2, 4), []
    before = nodes()
    with audit() as report:
        for step in range(900):
            state = torch.tanh(net(state.detach()).half().float() + state.detach() * 0.5)
            optimizer.zero_grad()
            state.square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(average.parameters(), net.parameters(), strict=True):
                    slow.mul_(0.99).add_(fast, alpha=0.01)
            if step in (449, 899):
                counts.append((nodes(), len(report._recorder.lineage), len(report.findings), len(report.casts)))
    assert counts[1][0] - before < 40_000
    assert counts[1][1] < 15_000
    assert counts[1][2:] == counts[0][2:]
    assert report.faults == []


def reached(tensor, report):
    """How many lines stand behind a tensor."""
    seen, queue = set(), [report._recorder.lineage.get(tensor)]
    while queue:
        node = queue.pop()
        if node not in seen:
            seen.add(node)
            queue += [*node.parents, node.birth]
    return len(seen)


def test_a_chain_that_never_ends_is_cut():
    cell, counts = nn.GRUCell(4, 4), []
    with audit() as report, torch.no_grad():
        plain = cast = mixed = torch.zeros(4)
        hidden, row = torch.zeros(1, 4), torch.zeros(4)
        for step in range(600):
            plain = plain * 0.99 + 1
            cast = (cast * 0.99).half().float() + plain * 0.01
            mixed = mixed * 0.9 + cast.double().float() * 0.1
            hidden = cell(hidden, hidden)
            row[0] = row[1].half().float() + hidden[0, 0]
            if step >= 500:
                counts.append([reached(t, report) for t in (plain, cast, mixed, hidden, row)])
    assert max(map(max, counts)) < 500
    assert report.faults == []


def test_a_graph_over_many_steps_keeps_bounded_memory():
    x = torch.ones(3, requires_grad=True)
    with audit() as report:
        y = x
        for _ in range(1000):
            y = (y.double() * 0.999).float()
        y.sum().backward()
    assert report.faults == []
    assert len(report.casts) <= 6
    assert nodes() < 40_000


def test_modules_optimizers_and_their_tensors_die_after_the_audit():
    net = mlp()
    optimizer = torch.optim.AdamW(net.parameters())
    refs = [weakref.ref(thing) for thing in (net, optimizer, *net.modules(), *net.parameters())]
    with audit(net, optimizer) as report:
        train(net, torch.randn(5, 8), optimizer=optimizer)
        net.half()
    del net, optimizer
    gc.collect()
    assert [ref() for ref in refs] == [None] * len(refs)
    assert len(report.to_dict()["modules"]) == 6
    assert str(report)


def test_modules_die_while_the_audit_runs_and_the_report_forgets_them():
    with audit() as report:
        refs = []
        for _ in range(50):
            net = nn.Linear(3, 3)
            net(torch.ones(1, 3))
            refs.append(weakref.ref(net))
        del net
        gc.collect()
        assert sum(ref() is not None for ref in refs) == 0
    assert len(report.to_dict()["modules"]) <= 50
    assert report.faults == []


def test_tensors_die_after_an_exception():
    refs = []

    def program():
        x = torch.ones(2, 3, dtype=F64)
        refs.append(weakref.ref(x))
        nn.Linear(3, 3)(x)

    with audit() as report:
        for _ in range(2):
            with contextlib.suppress(RuntimeError):
                program()
    gc.collect()
    assert [ref() for ref in refs] == [None, None]
    assert [(f.severity, f.source, f.count) for f in report.findings] == [
        ("info", "nn.Linear(3, 3)(x)", 2)
    ]  # they were caught
    assert report.faults == []


# ---------------------------------------------------------------- sizes


class Deep(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.inner = Deep(depth - 1) if depth else nn.Identity()

    def forward(self, x):
        return self.inner(x) * 1


def test_deep_recursion_stays_possible():
    net = Deep(150)
    with audit() as report:
        net(torch.ones(2))
    assert report.faults == []
    assert len(report.to_dict()["modules"]) == 152
    report.to_json()


@pytest.mark.slow
def test_ten_thousand_modules_take_seconds():
    net = nn.Sequential(*(nn.Identity() for _ in range(10_000)))
    began = time.perf_counter()
    with audit(net) as report:
        net(torch.ones(1))
        other = nn.Sequential(*(nn.Identity() for _ in range(1000)))
        other(torch.ones(1))
    assert time.perf_counter() - began < 20
    assert len(report.to_dict()["modules"]) == 11_002
    assert report.faults == []


def test_a_module_that_holds_itself_is_no_trouble():
    net = nn.Linear(2, 2)
    object.__setattr__(net, "me", net)
    net.child = nn.Identity()
    object.__setattr__(net.child, "parent", net)
    with audit(net) as report:
        net(torch.ones(1, 2))
        net.half()
    assert report.faults == []
    json.loads(report.to_json())


@pytest.mark.parametrize("values", [None, True])
def test_what_dtypeguard_runs_by_itself_is_no_work_of_the_program(values):
    """`compare`, `dryrun` and `check_module` run copies of a model in dtypes that are too narrow for it, on purpose."""

    class Variance(nn.Module):
        def forward(self, x):
            return (x * x).mean(-1) - x.mean(-1) ** 2

    model = nn.Sequential(nn.Linear(4, 4), Variance())
    x = torch.randn(8, 4) + 100
    with dtypeguard.audit(values=values) as report:
        dtypeguard.compare(model, x, dtype=BF16).keep(error=0.1)
        dtypeguard.dryrun(model, x)
        with contextlib.suppress(dtypeguard.testing.CheckError):
            dtypeguard.testing.check_module(lambda: copy.deepcopy(model), batch=x, dtype=BF16)
        x.half()
    assert [finding.rule for finding in report.findings] == ["DG103"]
    assert report.faults == []
