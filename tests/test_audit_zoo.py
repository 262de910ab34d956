"""Bugs of public projects, each cut down to an expression or a program of a few lines, as an audit finds them.

Those that a rule's own programs say already are not said again here: what stands here meets PyTorch elsewhere.
"""

import contextlib
import inspect
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from audit_cases import audited, bad
from support import BF16, F16, F32
from torch import nn

import dtypeguard

U8, I8, I16, I32 = torch.uint8, torch.int8, torch.int16, torch.int32
INTS, BOOLS, COMPLEX = torch.tensor([[1, 2], [3, 5]]), torch.tensor([True, False]), torch.ones(2, dtype=torch.complex64)
SHORT = torch.tensor([0, 1], dtype=I32)


# ---------------------------------------------------------------- what torch refuses


def ones(*shape, dtype=F32, device=None):
    return torch.ones(shape, dtype=dtype, device=device)


def half(call):
    """Under autocast, with what it made half."""
    with torch.no_grad(), torch.autocast("cpu", dtype=BF16):
        return call(nn.Linear(2, 2)(ones(2, 2)))


REFUSED = {
    "norm of integers": (lambda: INTS.norm(), "DG110"),
    "normalised integers": (lambda: F.normalize(INTS), "DG110"),
    "inverse of integers": (lambda: torch.linalg.inv(INTS), "DG110"),
    "inverse of half": (lambda: torch.linalg.inv(torch.eye(2).half()), "DG110"),
    "quantile of half": (lambda: ones(3, dtype=F16).quantile(0.9), "DG110"),
    "complex numbers of bfloat16": (lambda: torch.view_as_complex(ones(3, 2, dtype=BF16)), "DG110"),
    "spectrum of bfloat16": (lambda: torch.fft.rfft(ones(4, dtype=BF16)), "DG110"),
    "take by int32": (lambda: INTS.take(SHORT), "DG110"),
    "gather by floats": (lambda: ones(2, 3).gather(1, ones(2, 1)), "DG110"),
    "rows by floats": (lambda: torch.arange(4)[torch.tensor([5, 7]) / 3], "DG110"),
    "index_copy by int32": (lambda: torch.zeros(2, 2).index_copy(0, SHORT, torch.ones(2, 2)), "DG110"),
    "index_copy of half": (lambda: ones(6, 4).index_copy_(0, torch.arange(2), ones(2, 4, dtype=F16)), "DG110"),
    "put by int32": (lambda: torch.zeros(2).put_(SHORT, torch.ones(2)), "DG110"),
    "floats written among integers": (lambda: torch.full((4,), 0).index_put_((torch.arange(2),), ones(2)), "DG110"),
    "weights of a bag in half": (
        lambda: F.embedding_bag(INTS, torch.rand(9, 2), per_sample_weights=torch.ones(2, 2).half(), mode="sum"),
        "DG110",
    ),
    "prelu of integers": (lambda: F.prelu(INTS, torch.ones(1)), "DG110"),
    "isclose of integers and floats": (lambda: torch.isclose(INTS, INTS.float()), "DG110"),
    "mask of integers": (lambda: INTS.masked_select(INTS), "DG110"),
    "condition of floats": (lambda: torch.where(ones(2), 1.0, 2.0), "DG110"),
    "divergence of integers": (lambda: F.kl_div(INTS, INTS, reduction="sum"), "DG110"),
    "relu of bools": (lambda: F.relu(BOOLS), "DG110"),
    "argmax of bools": (lambda: BOOLS.argmax(), "DG110"),
    "mean of bools": (lambda: BOOLS.mean(), "DG110"),
    "clamp of complex numbers": (lambda: COMPLEX.clamp(0), "DG110"),
    "maximum of complex numbers": (lambda: torch.maximum(COMPLEX, COMPLEX), "DG110"),
    "sign of complex numbers": (lambda: COMPLEX.sign(), "DG110"),
    "gradient of bytes": (lambda: torch.gradient(torch.ones(3, dtype=torch.uint8)), "DG110"),
    "least squares in half": (lambda: torch.linalg.lstsq(torch.eye(2).half(), torch.eye(2).half()), "DG110"),
    "unpooling by int32": (lambda: F.max_unpool1d(torch.ones(1, 1, 2), SHORT.expand(1, 1, 2), 2), "DG110"),
    "spectrogram of integers": (lambda: torch.stft(torch.arange(64), 16, return_complex=True), "DG110"),
    "limits of a float": (lambda: torch.iinfo(torch.rand(2).dtype), "DG110"),
    "bfloat16 to NumPy": (lambda: torch.ones(2).bfloat16().numpy(), "DG110"),
    "negated bools": (lambda: -BOOLS, "DG110"),
    "one minus bools": (lambda: 1 - BOOLS, "DG110"),
    "half of an integer, in place": (lambda: INTS.clone().div_(2), "DG110"),
    "gradients of integers": (lambda: nn.Parameter(INTS), "DG110"),
    "counts of floats": (lambda: torch.bincount(ones(3)), "DG110"),
    "classes in int32": (lambda: F.one_hot(SHORT), "DG110"),
    "integers resized": (lambda: F.interpolate(INTS[None, None], scale_factor=2.0), "DG110"),
    "uint16 compared": (lambda: torch.from_numpy(np.array([900], dtype=np.uint16)) > 1000, "DG110"),
    "class targets in int32": (lambda: F.cross_entropy(ones(2, 3), SHORT), "DG110"),
    "class targets in float": (lambda: F.cross_entropy(ones(2, 3), ones(2)), "DG110"),
    "binary targets of integers": (lambda: F.binary_cross_entropy_with_logits(ones(2), INTS[0]), "DG110"),
    "half pixels": (lambda: nn.Conv2d(1, 2, 1)(ones(1, 1, 2, 2, dtype=F16)), "DG110"),
    "bytes as pixels": (lambda: nn.Conv2d(1, 2, 1)(ones(1, 1, 2, 2, dtype=U8)), "DG110"),
    "norm in half": (lambda: nn.GroupNorm(2, 4).half()(ones(1, 4, 3, 3)), "DG110"),
    "weights in int8": (lambda: F.linear(ones(4, 3), ones(2, 3, dtype=I8)), "DG110"),
    "attention mask of integers": (
        lambda: F.scaled_dot_product_attention(*[ones(1, 3, 4)] * 3, attn_mask=torch.ones(3, 3).long()), "DG110",
    ),
    "probabilities times half values": (lambda: ones(1, 3, 3) @ ones(1, 3, 4, dtype=BF16), "DG110"),
    "contraction of two dtypes": (
        lambda: torch.einsum("etd,te->td", ones(2, 4, 3, dtype=F16), ones(4, 2)), "DG110",
    ),
    "grid in float32": (
        lambda: F.grid_sample(ones(1, 2, 4, 4, dtype=F16), ones(1, 2, 2, 2), align_corners=False), "DG110",
    ),
    "class weights of NumPy": (
        lambda: F.cross_entropy(ones(2, 3), torch.tensor([0, 1]), weight=torch.from_numpy(np.ones(3))), "DG101",
    ),
    "recurrent state of NumPy": (lambda: nn.GRU(3, 4)(ones(5, 2, 3), torch.from_numpy(np.zeros((1, 2, 4)))), "DG101"),
    "scattered under autocast": (
        lambda: half(lambda h: torch.zeros(3, 2).scatter_add(0, torch.zeros(2, 2).long(), h)), "DG203",
    ),
    "complex numbers under autocast": (lambda: half(lambda h: torch.complex(h, h)), "DG203"),
    "inner product on two devices": (lambda: torch.inner(torch.ones(2), torch.ones(2, device="meta")), "DG505"),
    "along an axis on two devices": (lambda: INTS.take_along_dim(INTS.to("meta"), 0), "DG505"),
    "a number from meta": (lambda: torch.ones(1, device="meta").item(), "DG505"),
    "a sum of two devices": (lambda: torch.ones(2) + torch.ones(2, device="meta"), "DG505"),
    "mask on the CPU": (lambda: ones(2, device="meta").masked_fill(BOOLS, 0), "DG505"),
    "weight of a loss on the CPU": (
        lambda: nn.BCEWithLogitsLoss(pos_weight=ones(3))(*[ones(2, 3, device="meta")] * 2), "DG505",
    ),
    "lengths on a device": (
        lambda: nn.utils.rnn.pack_padded_sequence(ones(3, 2, 4), torch.tensor([3, 2], device="meta")), "DG505",
    ),
}  # fmt: skip


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses_is_named(name):
    call, rule = REFUSED[name]
    with pytest.raises((RuntimeError, TypeError, IndexError)) as alone:
        call()
    with pytest.raises(type(alone.value)) as watched, dtypeguard.audit() as report:
        call()
    assert str(watched.value) == str(alone.value)
    assert report.faults == []
    assert [(finding.rule, finding.severity) for finding in bad(report)] == [(rule, "error")]
    assert bad(report)[0].line in range(call.__code__.co_firstlineno, call.__code__.co_firstlineno + 2)


# ---------------------------------------------------------------- what it computes otherwise than it was meant

DOUBLES = np.array([0.1, 0.2])
COMPUTED = {
    "sum of half and float32": (lambda: ones(2, dtype=BF16) + ones(2), "DG102"),
    "matmul scaled in float32": (lambda: (ones(2, 2, dtype=F16) @ ones(2, 2, dtype=F16)) * ones(2, 1), "DG102"),
    "token before half ones": (lambda: torch.cat([ones(1), ones(3, dtype=BF16)]), "DG102"),
    "filled with float32": (lambda: torch.where(BOOLS, ones(2, dtype=F16), torch.zeros(2)), "DG102"),
    "bound in float32": (lambda: torch.clamp(ones(2, dtype=BF16), min=ones(2) / 3), "DG102"),
    "limits of NumPy": (lambda: torch.where(BOOLS, torch.from_numpy(DOUBLES), ones(2)), "DG101"),
    "actions of NumPy": (lambda: torch.cat([ones(2), torch.as_tensor(DOUBLES)]), "DG101"),
    "losses of NumPy": (lambda: torch.stack([ones(2), torch.from_numpy(DOUBLES)]), "DG101"),
    "phases of NumPy": (lambda: COMPLEX * torch.from_numpy(np.exp(1j * DOUBLES)), "DG101"),
    "noise of NumPy": (lambda: COMPLEX + torch.from_numpy(DOUBLES), "DG101"),
    "bounds of NumPy": (lambda: torch.min(ones(2), torch.from_numpy(DOUBLES)), "DG101"),
    "layer in float16": (lambda: F.linear(ones(1, 64, dtype=F16) * 60, ones(2, 64, dtype=F16) * 40), "DG105"),
    "scores in float16": (lambda: ones(2, 64, dtype=F16) * 40 @ (ones(64, 2, dtype=F16) * 40), "DG105"),
    "running sum in float16": (lambda: (ones(100, dtype=F16) * 1000).cumsum(0), "DG105"),
    "sum in float16": (lambda: ones(70_000, dtype=F16).sum(), "DG105"),
    "exponent in float16": (lambda: (ones(2, dtype=F16) * 12).exp(), "DG105"),
    "blended in bytes": (lambda: (ones(2, dtype=U8) * 200 + ones(2, dtype=U8) * 100) // 2, "DG109"),
    "ignored in bytes": (lambda: torch.tensor([3, -1]).to(U8), "DG109"),
    "sound in int16": (lambda: torch.tensor([0.5, 1.0]).mul(32768).to(I16), "DG109"),
    "weights in int8": (lambda: (torch.tensor([0.5, -1.3]) / 0.008).round().to(I8), "DG109"),
    "spectrum among reals": (lambda: torch.zeros(2).copy_(COMPLEX * 1j), "DG107"),
}


@pytest.mark.thin(3)
@pytest.mark.filterwarnings("ignore:Casting complex values to real")  # torch's own, once in a process
@pytest.mark.parametrize("name", COMPUTED)
def test_what_is_computed_otherwise_than_meant_is_found(name):
    call, rule = COMPUTED[name]
    (finding,) = bad(audited(call))
    assert (finding.rule, finding.line) == (rule, call.__code__.co_firstlineno)


# ---------------------------------------------------------------- programs

MARK = re.compile(r"#((?: DG\d{3})+)( info)?$")
PROGRAMS = {}


def bug(program):
    """Enter a program: a comment at the end of a line names the rules that are found there, and nowhere else.

    Without its fault it is clean.
    """
    PROGRAMS[program.__name__] = program
    return program


def marked(program):
    """What must be found as a fault, and what as information."""
    loud, quiet = set(), set()
    lines, first = inspect.getsourcelines(program)
    for number, line in enumerate(lines, first):
        mark = MARK.search(line.rstrip())
        for rule in mark[1].split() if mark else ():
            (quiet if mark[2] else loud).add((rule, number))
    return loud, quiet


@bug
def keywords_of_several_dtypes(fault):
    """yifan123/flow_grpo#147: some keyword arguments of a half transformer are float32, one of them in a dict."""

    class Flow(nn.Module):
        def __init__(self):
            super().__init__()
            self.latent, self.text = nn.Linear(3, 4), nn.Linear(5, 4)
            self.step = nn.Embedding(10, 4)

        def forward(self, *, latents, step, text, pooled):
            context = self.text(text) + self.text(pooled["text"])  # DG110
            return self.latent(latents) + context + self.step(step)

    pooled = {"text": torch.randn(1, 5)}
    return Flow().half()(
        latents=torch.randn(1, 3).half(),
        step=torch.tensor([3]),
        text=torch.randn(1, 5).half(),
        pooled=pooled if fault else {"text": pooled["text"].half()},
    )


@bug
def huber_target_is_double(fault):
    """callummcdougall/ARENA_3.0#203: rewards from NumPy; the loss is computed, its backward fails."""

    def td_loss(value, target):
        return F.huber_loss(value, target)  # DG101

    rewards = torch.from_numpy(np.array([1.0, 0.0, 0.5]))
    network = nn.Linear(2, 1)
    value = network(torch.randn(3, 2)).squeeze(1)
    loss = td_loss(value, rewards if fault else rewards.float())
    loss.backward()  # DG101
    return loss.detach()


@bug
def half_leaves_for_a_loss(fault):
    """huggingface/diffusers#3713: a loss promotes what a region made, and its backward fails."""
    layer, x, target = nn.Linear(4, 1), torch.randn(3, 4), torch.randn(3, 1)
    with torch.autocast("cpu", dtype=BF16):
        prediction = layer(x)
    loss = F.huber_loss(prediction if fault else prediction.float(), target)  # DG210
    loss.backward()  # DG201
    return layer.weight.grad


@bug
def cache_in_float(fault):
    """TransformerLensOrg/TransformerLens#1260: a cache in float32; concatenation promotes, attention refuses."""

    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(4, 12)
            self.keys = self.values = torch.zeros(1, 1, 4, dtype=F32 if fault else BF16)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            self.keys = torch.cat([self.keys, k], 1)  # DG102
            self.values = torch.cat([self.values, v], 1)  # DG102
            return F.scaled_dot_product_attention(q, self.keys, self.values)  # DG110

    model = Cached()
    for layer in model.children():
        layer.bfloat16()
    return model(torch.randn(1, 2, 4).bfloat16())


@bug
def bias_of_alibi_is_float(fault):
    """ALiBi's bias is made in float32 and added to bfloat16 scores, which then do not fit to the values."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(4, 12)

        def forward(self, x):
            q, k, v = self.qkv(x[0]).chunk(3, -1)
            distance = torch.arange(len(q)) - torch.arange(len(q))[:, None]
            bias = distance.abs() * -0.5
            scores = q @ k.t() + (bias if fault else bias.to(q.dtype))  # DG102
            return scores.softmax(-1) @ v  # DG110

    return Attention().bfloat16()(torch.randn(1, 3, 4).bfloat16()).detach()


@bug
def table_is_grown_in_float(fault):
    """huggingface/transformers#13665: a table that is too short is made anew, whatever the model was converted to."""

    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", self.make(2))

        def make(self, length):
            return torch.sin(torch.arange(length)[:, None] * torch.tensor([1.0, 0.1]))

        def forward(self, x):
            if len(self.table) < x.shape[1]:
                table = self.make(x.shape[1])
                self.table = table if fault else table.to(self.table.dtype)  # DG504
            return self.table[: x.shape[1]]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.positions, self.norm = Positions(), nn.LayerNorm(2)

        def forward(self, x):
            x = x + self.positions(x)  # DG102
            return self.norm(x)  # DG110

    return Model().half()(torch.randn(1, 4, 2).half()).detach()


@bug
def cosines_are_cached_in_float(fault):
    """A table that is kept as an attribute at the first call, before the model is converted."""

    class Rope(nn.Module):
        def __init__(self):
            super().__init__()
            self.cosines = None

        def forward(self, x):
            if self.cosines is None or (not fault and self.cosines.dtype is not x.dtype):
                self.cosines = torch.arange(x.shape[-1]).cos().to(x.dtype)
            return x * self.cosines  # DG102

    rope = Rope()
    rope(torch.randn(2, 4))
    return rope.half()(torch.randn(2, 4).half())  # DG503


@bug
def anchors_in_a_list(fault):
    """Anchors are tensors in a list, which `.half()` does not know."""

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.anchors = [torch.tensor([10.0, 13.0]), torch.tensor([30.0, 61.0])]
            self.box = nn.Linear(3, 2)

        def forward(self, x):
            box = self.box(x).sigmoid()
            sizes = [anchor if fault else anchor.to(x.dtype) for anchor in self.anchors]
            return torch.stack([box * size for size in sizes]).detach()  # DG102

    return Head().half()(torch.randn(2, 3).half())  # DG503


@bug
def state_of_the_optimizer_is_narrowed(fault):
    """pytorch/pytorch#43706: `Optimizer.load_state_dict` casts the state to the dtype of the parameters."""

    def trained(dtype):
        model = nn.Linear(3, 1, dtype=dtype)
        optimizer = torch.optim.Adam(model.parameters(), eps=1e-4)
        model(torch.randn(4, 3, dtype=dtype)).sum().backward()
        optimizer.step()
        return optimizer

    state = trained(F32).state_dict()
    optimizer = trained(BF16 if fault else F32)
    optimizer.load_state_dict(state)  # DG604
    return [{key: value.float() for key, value in row.items()} for row in optimizer.state_dict()["state"].values()]


@bug
def restored_state_is_narrowed(fault):
    """pytorch/pytorch#43706: moments in float32 beside bfloat16 parameters; put back, nothing of them is lost."""
    weight = nn.Parameter(torch.ones(4, dtype=BF16))
    optimizer = torch.optim.Adam([weight])
    moments = {"exp_avg": torch.full((4,), 0.1234567), "exp_avg_sq": torch.full((4,), 1.234567e-3)}
    state = {0: {"step": torch.tensor(5.0), **moments}}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})  # DG604
    if not fault:
        optimizer.state[weight].update(moments)
    return optimizer.state[weight]["exp_avg"] + 1


@bug
def default_dtype_after_a_failed_load(fault):
    """huggingface/transformers#28461: a load fails before it sets the default dtype back."""

    def load():
        before = torch.get_default_dtype()
        torch.set_default_dtype(BF16)  # DG602
        try:
            raise OSError("shard 3 is missing")
        except OSError:
            if not fault:
                torch.set_default_dtype(before)
            raise

    with contextlib.suppress(OSError):
        load()
    try:
        return nn.Linear(2, 2).weight.detach() * 0
    finally:
        torch.set_default_dtype(F32)


@bug
def class_weights_of_numpy(fault):
    """sebsk/CS224N-Project#2: no argument is wrong, the criterion's buffer is."""
    counts = np.array([5.0, 1.0, 2.0])
    criterion = nn.CrossEntropyLoss(weight=torch.from_numpy(counts.sum() / counts))
    criterion = criterion if fault else criterion.float()
    try:
        return criterion(torch.ones(4, 3), torch.tensor([0, 1, 2, 1]))  # DG101 info
    except RuntimeError:
        return torch.zeros(())


def test_the_buffer_that_a_loss_refuses_is_named():
    """sebsk/CS224N-Project#2, and a loss that keeps its weights as a plain attribute."""

    class Focal(nn.Module):
        def __init__(self, alpha):
            super().__init__()
            self.alpha = alpha

        def forward(self, logits, labels):
            return F.cross_entropy(logits, labels, weight=self.alpha)

    def made_before(logits, labels):
        return known(logits, labels)

    weights, batch = np.array([1.6, 8.0, 4.0]), (torch.ones(4, 3), torch.tensor([0, 1, 2, 1]))
    known = nn.CrossEntropyLoss(weight=torch.from_numpy(weights))
    losses = {
        "`CrossEntropyLoss.weight` = f64[3]": lambda: nn.CrossEntropyLoss(weight=torch.from_numpy(weights))(*batch),
        "`Focal.alpha` = f64[3]": lambda: Focal(torch.from_numpy(weights))(*batch),
        "(buffer CrossEntropyLoss.weight: float64)": lambda: made_before(*batch),
    }
    for text, loss in losses.items():
        with pytest.raises(RuntimeError, match="Double"), dtypeguard.audit() as report:
            loss()
        assert [(finding.rule, finding.severity) for finding in report.findings] == [("DG101", "error")]
        assert text in report.findings[0].message
        born = "CrossEntropyLoss.weight" if text.startswith("(buffer") else "torch.from_numpy(weights)"
        assert report.findings[0].fix == f"convert where the float64 is born: `{born}.to(torch.float32)`"


@bug
def in_inference_mode(fault):
    """Statistics from NumPy, where nothing is recorded for backward."""
    mean = torch.from_numpy(np.zeros(3))
    with torch.inference_mode():
        x = nn.Linear(2, 3)(torch.randn(4, 2))
        return (x - (mean if fault else mean.float())).clone()  # DG101


@bug
def in_a_checkpointed_block(fault):
    """A block that runs again in backward."""
    scale = torch.from_numpy(np.full(3, 0.5))

    def block(x):
        return x.tanh() * (scale if fault else scale.float())  # DG101

    x = torch.randn(2, 3, requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
    y.sum().backward()
    return y.detach()


@bug
def in_a_hook_of_a_module(fault):
    """A hook that scales what a layer gives."""
    layer, scale = nn.Linear(2, 3), torch.from_numpy(np.full(3, 0.5))

    def rescale(module, args, output):
        return output * (scale if fault else scale.float())  # DG101

    layer.register_forward_hook(rescale)
    return layer(torch.randn(4, 2)).detach()


@bug
def in_a_vectorised_function(fault):
    """`torch.vmap` over a function with a constant of NumPy."""
    scale = torch.from_numpy(np.full(3, 0.5))

    def one(x):
        return x * (scale if fault else scale.float())  # DG101

    return torch.vmap(one)(torch.randn(4, 3))


@bug
def in_a_functional_call(fault):
    """Parameters that come from elsewhere."""

    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x * self.scale  # DG101

    scale = torch.from_numpy(np.full(3, 0.5))
    return torch.func.functional_call(Scale(), {"scale": scale if fault else scale.float()}, torch.randn(2, 3))


@bug
def in_a_closure_of_lbfgs(fault):
    """A loss that is computed by the optimizer's closure."""
    weight, target = nn.Parameter(torch.zeros(3)), torch.from_numpy(np.ones(3))
    optimizer = torch.optim.LBFGS([weight], max_iter=3)
    losses = []

    def closure():
        optimizer.zero_grad()
        loss = (weight - (target if fault else target.float())).square().sum()  # DG101
        loss.backward()
        losses.append(loss.detach())
        return loss

    optimizer.step(closure)
    return losses[0]


@pytest.mark.thin(3)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_bug_is_found_where_it_is(program):
    report = audited(lambda: program(True))
    loud, quiet = marked(program)
    assert loud or quiet
    assert {(finding.rule, finding.line) for finding in bad(report)} == loud
    assert quiet <= {(finding.rule, finding.line) for finding in report.findings}


@pytest.mark.thin(3)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_once_mended_it_is_clean(program):
    assert bad(audited(lambda: program(False))) == []
