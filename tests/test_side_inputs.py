"""Floating arguments that an author keeps in another dtype than the model's, on purpose."""

import copy
import io
import itertools
import pickle
import warnings

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import dtypeguard
from dtypeguard import CastError, CastWarning, DtypeError, guard, is_guarded, unguard

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


# ---------------------------------------------------------------- what is guarded inside, and when


def guarded_inside(model):
    return [name for name, module in model.named_modules() if name and is_guarded(module)]


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
def test_the_modules_inside_are_guarded_once_a_side_input_is_seen(options, expected):
    model = made(**options)
    model(rand(2, 4, dtype=BF16))
    assert guarded_inside(model) == []
    model(rand(2, 4, dtype=BF16), STEPS)
    assert guarded_inside(model) == expected
    assert guarded_inside(unguard(model)) == []


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_a_model_that_was_given_a_side_input_can_be_copied_and_pickled():
    model, (x, text), stream = made(), (rand(2, 4, dtype=BF16), rand(2, 3)), io.BytesIO()
    expected = model(x, None, text)
    torch.save(model, stream)
    stream.seek(0)
    for twin in copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(stream, weights_only=False):
        assert guarded_inside(twin) == guarded_inside(model)
        assert torch.equal(twin(x, None, text), expected)
        assert guarded_inside(unguard(twin)) == []


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
    assert "keep it out with skip_args=['t']" in str(caught.value)
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
