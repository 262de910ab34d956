"""DG201 to DG206 of an audit: what autocast leads to."""

import functools
import math

import pytest
import torch
import torch.nn.functional as F
from audit_cases import Cases, it_is_found, nothing_is_found
from support import BF16, F16, F32
from torch import nn
from torch.amp import custom_bwd, custom_fwd
from torch.autograd import Function

BUGS, HEALTHY = Cases(), Cases()


@pytest.mark.parametrize("case", BUGS, ids=str)
def test_a_fault_around_autocast_is_found_at_its_line(case):
    it_is_found(case)


@pytest.mark.parametrize("case", HEALTHY, ids=str)
def test_a_healthy_use_of_autocast_gives_no_warning(case):
    nothing_is_found(case)


def autocast(dtype=BF16, **options):
    return torch.autocast("cpu", dtype=dtype, **options)


# ---------------------------------------------------------------- DG201: half leaves the region


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.expert, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        with autocast():
            h = self.expert(x)
        return self.out(h)


@BUGS.add(
    "DG201",
    "return self.out(h)",
    severity="error",
    module_path="Experts.out",
    from_dtype=BF16,
    to_dtype=F32,
    origin=["self.expert(x)"],
    message=(
        "`self.out(h)` gets bfloat16, which left an autocast region at test_audit_autocast.py, in forward, "
        "and meets float32: it was refused"
    ),
)
def an_inner_region_feeds_a_float32_layer():
    return Experts()(torch.randn(2, 4))


@BUGS.add("DG201", "return features @ classifier", severity="error", from_dtype=F16, to_dtype=F32)
def features_of_a_frozen_backbone_meet_a_float32_matrix():
    backbone, classifier = nn.Linear(4, 4), torch.randn(4, 2)
    with torch.no_grad(), autocast(F16):
        features = backbone(torch.randn(2, 4)).relu()
    return features @ classifier


@BUGS.add("DG201", "decoder(latent)", severity="error", module_path="Conv2d#2", from_dtype=BF16, to_dtype=F32)
def a_decoder_runs_after_the_region():
    encoder, decoder = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 3, 1)
    with autocast():
        latent = encoder(torch.randn(1, 3, 4, 4))
    return decoder(latent)


@BUGS.add("DG201", "torch.bmm(keys, values)", severity="error", from_dtype=BF16, to_dtype=F32)
def an_island_takes_what_the_region_made():
    fc, values = nn.Linear(4, 4), torch.randn(2, 4, 3)
    with autocast():
        keys = fc(torch.randn(2, 3, 4))
        with autocast(enabled=False):
            return torch.bmm(keys, values)


@BUGS.add(
    "DG201", "return head(normed)", severity="error", from_dtype=BF16, to_dtype=F32, origin=["fc(torch.randn(2, 4))"]
)
def a_norm_stands_between_the_region_and_the_layer():
    fc, norm, head = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)
    with autocast():
        h = fc(torch.randn(2, 4))
    normed = norm(h)
    return head(normed)


@HEALTHY.add()
def what_leaves_a_region_is_widened():
    expert, out = nn.Linear(4, 4), nn.Linear(4, 2)
    with autocast():
        h = expert(torch.randn(2, 4))
    return out(h.float())


@HEALTHY.add()
def what_leaves_a_region_is_added_and_reduced():
    fc, x = nn.Linear(4, 4), torch.randn(2, 4)
    with autocast():
        h = fc(x)
    return x + h, h.softmax(-1), h.mean(), F.mse_loss(h, x), torch.cat([x, h]), h.sigmoid() * x


@HEALTHY.add()
def a_region_reaches_over_the_loss():
    model, y = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)), torch.tensor([0, 2])
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cpu")
    for _ in range(3):
        optimizer.zero_grad()
        with autocast(F16):
            loss = F.cross_entropy(model(torch.randn(2, 4)), y, label_smoothing=0.1)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return loss


@HEALTHY.add()
def an_island_widens_its_input():
    fc, other = nn.Linear(4, 4), nn.Linear(4, 4)
    with autocast():
        h = fc(torch.randn(2, 4))
        with autocast(enabled=False):
            h = other(h.float())
        return other(h)


@HEALTHY.add()
def a_region_within_a_half_model():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).bfloat16()
    with autocast():
        h = model(torch.randn(2, 4))
    return model(h.bfloat16())


# ---------------------------------------------------------------- DG202: functions without custom_fwd


class Linear(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.t() @ x


class Decorated(Linear):
    forward = staticmethod(custom_fwd(Linear.forward, device_type="cpu", cast_inputs=F32))
    backward = staticmethod(custom_bwd(Linear.backward, device_type="cpu"))


class Half(Linear):
    forward = staticmethod(custom_fwd(Linear.forward, device_type="cpu", cast_inputs=BF16))
    backward = staticmethod(custom_bwd(Linear.backward, device_type="cpu"))


class Following(Linear):
    forward = staticmethod(custom_fwd(Linear.forward, device_type="cpu"))
    backward = staticmethod(custom_bwd(Linear.backward, device_type="cpu"))


class Careful(Linear):
    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad = grad.to(x.dtype)
        return grad @ weight, grad.t() @ x


class Net(nn.Module):
    def __init__(self, function, *args):
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return self.function.apply(x, self.weight)


def train(function, dtype=BF16, enabled=True):
    model, x = Net(function), torch.randn(2, 4, requires_grad=True)
    with autocast(dtype, enabled=enabled):
        y = model(x)
    y.sum().backward()
    return model.weight.grad, x.grad


@BUGS.add(
    "DG202",
    "return self.function.apply(x, self.weight)",
    severity="error",
    module_path="Net",
    message=(
        "autograd.Function `Linear` ran under autocast without `custom_fwd`; "
        "its backward failed at test_audit_autocast.py, in backward: "
        "expected m1 and m2 to have the same dtype, but got: c10::BFloat16 != float"
    ),
)
def a_linear_function_multiplies_in_backward():
    return train(Linear)


class Similarity(Function):
    """Its backward is elementwise, so that it promotes where another would fail."""

    @staticmethod
    def forward(ctx, x, scale):
        out = x @ x.t()
        ctx.save_for_backward(x, scale, out)
        return out * 2

    @staticmethod
    def backward(ctx, grad):
        x, scale, _ = ctx.saved_tensors
        return (grad.sum(1, keepdim=True) * x) * 4, scale * 0


@BUGS.add("DG202", "y = Similarity.apply(x, x)", severity="info")
def a_function_promotes_in_backward():
    x = torch.randn(2, 4, requires_grad=True)
    with autocast():
        y = Similarity.apply(x, x)
    y.float().sum().backward()
    return x.grad


class Attention(Function):
    @staticmethod
    def forward(ctx, q, k, v):
        weights = (q @ k.mT).softmax(-1)
        ctx.save_for_backward(q, k, v, weights)
        return weights @ v

    @staticmethod
    def backward(ctx, grad):
        q, k, v, weights = ctx.saved_tensors
        d = grad @ v.mT
        d = weights * (d - (d * weights).sum(-1, keepdim=True))
        return d @ k, d.mT @ q, weights.mT @ grad


class Attends(nn.Module):
    def forward(self, x):
        return Attention.apply(x, x, x)


@BUGS.add("DG202", "return Attention.apply(x, x, x)", severity="error", module_path="Attends", op="Attention.apply")
def an_attention_of_ones_own_saves_its_inputs():
    x = torch.randn(1, 3, 4, requires_grad=True)
    with autocast(F16):
        y = Attends()(x)
    y.float().sum().backward()
    return x.grad


class Loss(Function):
    @staticmethod
    def forward(ctx, hidden, head, target):
        logits = hidden @ head.t()
        ctx.save_for_backward(hidden, head, target, logits)
        return F.cross_entropy(logits.float(), target)

    @staticmethod
    def backward(ctx, grad):
        hidden, head, target, logits = ctx.saved_tensors
        d = logits.softmax(-1)
        d[torch.arange(len(target)), target] -= 1
        return d @ head, d.t() @ hidden, None


@BUGS.add("DG202", "loss = Loss.apply(hidden, head, target)", severity="error", op="Loss.apply")
def a_fused_loss_saves_two_dtypes():
    hidden, head = torch.randn(2, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    target = torch.tensor([0, 2])
    with autocast():
        loss = Loss.apply(hidden, head, target)
    loss.backward()
    return head.grad


@HEALTHY.add()
def a_function_is_decorated():
    return train(Decorated), train(Half), train(Decorated, F16)


@HEALTHY.add()
def a_function_is_decorated_without_a_cast():
    return train(Following), train(Following, enabled=False), train(Decorated, enabled=False)


def contiguous(function):
    """What libraries of kernels put around forward and backward."""

    @functools.wraps(function)
    def wrapper(ctx, *args):
        return function(ctx, *(a.contiguous() if isinstance(a, torch.Tensor) else a for a in args))

    return wrapper


class Wrapped(Similarity):
    forward = staticmethod(contiguous(custom_fwd(Similarity.forward, device_type="cpu")))
    backward = staticmethod(contiguous(custom_bwd(Similarity.backward, device_type="cpu")))


@HEALTHY.add()
def a_decorated_function_is_wrapped():
    x = torch.randn(2, 4, requires_grad=True)
    with autocast():
        y = Wrapped.apply(x, x)
    y.float().sum().backward()
    return x.grad


@HEALTHY.add()
def a_function_casts_its_gradient():
    return train(Careful)


@HEALTHY.add()
def a_function_without_autocast():
    return train(Linear, enabled=False)


class StraightThrough(Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad


class Reverse(Function):
    @staticmethod
    def forward(x, scale):
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.scale = inputs[1]

    @staticmethod
    def backward(ctx, grad):
        return -ctx.scale * grad, None


class Swish(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return grad * s * (1 + x * (1 - s))


@HEALTHY.add()
def elementwise_functions_under_autocast():
    fc, x = nn.Linear(4, 4), torch.randn(2, 4)
    with autocast():
        h = Swish.apply(Reverse.apply(StraightThrough.apply(fc(x)), 0.5))
        h = h + Swish.apply(x)
    h.float().sum().backward()
    return fc.weight.grad


class FusedNorm(Function):
    """Computes in float32 and saves its statistics so; half goes in, half comes out, in both directions."""

    @staticmethod
    def forward(ctx, x, weight):
        h = x.float()
        scale = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x, weight, scale)
        return (h * scale * weight).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        x, weight, scale = ctx.saved_tensors
        normed = x * scale
        g = grad * weight
        dx = (g - normed * (g * normed).mean(-1, keepdim=True)) * scale
        return dx.to(x.dtype), (grad * normed).sum(0).to(weight.dtype)


@HEALTHY.add()
def a_fused_norm_computes_in_float32():
    fc, weight = nn.Linear(4, 4), nn.Parameter(torch.ones(4))
    with autocast():
        h = FusedNorm.apply(fc(torch.randn(2, 4)), weight)
    h.float().square().sum().backward()
    return weight.grad, fc.weight.grad


class FusedLoss(Function):
    """Computes its gradients in forward; backward has only to scale them."""

    @staticmethod
    def forward(ctx, hidden, head, target):
        logits = (hidden @ head.t()).float()
        d = logits.softmax(-1)
        d[torch.arange(len(target)), target] -= 1
        d = d / len(target)
        ctx.save_for_backward(d @ head, d.t() @ hidden)
        return F.cross_entropy(logits, target)

    @staticmethod
    def backward(ctx, grad):
        hidden, head = ctx.saved_tensors
        return hidden * grad, head * grad, None


@HEALTHY.add()
def a_fused_loss_scales_its_gradients():
    hidden, head = torch.randn(2, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    with autocast():
        loss = FusedLoss.apply(hidden, head, torch.tensor([0, 2]))
    loss.backward()
    return hidden.grad, head.grad


@HEALTHY.add()
def autocast_is_switched_on_for_good():
    fc, x = nn.Linear(4, 4), torch.randn(2, 4)
    torch.set_autocast_dtype("cpu", BF16)
    torch.set_autocast_enabled("cpu", True)
    try:
        return x + fc(x)
    finally:
        torch.set_autocast_enabled("cpu", False)
        torch.clear_autocast_cache()


@HEALTHY.add()
def a_fused_norm_in_a_half_model():
    x, weight = torch.randn(2, 4, dtype=BF16, requires_grad=True), nn.Parameter(torch.ones(4))
    FusedNorm.apply(x, weight).float().square().sum().backward()
    return weight.grad, x.grad


# ---------------------------------------------------------------- DG203: operations that autocast leaves alone


class Canvas(nn.Module):
    def __init__(self, write):
        super().__init__()
        self.fc, self.write = nn.Linear(4, 2), write

    def forward(self, x, index):
        canvas = torch.zeros(6, 2)
        self.write(canvas, index, self.fc(x))
        return canvas


def paint(write, dtype=BF16):
    with torch.no_grad(), autocast(dtype):
        return Canvas(write)(torch.randn(3, 4), torch.tensor([0, 2, 5]))


def by_index(canvas, index, values):
    canvas[index] = values


def by_scatter(canvas, index, values):
    canvas.scatter_(0, index[:, None].expand(3, 2), values)


def by_index_add(canvas, index, values):
    canvas.index_add_(0, index, values)


def by_mask(canvas, index, values):
    mask = torch.zeros(6, 1, dtype=torch.bool)
    mask[index] = True
    canvas.masked_scatter_(mask, values)


@BUGS.add(
    "DG203",
    "canvas[index] = values",
    severity="error",
    module_path="Canvas",
    from_dtype=BF16,
    message=(
        "`canvas[index] = values` under autocast was refused: "
        "Index put requires the source and destination dtypes match, "
        "got Float for the destination and BFloat16 for the source."
    ),
)
def a_canvas_is_written_by_index():
    return paint(by_index)


@BUGS.add("DG203", "canvas.scatter_(0, index", severity="error", module_path="Canvas")
def a_canvas_is_scattered_into():
    return paint(by_scatter)


@BUGS.add("DG203", "canvas.index_add_(0, index, values)", severity="error", module_path="Canvas")
def messages_are_added_by_index():
    return paint(by_index_add, F16)


@BUGS.add("DG203", "canvas.masked_scatter_(mask, values)", severity="error", module_path="Canvas")
def image_features_replace_tokens():
    return paint(by_mask)


@BUGS.add("DG203", "canvas[torch.tensor([0, 1])] = fc(x)", severity="error", from_dtype=BF16, module_path=None)
def a_canvas_of_a_script():
    fc, x, canvas = nn.Linear(4, 2), torch.randn(2, 4), torch.zeros(6, 2)
    with torch.no_grad(), autocast():
        canvas[torch.tensor([0, 1])] = fc(x)
    return canvas


@HEALTHY.add()
def a_canvas_is_made_like_what_is_written():
    def write(canvas, index, values):
        canvas = values.new_zeros(6, 2)
        canvas[index] = values
        canvas.index_add_(0, index, values)
        return canvas

    return paint(write)


@HEALTHY.add()
def what_is_written_is_cast():
    def write(canvas, index, values):
        canvas[index] = values.to(canvas.dtype)
        canvas.scatter_add_(0, index[:, None].expand(3, 2), values.float())

    return paint(write)


@HEALTHY.add()
def operations_that_cast_by_themselves():
    fc, x = nn.Linear(4, 4), torch.randn(2, 4)
    with autocast():
        h = fc(x)
        out = torch.zeros(2, 4)
        out[:1] = h[:1]
        out.copy_(h)
        return out, torch.cat([x, h]), torch.stack([x, h]), x + h, torch.where(x > 0, x, h), F.pad(h, (0, 1))


@HEALTHY.add()
def a_cache_in_half_takes_half_keys():
    fc, cache = nn.Linear(4, 4), torch.zeros(8, 4, dtype=BF16)
    with torch.no_grad(), autocast():
        cache[torch.tensor([0, 1])] = fc(torch.randn(2, 4))
        cache.index_copy_(0, torch.tensor([2, 3]), fc(torch.randn(2, 4)))
    return cache


# ---------------------------------------------------------------- DG204: see tests/cuda; the CPU has no such list


@HEALTHY.add()
def binary_cross_entropy_on_the_cpu():
    fc, y = nn.Linear(4, 1), torch.rand(3, 1)
    with autocast():
        logits = fc(torch.randn(3, 4))
        loss = F.binary_cross_entropy_with_logits(logits, y) + F.binary_cross_entropy(logits.sigmoid(), y)
    loss.backward()
    return fc.weight.grad


@HEALTHY.add()
def binary_cross_entropy_of_logits_within_a_region():
    fc, y, weight = nn.Linear(4, 1), torch.randint(0, 2, (3, 1)).float(), torch.tensor([2.0])
    with autocast(F16):
        loss = nn.BCEWithLogitsLoss(pos_weight=weight)(fc(torch.randn(3, 4)), y)
    loss.backward()
    return fc.weight.grad


@HEALTHY.add()
def binary_cross_entropy_after_a_region():
    fc, y = nn.Linear(4, 1), torch.rand(3, 1)
    with autocast():
        logits = fc(torch.randn(3, 4))
    return F.binary_cross_entropy(logits.float().sigmoid(), y), F.binary_cross_entropy_with_logits(logits, y)


@HEALTHY.add()
def binary_cross_entropy_on_an_island():
    fc, y = nn.Linear(4, 1), torch.rand(3, 1)
    with autocast():
        p = fc(torch.randn(3, 4)).sigmoid()
        with autocast(enabled=False):
            loss = nn.BCELoss()(p.float(), y)
    loss.backward()
    return fc.weight.grad


# ---------------------------------------------------------------- DG205: autocast does not cast for everybody


def flash_attention(q, k, v):
    if q.dtype not in (F16, BF16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    return F.scaled_dot_product_attention(q, k, v)


class Flash(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(1))

    def forward(self, x):
        q = F.normalize(x, dim=-1) * self.temperature
        return flash_attention(q, q, x)


@BUGS.add(
    "DG205",
    "return flash_attention(q, q, x)",
    severity="error",
    module_path="Flash",
    from_dtype=F32,
    message=(
        "`flash_attention(q, q, x)` under autocast got `q` in float32: "
        "FlashAttention only support fp16 and bf16 data type"
    ),
)
def flash_attention_gets_float32():
    with autocast():
        return Flash()(torch.randn(1, 1, 3, 4))


def scan(u, delta):
    if u.dtype is not BF16:
        raise TypeError(f"selective_scan expects bfloat16, got {u.dtype}")
    return u * delta


@BUGS.add("DG205", "return scan(hidden, hidden)", severity="error", from_dtype=F32)
def a_kernel_gets_what_a_norm_made():
    norm = nn.LayerNorm(4)
    with autocast():
        hidden = norm(torch.randn(2, 4))
        return scan(hidden, hidden)


def grouped_gemm(a, b):
    if a.dtype is F32:
        raise ValueError("grouped_gemm: half precision inputs required")
    return a @ b


class Grouped(nn.Module):
    def forward(self, tokens, weight):
        return grouped_gemm(tokens, weight)


@BUGS.add("DG205", "return grouped_gemm(tokens, weight)", severity="error", module_path="Grouped")
def a_grouped_gemm_gets_float32():
    with autocast(F16):
        return Grouped()(torch.randn(2, 4), torch.randn(4, 4))


@HEALTHY.add()
def a_kernel_gets_what_it_takes():
    x = torch.randn(1, 1, 3, 4)
    with autocast():
        q = F.normalize(x, dim=-1).to(torch.get_autocast_dtype("cpu"))
        return flash_attention(q, q, q)


@HEALTHY.add()
def a_kernel_is_chosen_by_dtype():
    def attend(x):
        try:
            return flash_attention(x, x, x)
        except RuntimeError:
            return F.scaled_dot_product_attention(x, x, x)

    with autocast():
        return attend(torch.randn(1, 1, 3, 4))


@HEALTHY.add()
def a_program_refuses_for_reasons_of_its_own():
    def step(x):
        raise ValueError("loss is nan at step 3")

    with autocast():
        return step(torch.randn(3) + 1)


@HEALTHY.add()
def a_batch_cannot_be_split_in_half():
    def split(x):
        raise ValueError("cannot split the batch in half")

    with autocast():
        return split(torch.randn(3) + 1)


@HEALTHY.add()
def a_file_in_fp16_is_not_found():
    def load(x):
        raise RuntimeError("the fp16 checkpoint is not there")

    with autocast():
        return load(torch.randn(3) + 1)


@HEALTHY.add()
def a_program_refuses_float32_without_autocast():
    x = torch.randn(1, 1, 3, 4) * 2
    return flash_attention(x, x, x)


# ---------------------------------------------------------------- DG206: a constant that does not fit


class Scores(nn.Module):
    def __init__(self, fill):
        super().__init__()
        self.q, self.fill = nn.Linear(4, 4), fill

    def forward(self, x, mask):
        scores = self.q(x) @ x.transpose(-1, -2).to(self.q.weight.dtype)
        scores = scores.masked_fill(mask, self.fill)
        return scores.softmax(-1)


def score(fill, dtype=F16, model=None):
    x, mask = torch.randn(1, 3, 4), torch.ones(3, 3).triu(1).bool()
    model = model or Scores(fill)
    if dtype is None:
        return model.half()(x.half(), mask)
    with torch.no_grad(), autocast(dtype):
        return model(x, mask)


@BUGS.add(
    "DG206",
    "scores = scores.masked_fill(mask, self.fill)",
    severity="error",
    module_path="Scores",
    message="`scores.masked_fill(mask, self.fill)` was refused: "
    "value cannot be converted to type c10::Half without overflow",
)
def a_mask_is_filled_with_minus_one_billion():
    return score(-1e9)


@BUGS.add("DG206", "scores = scores.masked_fill(mask, self.fill)", severity="error", module_path="Scores")
def a_half_model_fills_with_the_least_float32():
    return score(torch.finfo(F32).min, None)


@BUGS.add("DG206", "torch.full((2, 2), -1e5, dtype=x.dtype)", severity="error")
def a_mask_is_made_with_a_constant():
    x = torch.randn(2, 2).half()
    return x + torch.full((2, 2), -1e5, dtype=x.dtype)


@BUGS.add("DG206", "scores[:, 0].fill_(-1e9)", severity="error", from_dtype=F16, origin=["torch.randn(2, 2).half()"])
def a_column_of_half_scores_is_filled():
    scores = torch.randn(2, 2).half()
    scores[:, 0].fill_(-1e9)
    return scores


@HEALTHY.add()
def fills_that_fit():
    return score(-math.inf), score(torch.finfo(F16).min), score(-1e4), score(-1e4, None)


@HEALTHY.add()
def fills_that_fit_into_bfloat16():
    return score(-1e9, BF16), score(torch.finfo(BF16).min, BF16)


@HEALTHY.add()
def a_fill_of_the_dtype_of_the_scores():
    class Own(Scores):
        def forward(self, x, mask):
            scores = self.q(x) @ x.transpose(-1, -2).to(self.q.weight.dtype)
            return scores.masked_fill(mask, torch.finfo(scores.dtype).min).softmax(-1)

    return score(0, F16, Own(0)), score(0, BF16, Own(0)), score(0, None, Own(0))


@HEALTHY.add()
def scores_are_filled_in_float32():
    scores = torch.randn(3, 3).half()
    mask = torch.ones(3, 3).triu(1).bool()
    return scores.float().masked_fill(mask, -1e9).softmax(-1).to(scores.dtype)


@HEALTHY.add()
def a_refused_fill_is_handled():
    scores = torch.randn(2).half()
    try:
        scores.fill_(-1e9)
    except RuntimeError:
        scores.fill_(torch.finfo(F16).min)
    return scores
