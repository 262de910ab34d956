"""Audits that look at values: what they name, that they change nothing, and what is shadowed exactly."""

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from support import BF16, F16, F32, F64, in_backward, same
from torch import nn
from torch.utils.checkpoint import checkpoint

import dtypeguard
from dtypeguard._engine.ops import operator_of
from dtypeguard._engine.values.kernels import composite

BAD = ("warning", "error")


def audited(program, *args, values=True):
    """The report on a program, and what the program gives."""
    audit = dtypeguard.audit(values=values)
    with audit as report:
        result = program(*args)
    assert report.faults == []
    return report, result


def found(report):
    return [(f.rule, f.line) for f in report.findings if f.rule.startswith("DG9") and f.severity in BAD]


# ---------------------------------------------------------------- the program is not changed


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class Net(nn.Module):
    """Dropout, a batch norm in training, checkpointing, views, writes in place and a function of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.25)
        self.conv, self.last = nn.Conv1d(1, 4, 3), nn.Linear(24, 3)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x):
        h = self.drop(checkpoint(lambda t: F.gelu(self.norm(self.first(t))), x, use_reentrant=False))
        with torch.no_grad():
            self.seen.mul_(0.9).add_(h.detach().float().mean(0), alpha=0.1)
        y = self.conv(h[:, None]).flatten(1)
        y[:, ::2] *= 0.5
        y = y.view(-1, 4, 6).transpose(1, 2).reshape(y.shape[0], -1)
        return self.last(Square.apply(y).add_(y))


OPTIMIZERS = {
    "SGD, foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "Adam, one by one": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=False),
}
DTYPES = {"float32": (F32, None), "bfloat16": (BF16, None), "bf16 autocast": (F32, BF16), "fp16 autocast": (F32, F16)}


def trained(optimizer, dtype, half):
    torch.manual_seed(0)
    model = Net().to(dtype)
    optimizer, x = OPTIMIZERS[optimizer](model.parameters()), torch.randn(16, 6, dtype=dtype)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, enabled=half is F16)  # the first steps overflow
    losses = []
    for _ in range(9):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=half, enabled=half is not None):
            loss = model(x).float().square().mean() + (x.float() @ torch.ones(6)).var() * 1e-3
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return losses, model.state_dict(), optimizer.state_dict()["state"], torch.get_rng_state(), scaler.get_scale()


@pytest.mark.parametrize("values", [True, "range"])
@pytest.mark.parametrize("dtypes", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_training_computes_what_it_computes_alone(optimizer, dtypes, values):
    alone = trained(optimizer, *dtypes)
    report, result = audited(trained, optimizer, *dtypes, values=values)
    assert same(alone, result)
    assert found(report) == [], report.findings


def of_func():
    torch.manual_seed(0)
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    parameters = dict(model.named_parameters())

    def loss(p, row):
        return torch.func.functional_call(model, p, (row,)).square().sum()

    gradients = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    return gradients, torch.func.jvp(torch.sin, (x,), (x,)), torch.func.hessian(lambda t: t.pow(3).sum())(x[0])


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # of vmap, by itself
def test_transforms_of_functions_compute_what_they_compute_alone():
    report, result = audited(of_func)
    assert same(of_func(), result)
    assert found(report) == []


@pytest.mark.parametrize("values", [True, "range"])
def test_an_exception_of_the_program_is_the_same(values):
    def fails():
        leaf = torch.ones(3, requires_grad=True)
        made = leaf * 2
        squared = made * made
        made.add_(1)
        squared.sum().backward()

    with pytest.raises(RuntimeError) as alone:
        fails()
    with pytest.raises(RuntimeError) as watched, dtypeguard.audit(values=values):
        fails()
    assert str(alone.value) == str(watched.value)


def test_float8_and_complex_values_are_cast_there_and_back():
    def program():
        x = torch.randn(8) / 3
        eighth = x.to(torch.float8_e4m3fn)
        copied = torch.zeros(8).copy_(eighth)
        wave = torch.fft.rfft(x.double()).to(torch.complex64)
        return copied + eighth.to(BF16).float(), wave.abs().half(), torch.view_as_real(wave).sum()

    torch.manual_seed(0)
    alone = program()
    torch.manual_seed(0)
    report, result = audited(program)
    assert same(alone, result)
    assert found(report) == []


def test_results_that_are_written_into_a_tensor_are_shadowed_there():
    def program():
        x, total = torch.ones(4).half() / 3, torch.zeros(())
        torch.sum(x, 0, dtype=F32, out=total)
        torch.add(x, x, out=x)
        return x.masked_fill_(x > 5, torch.tensor(1)), total

    report, result = audited(program)
    assert same(program(), result)
    assert found(report) == []


def test_in_inference_mode_casts_are_seen_too():
    def program():
        with torch.inference_mode():
            return (torch.ones(3) * 1e6).to(F16).reshape(3, 1).tolist()

    assert [rule for rule, _ in found(audited(program, values="range")[0])] == ["DG901"]


ORDERS = ["inside", "before inside", "inside after", "before inside after"]


@pytest.mark.parametrize("values", [True, "range"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [F16, BF16])
def test_in_inference_mode_the_same_is_found_as_without_gradients(dtype, order, values):
    def evaluated(model, x):
        scores = (model(x) * 900).exp() if dtype is F16 else model(x)
        total = torch.zeros((), dtype=dtype)
        for _ in range(300):
            total += scores.float().abs().mean().to(dtype) + 1
        return total.item(), scores.argmax(-1), scores.log_softmax(-1).sum().item()

    def program(off):
        torch.manual_seed(0)
        model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).to(dtype), torch.randn(32, 8).to(dtype)
        for place in order.split():
            with off() if place == "inside" else torch.no_grad():
                evaluated(model, x)

    expected, report = (audited(program, off, values=values)[0] for off in (torch.no_grad, torch.inference_mode))
    assert found(report) == found(expected)
    assert report.values == expected.values


def test_versions_are_counted_as_without_an_audit():
    def program():
        x = torch.ones(4)
        x.add_(1)[1:].mul_(2)
        (x * 3)[0].zero_()
        return x._version

    assert audited(program)[1] == program()


def test_memory_of_shadows_ends_with_their_tensors():
    audit = dtypeguard.audit(values=True)
    sizes = []
    with audit:
        memory = audit._recorder.values.shadow.memory
        x = torch.randn(64)
        for _ in range(200):
            x = (x * 1.0001).sin() + 1e-3
            sizes.append((len(memory), memory.size))
    assert len(set(sizes[2:])) == 1
    assert sizes[-1][1] <= 3 * 2 * x.nbytes


# ---------------------------------------------------------------- the shadow is the program in a wider dtype


def shadow_of(audit, tensor):
    return audit._recorder.values.shadow.memory.read(tensor, F64)


def wider(model, x):
    """The outputs and gradients of a model in float64, and its shadow's."""
    twin = copy.deepcopy(model).double()
    audit = dtypeguard.audit(values=True)
    with audit:
        y = model(x)
        y.sum().backward()
        mine = [shadow_of(audit, t).clone() for t in (y, *(p.grad for p in model.parameters()))]
    z = twin(x.double())
    z.sum().backward()
    return mine, [z, *(p.grad for p in twin.parameters())]


MODELS = {
    "encoder": lambda: (nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), torch.randn(2, 5, 16)),
    "convolutions": lambda: (
        nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
        ),
        torch.randn(4, 1, 8, 8),
    ),
    "GRU cell": lambda: (nn.Sequential(nn.Linear(4, 6), nn.GRUCell(6, 6)), torch.randn(3, 4)),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_model_s_shadow_is_the_model_in_float64_to_the_bit(make):
    torch.manual_seed(0)
    assert same(*wider(*make()))


def test_views_and_writes_in_place_share_a_shadow():
    audit = dtypeguard.audit(values=True)
    with audit:
        x = torch.full((2, 3), 1 / 3, dtype=F32) * 3.3
        x.t()[1].mul_(7).add_(x[0, 0])
        x.view(-1)[-2:] = x[0, :2] / 3
        shadow = shadow_of(audit, x).clone()
    y = torch.full((2, 3), 1 / 3, dtype=F32).double() * 3.3
    y.t()[1].mul_(7).add_(y[0, 0])
    y.view(-1)[-2:] = y[0, :2] / 3
    assert same(shadow, y)


def test_the_shadow_keeps_the_program_s_choices():
    audit = dtypeguard.audit(values=True)
    with audit:
        x = torch.tensor([1.0, 1.0 + 2**-10, 3.0]).to(BF16).float() * 1.1
        values, places = x.sort(descending=True)
        top = x.topk(2)
        masked = torch.where(x > 1.05, x, 0.0)
        shadows = [shadow_of(audit, tensor).clone() for tensor in (values, top.values, masked)]
    wide = torch.tensor([1.0, 1.0 + 2**-10, 3.0]).double() * 1.1
    for shadow, expected in zip(shadows, (wide[places], wide[top.indices], wide), strict=True):
        assert torch.allclose(shadow, expected, rtol=1e-6)


def test_a_line_is_judged_by_its_worst_row():
    def normalized():
        torch.manual_seed(0)
        x = torch.randn(256, 32)
        x[7] += 3000.0
        mean = x.mean(-1, keepdim=True)
        variance = (x * x).mean(-1, keepdim=True) - mean * mean
        return ((x - mean) / (variance.clamp_min(0) + 1e-5).sqrt()).abs().max().item()

    report, _ = audited(normalized)
    assert [finding.source for finding in report.findings] == [
        "variance = (x * x).mean(-1, keepdim=True) - mean * mean"
    ]


@pytest.mark.parametrize("names", [("x", "user"), ("user", "x")])
def test_a_line_that_moves_values_of_several_lines_is_judged_for_each(names):
    """As the one line of a data loader is, in whatever order a sample has its tensors."""

    def collated():
        torch.manual_seed(0)
        data = {
            "x": torch.tensor(torch.randn(60, 3).double().numpy() / 3, dtype=F32),
            "user": torch.tensor([90_000_001 + i // 2 for i in range(60)], dtype=F32),
        }
        batch = {name: torch.cat([data[name][:30], data[name][30:]]) for name in names}
        return batch["x"].sum().item(), torch.cat([batch["user"]]).unique()

    report, _ = audited(collated)
    assert [finding.rule for finding in report.findings] == ["DG905"]


class SecondMoment(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            seen = state["seen"] = state.get("seen", 0) + 1
            square = state.setdefault("square", torch.zeros_like(p, dtype=BF16))
            square.mul_(0.999).add_((p.grad * p.grad).to(BF16), alpha=0.001)
            p -= 0.01 * p.grad / (square.float() / (1 - 0.999**seen)).sqrt()


def test_a_total_that_stands_still_is_no_fault_of_the_difference_that_is_added():
    torch.manual_seed(1)
    target, bias = 12 * torch.randn(64) + 20, nn.Parameter(torch.zeros(()))

    def train():
        optimizer = SecondMoment([bias], {})
        for _ in range(2048):
            optimizer.zero_grad()
            F.mse_loss(bias.expand(64), target).backward()
            optimizer.step()

    assert {rule for rule, _ in found(audited(train)[0])} == {"DG903"}


# ---------------------------------------------------------------- what is not shadowed, and what is refused


@torch.library.custom_op("dtypeguard_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_a_comparison_of_what_has_lost_its_digits_is_a_place_where_harm_is_felt():
    corner = torch.tensor([[10.0, 20.0, 50.0, 60.0], [11.0, 20.5, 51.0, 60.5]]).half()
    with dtypeguard.audit(values=True, select="DG902") as report:
        boxes = corner[:, None] + 3500 * torch.arange(2, 18).half()[:, None]
        low, high = torch.maximum(boxes[0, :, :2], boxes[1, :, :2]), torch.minimum(boxes[0, :, 2:], boxes[1, :, 2:])
        size = (high - low).prod(1)
        (size / (3200 - size) > 0.9).nonzero()
    (finding,) = report.findings
    assert "`high - low`" in finding.message
    assert "it reaches a comparison; rounded in float16" in finding.message


def test_what_is_not_finite_is_born_once_in_a_loop_of_layers_too():
    def normalized():
        torch.manual_seed(0)
        x = torch.randn(4, 64).bfloat16()
        for _ in range(4):
            x = x + 30
            mean = x.mean(-1, keepdim=True)
            variance = (x * x).mean(-1, keepdim=True) - mean * mean
            x = x + (x - mean) / (variance + 1e-5).sqrt()
        return x.sum().item()

    report, _ = audited(normalized)
    (finding,) = report.findings
    assert finding.rule == "DG901"
    assert "(variance + 1e-5).sqrt()" in finding.message
    assert "the digits are lost at (x * x).mean(-1, keepdim=True) - mean * mean" in finding.message


def test_what_has_no_shadow_is_counted_by_name():
    report, _ = audited(lambda: twice(torch.ones(3, dtype=BF16) / 3).sum().item())
    assert report.values["not_shadowed"] == {"dtypeguard_tests::twice": 1}
    assert "not: dtypeguard_tests::twice (1)" in str(report)
    assert json.loads(report.to_json())["values"] == report.values


LSTMS = [{}, {"bidirectional": True}, {"num_layers": 2, "batch_first": True}, {"bias": False}]


@pytest.mark.parametrize("options", LSTMS, ids=str)
def test_the_shadow_of_an_lstm_in_one_kernel_is_the_lstm_in_float64(options):
    def results(lstm, x):
        out, (h, c) = lstm(x)
        (out.square().sum() + h.sum() + c.sin().sum()).backward()
        return [out.detach(), h.detach(), c.detach(), *(one.grad for one in (x, *lstm.parameters()))]

    torch.manual_seed(0)
    lstm = nn.LSTM(5, 7, **options)
    x = torch.randn(6, 3, 5)
    expected = results(copy.deepcopy(lstm).double(), x.double().requires_grad_())
    with dtypeguard.audit(values=True) as audit:
        found = [shadow_of(audit, one) for one in results(lstm, x.clone().requires_grad_())]
    assert audit.values["not_shadowed"] == {}
    for shadow, exact in zip(found, expected, strict=True):
        assert torch.allclose(shadow, exact, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kernel", ["cudnn", "miopen"])
def test_the_shadow_of_a_batch_norm_on_a_gpu_is_computed_by_the_kernel_for_every_device(kernel):
    def wide(name, *args):
        return composite(operator_of(getattr(torch.ops.aten, f"{kernel}_{name}").default), args, {})

    torch.manual_seed(0)
    norm = nn.BatchNorm1d(3).double()
    x, weight, bias = (one.detach() for one in (torch.randn(8, 3, dtype=F64), norm.weight, norm.bias))
    mean, var = norm.running_mean.clone(), norm.running_var.clone()
    out, *saved = wide("batch_norm", x, weight, bias, mean, var, True, 0.1, norm.eps)
    expected = norm(given := x.clone().requires_grad_())
    assert same((out, mean, var), (expected.detach(), norm.running_mean, norm.running_var))
    expected.backward(grad := torch.randn_like(x))
    gradients = wide("batch_norm_backward", x, grad, weight, mean, var, *saved[:2], norm.eps)
    assert same(list(gradients), [given.grad, norm.weight.grad, norm.bias.grad])


@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"attn_mask": True}, {"scale": 0.3}, {"enable_gqa": True}]
)
@pytest.mark.parametrize("kernel", ["efficient", "flash", "cudnn"])
def test_the_shadow_of_the_backward_of_attention_on_a_gpu_is_that_of_the_formula(kernel, options):
    func = getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_attention_backward").default
    names = {argument.name for argument in func._schema.arguments}
    if "attn_mask" in options and "attn_bias" not in names:
        return
    torch.manual_seed(0)
    heads = 2 if options.get("enable_gqa") else 6
    shapes = (3, 6, 5, 8), (3, heads, 7, 8), (3, heads, 7, 8)
    query, key, value = (torch.randn(shape, dtype=F64, requires_grad=True) for shape in shapes)
    mask = torch.randn(5, 7, dtype=F64, requires_grad=True) if options.get("attn_mask") else None
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        out = F.scaled_dot_product_attention(query, key, value, **{**options, "attn_mask": mask})
    out.backward(grad := torch.randn_like(out))
    told = {
        "attn_bias": mask,
        "dropout_p": 0.0,
        "is_causal": options.get("is_causal", False),
        "scale": options.get("scale"),
    }
    tensors = [one.detach() for one in (grad, query, key, value)]
    found = composite(operator_of(func), tensors, {name: told[name] for name in told.keys() & names})
    for one, leaf in zip(found, (query, key, value, mask), strict=True):
        assert (one is None and leaf is None) or torch.allclose(one, leaf.grad, rtol=1e-12)


@pytest.mark.parametrize("depth", [0, *range(57, 63)])
@pytest.mark.parametrize("values", [True, "range"])
def test_backward_is_seen_in_a_thread_of_autograd_too(depth, values):
    def program():
        weight = torch.zeros(3, requires_grad=True)
        weight.square().sum().sqrt().backward()  # <--
        return weight.grad.tolist()

    report, _ = audited(lambda: in_backward(depth, program), values=values)
    (finding,) = report.findings
    assert (finding.rule, finding.source) == ("DG901", "weight.square().sum().sqrt().backward()  # <--")


@pytest.mark.parametrize("shapes", [((64, 16), (4, 16, 8)), ((4, 16, 16), (16, 64)), ((16, 64), (64, 16))], ids=str)
def test_products_of_groups_are_shadowed_one_by_one(shapes):
    def program():
        torch.manual_seed(0)
        one, other = (torch.randn(shape).bfloat16() for shape in shapes)
        ends = torch.tensor([16, 16, 40, 64], dtype=torch.int32)  # the second group has no rows
        return torch._grouped_mm(one, other, offs=ends).tolist()

    report, _ = audited(program)
    assert report.values["not_shadowed"] == {}
    assert found(report) == []


@pytest.mark.parametrize("values", ["rang", 1, [], "True"])
def test_another_kind_of_values_is_refused_with_those_that_there_are(values):
    with pytest.raises(ValueError, match=r"values=True .*, values='range' .* or values=None"):
        dtypeguard.audit(values=values)


@pytest.mark.parametrize("values", [None, False])
def test_without_values_nothing_is_looked_at(values):
    report, _ = audited(lambda: torch.ones(3).log().div(0), values=values)
    assert report.values is None
    assert found(report) == []


def test_memory_that_is_not_there_ends_the_shadow_and_not_the_program(monkeypatch):
    from dtypeguard._engine.values import memory

    def refuse(*args):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    def program():
        total = torch.ones(3, dtype=BF16) / 3
        monkeypatch.setattr(memory.Memory, "set", refuse)
        return (total * 3).sum().item()

    report, result = audited(program)
    assert result == 3.0
    assert "out of memory at" in report.values["over"]
    assert "the shadow ended: out of memory" in " ".join(str(report).split())


@pytest.mark.parametrize("test", [lambda t: t > 100, lambda t: torch.allclose(t, torch.tensor(256.0).bfloat16())])
def test_a_total_that_stands_still_reaches_a_comparison_that_comes_out_right(test):
    def program():
        total = torch.zeros((), dtype=BF16)
        for _ in range(600):
            total = total + torch.ones((), dtype=BF16)
        return bool(test(total))

    (finding,) = audited(program)[0].findings
    assert "a total stands still: 256 where float32 has 600; it reaches a comparison" in finding.message


@pytest.mark.parametrize("count", [600, 1000])
def test_a_total_that_stands_still_is_told_as_it_ends_or_as_it_was_measured_last(count):
    def program(end):
        total = torch.zeros((), dtype=BF16)
        for _ in range(count):
            total += torch.ones((), dtype=BF16)
        return end(total)

    (used,) = audited(lambda: program(lambda total: total / count))[0].findings
    (kept,) = audited(lambda: program(lambda total: total))[0].findings
    (left,) = audited(lambda: program(lambda total: None))[0].findings
    assert f"256 where float32 has {count}; it reaches a result" in used.message
    assert f"256 where float32 has {count}; it reaches a result" in kept.message
    assert "256 where float32 has at least" in left.message


def test_what_a_wider_dtype_has_is_told_of_a_value_that_was_lost_at_that_line():
    def program():
        large = torch.tensor([3e4], dtype=F16) * 4
        for x, factor in ((large, 0.001), (torch.tensor([600.0], dtype=F16), 200.0)):
            y = x * factor  # <-- the first time the infinity comes in
        return y.item()

    report, _ = audited(program)
    (finding,) = [found for found in report.findings if "<--" in found.source]
    assert "1 of 1 values become infinite or NaN in float16, where float32 has 120000;" in finding.message


def test_what_a_gradscaler_would_have_seen_is_an_info_beside_a_step_past_it():
    def program():
        weight = torch.full((1,), 300.0, requires_grad=True)
        optimizer, scaler = torch.optim.SGD([weight], lr=0.1), torch.amp.GradScaler("cpu")
        scaler.scale(weight.half().sum()).backward()
        optimizer.step()

    found = {(finding.rule, finding.severity) for finding in audited(program)[0].findings}
    assert ("DG312", "error") in found
    assert ("DG901", "info") in found
    assert ("DG901", "error") not in found


def test_where_a_gradscaler_skips_the_step_nothing_is_to_be_done():
    def program():
        weight = torch.full((1,), 300.0, requires_grad=True)
        optimizer, scaler = torch.optim.SGD([weight], lr=0.1), torch.amp.GradScaler("cpu", init_scale=2.0**15)
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale((weight.half() * 4).sum()).backward()
            scaler.step(optimizer)
            scaler.update()

    (finding,) = [one for one in audited(program)[0].findings if one.rule == "DG901"]
    assert (finding.severity, finding.count) == ("info", 1)
    assert finding.fix == "nothing is to be done: the `GradScaler` skips such a step, and lowers its scale"


# ---------------------------------------------------------------- range


def test_range_names_the_line_of_the_first_value_that_is_not_finite():
    def program():
        scores = torch.tensor([3e4, 4e4], dtype=F16)
        total = scores + scores  # <--
        return (total * 0.5).softmax(-1).tolist()

    report, _ = audited(program, values="range")
    (finding,) = report.findings[:1]
    assert (finding.rule, finding.severity, finding.source) == ("DG901", "error", "total = scores + scores  # <--")
    assert "1 of 2 values become infinite or NaN in float16" in finding.message


def test_range_names_the_line_in_forward_whose_gradient_is_not_finite():
    def program():
        weight = torch.zeros(3, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        length = weight.square().sum().sqrt()  # <--
        length.backward()
        optimizer.step()

    report, _ = audited(program, values="range")
    assert [f.source for f in report.findings if f.rule == "DG901"] == ["length = weight.square().sum().sqrt()  # <--"]


def test_range_counts_values_that_are_flushed_to_zero_as_an_info():
    def program():
        weight = torch.full((8,), 1e-5, dtype=F16)
        variance = weight.square()  # <--
        kept = weight * torch.tensor([0.0, 1.0]).half().repeat(4) * 0
        return variance.sum().item() + kept.sum().item()

    report, _ = audited(program, values="range")
    (finding,) = [f for f in report.findings if f.rule == "DG901"]
    assert (finding.severity, finding.source) == ("info", "variance = weight.square()  # <--")
    assert "8 of 8 values become zero in float16" in finding.message
    assert finding.fix.startswith("compute it in float32, or scale what goes in")


def test_what_is_infinite_from_the_beginning_or_thrown_away_is_no_fault():
    def program():
        mask = torch.full((3, 3), float("-inf")).triu(1)
        weights = (torch.randn(3, 3) + mask).softmax(-1)
        x = torch.tensor([0.0, 1.0])
        return weights.sum().item(), torch.where(x > 0, x.log(), 0.0).tolist()

    for values in (True, "range"):
        assert found(audited(program, values=values)[0]) == []


def test_the_logarithm_of_a_probability_of_zero_may_be_read():
    def program():
        start = torch.zeros(3)
        start[0] = 1.0
        return start.log().tolist(), start.log().sum().item()

    assert found(audited(program, values=True)[0]) == []


# ---------------------------------------------------------------- other rules


def overflows_where_nobody_looks():
    x = torch.full((4,), 300.0, dtype=F16)
    square = x * x
    return torch.where(x > 400, square, x).sum().item()


def overflows():
    x = torch.full((4,), 300.0, dtype=F16)
    return (x * x).sum().item()


def overflows_in_a_cast():
    return (torch.arange(4.0) * 1e5).half().sum().item()


def loses_its_epsilon():
    p = torch.tensor([0.5, 0.5, 0.0], dtype=F16)
    return (p * (p + 1e-8).log()).sum().item()


def rounds_its_positions():
    return (torch.arange(4096, dtype=BF16) * 0.01).cos().sum().item()


def overflows_in_many_layers():
    class Square(nn.Module):
        def forward(self, x):
            return x * x

    return sum(layer(torch.full((4,), 300.0, dtype=F16)).sum().item() for layer in nn.ModuleList([Square(), Square()]))


def stalls_an_average():
    model = nn.Linear(4, 4)
    nn.init.ones_(model.weight)
    mean = model.weight.detach().bfloat16()
    for _ in range(64):
        with torch.no_grad():
            model.weight += 0.01
            mean.mul_(0.999).add_(model.weight, alpha=0.001)
    return mean.sum().item()


def rounds_a_constant():
    return torch.tensor(1e-9).half().item()


@pytest.mark.parametrize(
    ("program", "guess", "rule", "severity"),
    [
        (rounds_a_constant, "DG115", "DG115", "error"),
        (stalls_an_average, "DG407", "DG407", "warning"),
        (overflows, "DG105", "DG901", "error"),
        (overflows_where_nobody_looks, "DG105", "DG901", "info"),
        (overflows_in_a_cast, "DG105", "DG901", "error"),
        (overflows_in_many_layers, "DG105", "DG901", "error"),
        (loses_its_epsilon, "DG113", "DG901", "error"),
        (rounds_its_positions, "DG108", "DG905", "warning"),
    ],
)
def test_a_guess_about_values_and_what_they_became_is_one_finding(program, guess, rule, severity):
    guessed, known = (audited(program, values=values)[0] for values in (None, True))
    assert {f.rule for f in guessed.findings} == {guess}
    assert {(f.rule, f.severity) for f in known.findings} == {(rule, severity)}
    assert len(known.to_dict()["causes"]) == 1
    assert len(known.to_dict()["edits"]) == (severity != "info")


def test_a_guess_stays_where_what_was_measured_is_ignored():
    with dtypeguard.audit(values=True, ignore=["DG9"]) as report:
        overflows()
    assert [(f.rule, f.severity) for f in report.findings] == [("DG105", "warning")]
