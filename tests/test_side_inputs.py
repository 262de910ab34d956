"""Floating arguments that an author keeps in another dtype than the model's, on purpose."""

import contextlib
import copy
import functools
import io
import itertools
import pickle
import threading
import warnings

import pytest
import torch
import torch.utils.checkpoint
from jaxtyping import Float32
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_map

import dtypeguard
from dtypeguard import CastError, CastWarning, DtypeError, guard, unguard

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


class Denoiser(nn.Module):
    """A timestep that stays as it is, and a condition that a layer needs in the parameters' dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.text = nn.Linear(4, 4), nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
        self.rms = nn.RMSNorm(4)

    def forward(self, x, t=None, text=None):
        hidden = self.stem(x)
        if t is not None:
            hidden = hidden + torch.sin(t[:, None] * torch.arange(4)).to(hidden.dtype)
        return hidden if text is None else hidden + self.text(text)


class Boxes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)

    def forward(self, batch):
        return (self.stem(batch["image"]).float() - batch["targets"][0]["boxes"]).abs().mean()


class Text(nn.Module):
    """Compares a mask with zero, as a model of text does."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.out = nn.Embedding(9, 4), nn.Linear(4, 4)

    def forward(self, ids, attention_mask=None, weights=None):
        hidden = self.out(self.tokens(ids.long()))
        if weights is not None:
            hidden = self.out(hidden * weights[..., None])
        return hidden if attention_mask is None else hidden.masked_fill(attention_mask[..., None] == 0, 0)


class Takes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, t):
        return t


def made(dtype=BF16, model=Denoiser, **options):
    torch.manual_seed(0)
    return guard(model().to(dtype), **options)


def rand(*shape, dtype=F32):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)


IDS = torch.arange(6).reshape(2, 3)
STEPS = torch.tensor([947.54, 12.25])
BESIDE = {  # the parameters' dtype, the module, a call
    "a fractional timestep": (BF16, Denoiser, lambda: ((rand(2, 4, dtype=BF16), STEPS), {})),
    "whole timesteps": (BF16, Denoiser, lambda: ((rand(2, 4, dtype=BF16),), {"t": torch.tensor([999.0, 501.0])})),
    "float64 time in a float32 model": (F32, Denoiser, lambda: ((rand(2, 4), STEPS.double()), {})),
    "half beside float32": (F32, Denoiser, lambda: ((rand(2, 4), STEPS.half()), {})),
    "boxes in a dict in a list": (
        F16,
        Boxes,
        lambda: (({"image": rand(2, 4, dtype=F16), "targets": [{"boxes": 99.7 * rand(2, 4)}]},), {}),
    ),
    "a mask beside ids": (BF16, Text, lambda: ((IDS,), {"attention_mask": rand(2, 3).round()})),
    "a float64 mask beside ids": (F32, Text, lambda: ((IDS, rand(2, 3, dtype=F64).round()), {})),
}


@pytest.mark.parametrize("mode", ["strict", "lenient", "warn"])
@pytest.mark.parametrize("name", BESIDE)
def test_a_side_input_arrives_as_it_is_in_silence(name, mode):
    dtype, model, call = BESIDE[name]
    args, kwargs = call()
    expected = unguard(made(dtype, model))(*args, **kwargs)
    guarded = made(dtype, model, mode=mode)
    for _ in range(3):  # the first call finds the side input, the second knows it
        assert torch.equal(guarded(*args, **kwargs), expected)
    assert dtypeguard.casts() == []


@pytest.mark.parametrize(
    "call",
    [
        lambda model: model(IDS, weights=rand(2, 3)),  # no mask
        lambda model: model(IDS, attention_mask=rand(2, 3), weights=rand(2, 3)),
        lambda model: model(IDS.float(), attention_mask=rand(2, 3)),  # no ids
    ],
)
def test_only_masks_beside_ids_may_differ_where_nothing_shows_the_dtype(call):
    with pytest.raises(DtypeError, match="is float32"):
        call(made(model=Text, mode="strict"))


class Regression(Text):
    def forward(self, ids, attention_mask=None, labels=None):
        return (super().forward(ids, attention_mask).sum(-1)[:, 0] - labels).square().mean()


def test_labels_that_differ_do_not_make_a_mask_beside_ids_wrong():
    with pytest.raises(DtypeError, match="argument `labels` is float32") as raised:
        made(model=Regression, mode="strict")(IDS, attention_mask=rand(2, 3).round(), labels=rand(2))
    assert "also" not in str(raised.value)


def test_a_condition_that_a_layer_needs_is_cast_there():
    x, text = rand(2, 4, dtype=BF16), rand(2, 3)
    expected = unguard(made())(x, None, text.to(BF16))
    model = made()
    with pytest.warns(
        CastWarning, match=r"^Denoiser\.forward: `text` was cast from float32 to bfloat16, where .*text\.0 nee"
    ):
        assert torch.equal(model(x, None, text), expected)
    assert torch.equal(model(x, None, text), expected)
    (record,) = dtypeguard.casts()
    assert (record.function, record.argument, record.count) == ("Denoiser.forward", "text", 2)
    assert "test_side_inputs.py" in record.site


def test_strict_names_the_side_input_that_a_layer_refuses_and_those_beside_it():
    with pytest.raises(DtypeError) as caught:
        made(mode="strict")(rand(2, 4, dtype=BF16), STEPS, rand(2, 3))
    error = caught.value
    assert (error.argument, error.actual, error.expected) == ("text", F32, BF16)
    assert (error.function, error.module_path) == ("Denoiser.forward", "Denoiser")
    assert len(error.violations) == 1
    for row in ("needed by  Denoiser.text.0 (Linear) at ", "beside     t = f32[2] on cpu", "test_side_inputs.py"):
        assert row in str(error)


def test_what_was_computed_from_a_side_input_is_named_where_it_is_refused():
    class Late(Denoiser):
        def forward(self, x, t):
            return self.stem(x + 2 * t[:, None])

    with pytest.raises(DtypeError, match=r"^Linear\.forward: argument `input` is float32") as caught:
        made(model=Late, mode="strict")(rand(2, 4, dtype=BF16), STEPS)
    assert caught.value.module_path == "Late.stem"
    assert "beside     t = f32[2] on cpu" in str(caught.value)


INSTALLED = """
class Late(Denoiser):
    def forward(self, x, t):
        return self.stem(x + 2 * t)
"""


def test_the_argument_is_named_where_an_installed_package_computes_from_it(tmp_path):
    scope = {"Denoiser": Denoiser, "__name__": "late"}
    exec(compile(INSTALLED, str(tmp_path / "site-packages" / "late.py"), "exec"), scope)
    with pytest.raises(DtypeError) as caught:
        made(model=scope["Late"], mode="strict")(rand(2, 4, dtype=BF16), rand(2, 4))
    assert (caught.value.function, caught.value.argument) == ("Late.forward", "t")
    assert "rand(2, 4).to(torch.bfloat16)" in caught.value.fix
    with pytest.raises(DtypeError, match=r"^Linear\.forward: argument `input` is float32"):  # may have another reason
        made(model=scope["Late"], mode="strict")(rand(2, 4, dtype=BF16), rand(2, 1))


def test_torch_s_own_refusal_of_a_side_input_names_it():
    class Product(Denoiser):
        def forward(self, x, text):
            return text @ self.stem.weight + self.stem(x)

    for mode in ("strict", "lenient"):
        with pytest.raises(RuntimeError, match=r"same dtype|but got") as caught:
            made(model=Product, mode=mode)(rand(2, 4, dtype=BF16), rand(2, 4))
        assert any("side inputs of Product: text = f32[2,4] on cpu" in note for note in caught.value.__notes__)


# ---------------------------------------------------------------- what shows that the caller knows the dtype


@pytest.mark.parametrize(
    ("first", "shows"),
    [
        (lambda: rand(2, 4, dtype=BF16), True),
        (lambda: [rand(2, 4, dtype=BF16)], True),
        (lambda: rand(2, 4), False),
        (lambda: torch.tensor(0.5, dtype=BF16), False),  # a plain number: `torch.tensor(0.5)` has the default dtype
        (lambda: torch.ones(2, 4, dtype=torch.int64), False),
        (lambda: None, False),
    ],
    ids=["a tensor", "in a list", "another dtype", "a number", "integers", "nothing"],
)
def test_only_a_floating_argument_of_the_parameters_dtype_makes_side_inputs(first, shows):
    class Anything(Takes):
        def forward(self, *given):
            return given[-1]

    model = made(model=Anything)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CastWarning)
        for order in (1, -1):  # whichever comes first
            given = [first(), STEPS][::order]
            out = model(*given, None, STEPS)
            assert out.dtype is (F32 if shows else BF16)


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_a_repair_that_is_known_asks_again_whether_the_caller_knows_the_dtype():
    class Pair(Takes):
        def forward(self, x, t=None):
            return x

    model = made(model=Pair)
    given = [None, STEPS, [STEPS], STEPS.to(BF16), [STEPS.to(BF16)], torch.tensor(1.0, dtype=BF16)]
    for _ in range(2):
        assert [model(STEPS, t).dtype for t in given] == [BF16, BF16, BF16, F32, F32, BF16]


class Recurrent(nn.Module):
    """It answers in the dtype of its input."""

    def __init__(self, kind):
        super().__init__()
        self.cell = kind(3, 4)

    def forward(self, x, state=None):
        out, state = self.cell(x, state)
        return out.to(x.dtype), state


STATES = {
    "as it is": lambda state: state,
    "detached": lambda state: tree_map(torch.Tensor.detach, state),
    "a view": lambda state: tree_map(lambda one: one[:], state),
}


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
@pytest.mark.parametrize("way", STATES)
def test_a_state_that_the_model_made_of_a_repaired_input_does_not_show_that_the_caller_knows_the_dtype(way, kind):
    model, state, x = guard(Recurrent(kind).half()), None, rand(2, 1, 3)
    dtypes = []
    for _ in range(4):
        out, state = model(x, state)
        dtypes.append(out.dtype)
        state = STATES[way](state)
    assert dtypes == [F16] * 4
    # What the caller made, or another model, shows it.
    mine = tree_map(torch.Tensor.clone, state)
    assert guard(Recurrent(kind).half())(x, state)[0].dtype is model(x, mine)[0].dtype is F32


def test_annotated_arguments_stay_what_they_are():
    class Annotated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Linear(4, 4)

        def forward(self, x, scale: Float32[Tensor, "b"]):
            return self.stem(x), scale

    model = made(model=Annotated, mode="strict")
    assert model(rand(2, 4, dtype=BF16), STEPS)[1].dtype is F32
    with pytest.raises(DtypeError, match="`scale` is float64, the annotation wants float32"):
        model(rand(2, 4, dtype=BF16), STEPS.double())


@pytest.mark.parametrize("depth", ["auto", "all"])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("half", [F16, BF16])
def test_a_float32_mask_beside_half_attention_is_right_where_torch_takes_it(half, grad, depth):
    torch.manual_seed(0)
    x, mask = rand(2, 5, 8, dtype=half), torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    options = {"batch_first": True, "dropout": 0.0}
    layer = nn.TransformerEncoderLayer(8, 2, 16, **options)
    models = {
        layer: {"src_mask": mask},
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False): {"mask": mask},
        nn.Transformer(8, 2, 1, 1, 16, **options): {"tgt": x, "src_mask": mask, "tgt_mask": mask, "memory_mask": mask},
        nn.MultiheadAttention(8, 2, batch_first=True): {"key": x, "value": x, "attn_mask": mask, "need_weights": False},
    }
    with torch.set_grad_enabled(grad):
        for model, kwargs in models.items():
            bare = copy.deepcopy(model).to(half)
            guarded = guard(copy.deepcopy(bare), mode="strict", depth=depth)
            outs = [out[0] if isinstance(out, tuple) else out for out in (bare(x, **kwargs), guarded(x, **kwargs))]
            assert torch.equal(*outs)


def test_a_mask_that_torch_refuses_is_repaired():
    x, mask = rand(1, 5, 8, dtype=BF16), torch.zeros(5, 5)
    for model, kwargs in (
        (nn.MultiheadAttention(8, 2, batch_first=True), {"key": x, "value": x, "attn_mask": mask}),  # with weights
        (nn.TransformerEncoderLayer(8, 2, 16), {"src_mask": mask[:1, :1].double()}),
    ):
        with pytest.warns(CastWarning, match="mask` was cast"):
            guard(model.to(BF16))(x, **kwargs)


def test_modules_of_torch_have_no_other_side_inputs():
    x, state = rand(2, 3, 4, dtype=BF16), (torch.zeros(1, 2, 5), torch.zeros(1, 2, 5))
    with pytest.raises(DtypeError, match=r"^LSTM\.forward: argument `hx\[0\]` is float32"):
        guard(nn.LSTM(4, 5, batch_first=True).to(BF16), mode="strict")(x, state)


# ---------------------------------------------------------------- what is checked inside, and when


class Inside(Denoiser):
    """A denoiser that looks at its parts while it runs."""

    def forward(self, x, t=None, text=None):
        self.types = {type(module) for module in self.modules()}
        self.checked = checked(self)
        return super().forward(x, t, text)


def checked(model):
    return [name for name, module in model.named_modules() if "forward" in vars(module)]


def parts(model):
    return [(type(module), {**vars(module)}.keys()) for module in model.modules()]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["stem", "text.0", "text.1"]),  # not the RMSNorm, which takes any dtype
        ({"skip_modules": ("text*",)}, ["stem"]),
        ({"skip_modules": (nn.LayerNorm,)}, ["stem", "text.0"]),
        ({"depth": "boundary"}, []),
        ({"dtype": BF16}, ["stem", "text.0", "text.1"]),
    ],
)
def test_the_modules_inside_are_checked_for_the_time_of_a_call_with_a_side_input(options, expected):
    model = made(model=Inside, **options)
    model(rand(2, 4, dtype=BF16))
    before = parts(model)
    for _ in range(2):
        model(rand(2, 4, dtype=BF16))
        assert model.checked == []
        model(rand(2, 4, dtype=BF16), STEPS)
        assert model.checked == expected
        assert model.types == {type(model), nn.Linear, nn.Sequential, nn.LayerNorm, nn.RMSNorm}
        assert parts(model) == before
    with contextlib.suppress(RuntimeError), torch.no_grad():
        model(rand(2, 5, dtype=BF16), STEPS)  # wrong sizes
    assert parts(model) == before


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_a_layer_that_is_put_in_later_is_reached():
    class Late(Denoiser):
        def forward(self, x, text):
            return self.stem(x) + self.later(text)

    model, x, text = made(model=Late), rand(2, 4, dtype=BF16), rand(2, 3)
    for later in nn.Linear(3, 4), nn.Linear(3, 4), nn.Sequential(nn.Linear(3, 4)):
        model.later = later.to(BF16)
        assert torch.equal(model(x, text), model.stem(x) + model.later(text.to(BF16)))


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_side_inputs_of_one_model_are_felt_by_no_other_thread_and_no_other_model():
    inside, x, text = threading.Event(), rand(2, 4, dtype=BF16), rand(2, 3)
    errors = []

    class Waits(Denoiser):
        def forward(self, x, text):
            inside.set()
            worker.join()
            return self.stem(x) + self.text(text)

    model = made(model=Waits)
    other = Denoiser()
    other.stem, other.text = model.stem, model.text
    strict = guard(other.to(BF16), mode="strict")

    def work():
        inside.wait()
        for call in (lambda: model.text(text), lambda: model.text[0](text), lambda: strict(x, STEPS, text)):
            try:
                call()
            except Exception as error:
                errors.append(type(error))

    worker = threading.Thread(target=work)
    worker.start()
    assert torch.equal(model(x, text), model.stem(x) + model.text(text.to(BF16)))
    assert errors == [RuntimeError, RuntimeError, DtypeError]
    with pytest.raises(RuntimeError, match="same dtype"):
        model.text(text)
    with pytest.raises(DtypeError, match="`text` is float32"):
        strict(x, STEPS, text)
    assert checked(model) == []


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_block_with_a_side_input_runs_again_in_a_backward(reentrant):
    class Checkpointed(Denoiser):
        def forward(self, x, text):
            return self.stem(x) + torch.utils.checkpoint.checkpoint(self.text, text, use_reentrant=reentrant)

    model, x, text = made(model=Checkpointed), rand(2, 4, dtype=BF16), rand(2, 3).requires_grad_()
    for _ in range(2):
        model(x, text).float().sum().backward()
    assert text.grad.dtype is F32
    with pytest.raises(RuntimeError, match="same dtype"):
        model.text(text)
    assert checked(unguard(model)) == []


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_trace_with_a_side_input():
    model, x = made(), rand(2, 4, dtype=BF16)
    assert torch.equal(torch.jit.trace(model, (x, STEPS))(x, STEPS), model(x, STEPS))


def test_quantization_finds_the_layers_of_a_model_that_was_given_a_side_input():
    model = made(dtype=F32)
    model(rand(2, 4), STEPS.double())
    with warnings.catch_warnings(action="ignore"):
        quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    assert type(quantized.stem) is torch.ao.nn.quantized.dynamic.Linear


# ---------------------------------------------------------------- other authors' modules


class Casts(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x.float(), self.weight.float())


class Standardized(nn.Conv1d):
    def _conv_forward(self, x, weight, bias):
        return nn.functional.conv1d(x.float(), weight.float() / 3)


class Lookup(nn.Linear):
    def __getattr__(self, name):
        found = super().__getattr__(name)
        return found.float() if name == "weight" else found


class Widens(nn.Module):
    def forward(self, weight):
        return weight.float()


class OwnWeight(torch.Tensor):
    """Weights that compute as their author says, as quantized ones do."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is nn.functional.linear:
            x, weight = (one.as_subclass(Tensor) for one in args[:2])
            return x.float() @ weight.float().T
        return super().__torch_function__(func, types, args, kwargs or {})


def on_the_instance():
    layer = nn.Linear(3, 4).to(BF16)
    layer.forward = lambda x: nn.functional.linear(x.float(), layer.weight.float())
    return layer


def method_of_the_instance():
    layer = nn.Conv1d(3, 4, 1).to(BF16)
    layer._conv_forward = lambda x, weight, bias: nn.functional.conv1d(x.float(), weight.float())
    return layer


def parametrized():
    layer = nn.Linear(3, 4, bias=False).to(BF16)
    torch.nn.utils.parametrize.register_parametrization(layer, "weight", Widens(), unsafe=True)
    return layer


def own_weight():
    layer = nn.Linear(3, 4, bias=False).to(BF16)
    layer.weight = nn.Parameter(layer.weight.detach().as_subclass(OwnWeight))
    return layer


def hook_that_casts():
    layer = nn.Linear(3, 4).to(BF16)
    layer.register_forward_pre_hook(lambda layer, args: (args[0].to(BF16) * 2,))
    return layer


OTHERS = {
    "a subclass": lambda: Casts(3, 4, bias=False).to(BF16),
    "a method that the forward calls, in a subclass": lambda: Standardized(3, 4, 1).to(BF16),
    "an attribute that is looked up": lambda: Lookup(3, 4, bias=False).to(BF16),
    "a forward on the instance": on_the_instance,
    "a method on the instance": method_of_the_instance,
    "a parametrization": parametrized,
    "weights of a class of their own": own_weight,
    "a hook that casts": hook_that_casts,
}


class Holds(nn.Module):
    def __init__(self, inside):
        super().__init__()
        self.stem, self.inside = nn.Linear(4, 4).to(BF16), inside

    def forward(self, x, side):
        self.stem(x)
        return self.inside(side)


def side_for(layer):
    return rand(2, 3, 1) if isinstance(layer, nn.Conv1d) else rand(2, 3)


@pytest.mark.parametrize("name", OTHERS)
def test_what_another_author_computes_with_a_side_input_stays_what_it_is(name):
    torch.manual_seed(0)
    layer = OTHERS[name]()
    side = side_for(layer)
    expected = layer(side)
    model = guard(Holds(layer), mode="strict")
    for _ in range(2):
        out = model(rand(2, 4, dtype=BF16), side)
        assert out.dtype is expected.dtype
        assert torch.equal(out, expected)


def test_a_forward_that_is_patched_over_that_of_the_class_is_another_author_s(monkeypatch):
    original = nn.Linear.forward

    @functools.wraps(original)
    def forward(self, x):
        return original(self, x) if x.dtype is BF16 else nn.functional.linear(x.float(), self.weight.float())

    monkeypatch.setattr(nn.Linear, "forward", forward)
    model = guard(Holds(nn.Linear(3, 4, bias=False).to(BF16)), mode="strict")
    assert model(rand(2, 4, dtype=BF16), rand(2, 3)).dtype is F32


def set_forward(layer):
    layer.forward = lambda x: nn.functional.linear(x.float(), layer.weight.float())


def change_class(layer):
    layer.__class__ = Casts


def parametrize(layer):
    torch.nn.utils.parametrize.register_parametrization(layer, "weight", Widens(), unsafe=True)


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
@pytest.mark.parametrize("change", [set_forward, change_class, parametrize])
def test_what_another_author_changes_after_a_call_with_a_side_input_stays_changed(change):
    layer = nn.Linear(3, 4, bias=False).to(BF16)
    model, x, side = guard(Holds(layer)), rand(2, 4, dtype=BF16), rand(2, 3)
    assert model(x, side).dtype is BF16
    change(layer)
    own = vars(layer).get("forward")
    for _ in range(2):
        assert torch.equal(model(x, side), layer(side))
        assert vars(layer).get("forward") is own


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_nothing_stays_at_a_layer_that_models_share_whose_calls_overlap():
    class Waits(Holds):
        def forward(self, x, side):
            out = super().forward(x, side)
            self.inside_now.set()
            self.may_leave.wait()
            return out

    layer, models, threads, dtypes = nn.Linear(3, 4).to(BF16), [], [], []
    for _ in range(2):
        models.append(guard(Waits(layer)))
        models[-1].inside_now, models[-1].may_leave = threading.Event(), threading.Event()

    def work(model):
        dtypes.append(model(rand(2, 4, dtype=BF16), rand(2, 3)).dtype)

    for model in models:
        threads.append(threading.Thread(target=work, args=(model,)))
        threads[-1].start()
        model.inside_now.wait(60)
    for model, thread in zip(models, threads, strict=True):  # the first to come is the first to leave
        model.may_leave.set()
        thread.join()
    assert dtypes == [BF16, BF16]
    assert "forward" not in vars(layer)


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: type("Named", (nn.Linear,), {"extra_repr": lambda self: ""})(3, 4).to(BF16),
        lambda: torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 4).to(BF16)),
        lambda: nn.LSTM(3, 4).to(BF16),
        lambda: nn.MultiheadAttention(3, 1).to(BF16),
        lambda: nn.Bilinear(3, 3, 4).to(BF16),
    ],
    ids=["a subclass without a forward", "weight_norm", "LSTM", "attention", "Bilinear"],
)
def test_modules_that_compute_as_pytorch_wrote_them_get_a_side_input_in_their_dtype(make):
    class Calls(Holds):
        def forward(self, x, side):
            out = self.inside(*[side] * {nn.MultiheadAttention: 3, nn.Bilinear: 2}.get(type(self.inside), 1))
            return out[0] if isinstance(out, tuple) else out

    layer = make()
    model, x, side = guard(Calls(layer)), rand(2, 4, dtype=BF16), rand(2, 3)
    for _ in range(2):
        assert torch.equal(model(x, side), model(x, side.to(BF16)))


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_a_model_that_was_given_a_side_input_can_be_copied_and_pickled():
    model, (x, text), stream = made(), (rand(2, 4, dtype=BF16), rand(2, 3)), io.BytesIO()
    expected = model(x, None, text)
    torch.save(model, stream)
    stream.seek(0)
    for twin in copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(stream, weights_only=False):
        assert parts(twin)[1:] == parts(model)[1:]
        assert torch.equal(twin(x, None, text), expected)


@pytest.mark.parametrize("strict", [True, False])
def test_an_export_with_a_side_input(strict):
    x, text = rand(2, 4, dtype=BF16), rand(2, 3)
    with pytest.warns(CastWarning):
        program = torch.export.export(made(), (x, STEPS, text), strict=strict)
    assert torch.equal(program.module()(x, STEPS, text), unguard(made())(x, STEPS, text.to(BF16)))


def test_a_side_input_is_one_graph():
    model, frames = made(), itertools.count()

    def backend(graph, _):
        next(frames)
        return graph.forward

    compiled = torch.compile(model, backend=backend, fullgraph=True)
    x, text = rand(2, 4, dtype=BF16), rand(2, 3)
    expected = unguard(made())(x, STEPS, text.to(BF16))
    with pytest.warns(CastWarning):
        assert torch.equal(compiled(x, STEPS, text), expected)
    assert torch.equal(compiled(x, STEPS, text), expected)
    assert next(frames) == 1
    torch._dynamo.reset()


# ---------------------------------------------------------------- whole numbers


def values(*numbers, dtype=F32):
    return torch.tensor(numbers, dtype=dtype)


KEPT = {
    "what survives": (values(1, 2, 256), BF16),
    "a mask of 0 and 1": (values(0, 1, 1), F16),
    "a mask of 0 and -inf": (values(0, -torch.inf), BF16),
    "a mask of 0 and one negative number": (values(0, -10000, -10000), BF16),
    "an image of whole values": (torch.arange(256.0).reshape(1, 16, 16), BF16),
    "numbers with fractions": (values(999, 0.5), BF16),
    "large random numbers, some of them whole": (rand(100, 100) * 1e6, BF16),
    "no numbers": (values(), BF16),
    "whole numbers that float32 holds": (values(16777216, dtype=F64), F32),
}
CHANGED = {
    "timesteps": (values(999, 501), BF16, "999 becomes 1000 in bfloat16"),
    "a number": (values(999)[0].double(), BF16, "999 becomes 1000 in bfloat16"),
    "ids in float16": (values(0, 4097), F16, "4097 becomes 4096 in float16"),
    "seconds": (values(1700000001, dtype=F64), F32, "1700000001 becomes 1700000000 in float32"),
    "many, the last of which changes": (torch.cat([torch.zeros(9999), values(301)]), BF16, "301 becomes 300 in"),
    "a view of every second": (values(999, 0.5, 501, 0.5)[::2], BF16, "999 becomes 1000 in bfloat16"),
    "negative ones": (values(-999, -501), BF16, "-999 becomes -1000 in bfloat16"),
}


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
@pytest.mark.parametrize("name", KEPT)
def test_what_a_narrowing_may_round_is_cast(name):
    given, dtype = KEPT[name]
    model = made(dtype, Takes)
    for _ in range(3):
        assert torch.equal(model(given), given.to(dtype))


@pytest.mark.parametrize("before", [False, True], ids=["at the first call", "at a later call"])
@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_whole_numbers_that_a_narrowing_would_change_are_refused(name, before):
    given, dtype, change = CHANGED[name]
    model = made(dtype, Takes)
    for n in range(3):
        with pytest.raises(CastError) if n == 2 or not before else warnings.catch_warnings() as caught:
            model(given if n == 2 or not before else torch.zeros_like(given))
    assert f"{change}" in str(caught.value).splitlines()[0]
    assert "keep it out with skip_args='t'" in str(caught.value)
    assert (caught.value.argument, caught.value.actual, caught.value.expected) == ("t", given.dtype, dtype)
    assert made(dtype, Takes, skip_args=("t",))(given) is given
    assert torch.equal(made(dtype, Takes, verify="never")(given), given.to(dtype))


FRACTIONS = rand(64, 64) + 0.25
LAYOUTS = {
    "contiguous": FRACTIONS,
    "transposed": FRACTIONS.t(),
    "expanded": FRACTIONS[:1].expand(64, 64),
    "every second": FRACTIONS[::2, ::2],
}


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_element_tells_that_there_are_no_whole_numbers(layout):
    """A known repair of fractions is the cast alone; comparing all of a tensor would take two more copies of it."""
    model = made(BF16, Takes)
    for _ in range(3):
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            model(LAYOUTS[layout])
    assert [one.name for one in seen.events()].count("aten::copy_") == 1


def test_an_annotation_refuses_whole_numbers_too():
    @dtypeguard.enforce
    def f(ids: Float32[Tensor, "n"]): ...

    with pytest.raises(CastError, match="16777217 becomes 16777216 in float32: annotate it with a wider dtype"):
        f(values(16777217, dtype=F64))
