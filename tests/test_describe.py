"""`describe` says what a guard holds a model to, and changes nothing."""

import functools
import json
from pathlib import Path

import pytest
import torch
from html_page import Page, allowed
from jaxtyping import Float, Float32, Int
from support import BF16, F8, F16, F32, F64
from torch import Tensor, nn

import dtypeguard
from dtypeguard import DeviceError, DtypeError, describe, enforce, guard, is_guarded, unguard
from dtypeguard._tools.describe.words import demands

INTS = tuple(getattr(torch, f"int{n}") for n in (2, 4, 8, 16, 32, 64) if hasattr(torch, f"int{n}"))
GOLDEN = Path(__file__).parent / "golden" / "describe.txt"


class Enforced(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    @enforce
    def forward(self, x: Float[Tensor, "b 4"], ids: Int[Tensor, "b"], exact: Float32[Tensor, "b"], scale=1.0):
        return self.fc(x)


class Mixed(nn.Module):
    """A body in bfloat16 with a norm and a head in float32, a shared layer, and float8 weights that compute in bf16."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(12))
        self.tied, self.head, self.last = self.blocks[0][0], nn.Linear(4, 2), nn.RMSNorm(4)
        self.to(BF16)
        self.head.float()
        self.stored = nn.Module()
        self.stored.weight = nn.Parameter(torch.zeros(2, 2).to(F8), requires_grad=False)

    def forward(self, x, mask=None, *, lengths=None, scale=None):
        return x


def half():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).to(BF16)


SHOWN = {
    "half": lambda: describe(half()),
    "mixed": lambda: describe(Mixed(), skip_args=["scale"], skip_modules=["last"], move_args=["lengths"]),
    "enforced": lambda: describe(Enforced()),
    "guarded": lambda: describe(guard(half(), mode="strict", dtype=F32, output_dtype=F32)),
    "attention": lambda: describe(nn.MultiheadAttention(4, 2).to(F16), depth="all"),
    "nothing to hold to": lambda: describe(nn.Sequential(nn.ReLU())),
    "a loss": lambda: describe(nn.CrossEntropyLoss(weight=torch.ones(3, dtype=F64))),
    "on meta": lambda: describe(nn.Linear(4096, 4096, device="meta")),
}


def shown():
    return "".join(f"--- {name}\n{make()}\n" for name, make in SHOWN.items())


def test_what_is_printed():
    assert shown() == GOLDEN.read_text()
    assert max(map(len, shown().splitlines())) <= 80


def test_nothing_of_the_model_changes():
    model = Mixed()
    before = [(path, type(module), dict(vars(module))) for path, module in model.named_modules()]
    describe(model, depth="all")
    assert [(path, type(module), dict(vars(module))) for path, module in model.named_modules()] == before
    assert not is_guarded(model)


def test_a_guarded_model_is_described_with_its_own_guard_unless_options_ask_for_another():
    model = guard(Mixed(), mode="strict", depth="boundary", skip_args=["mask"])
    said = describe(model)
    assert (said.guarded, len(said.modules), said.options.depth) == (True, 1, "boundary")
    assert {argument.name: argument.skipped for argument in said[""].arguments}["mask"] == "is named in skip_args"
    assert len(describe(model, depth="all").modules) > 20
    assert describe(model).modules == said.modules
    assert describe(unguard(model)).guarded is False


def test_guards_at_the_borders_of_modules_that_stay_in_float32():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    kept = dtypeguard.results.Kept(("1",), 0.1, 1, BF16)
    said = describe(kept.apply(model))
    assert (said.guarded, said.head()) == (False, "Sequential is not guarded, but 2 modules inside are.")
    assert {module.path: (module.by, module.dtype) for module in said.modules} == {
        "0": ("border", BF16), "1": ("border", F32),
    }  # fmt: skip
    assert "1 (Linear, casts at its border)\n  like weight: float32 on cpu" in str(said)
    assert describe(model, mode="strict").modules[0].path == "", "options ask for another guard"


def test_what_is_checked_for_side_inputs_alone_is_told_apart():
    class Denoiser(nn.Module):
        def __init__(self):
            super().__init__()
            self.image = nn.Linear(4, 4)

        def forward(self, image, time):
            return self.image(image)

    model = guard(Denoiser().to(BF16))
    for _ in range(2):
        assert describe(model).later == ("image",)
        assert [module.path for module in describe(model).modules] == [""]
        model(torch.ones(1, 4, dtype=BF16), torch.ones(1))


def test_an_enforced_forward_inside_is_in_it_with_and_without_a_guard():
    model = nn.Sequential(Enforced(), nn.ReLU())
    for one in (describe(model), describe(guard(model))):
        assert one["0"].by == "enforce"
        assert [(a.name, a.annotation) for a in one["0"].arguments] == [
            ("x", 'Float[Tensor, "b 4"]'), ("ids", 'Int[Tensor, "b"]'), ("exact", 'Float32[Tensor, "b"]'),
            ("scale", None),
        ]  # fmt: skip
    x, _, exact, scale = describe(model)["0"].arguments
    assert (x.dtypes[0], F64 in x.dtypes, F8 in x.dtypes) == (F32, False, True)  # float8 is never cast, so it passes
    assert (exact.dtypes, exact.autocast) == ((F32,), (BF16, F16, F32))
    assert (scale.dtypes, scale.skipped) == (None, "has no annotation")


def test_hints_and_names_say_what_an_argument_holds_behind_decorators_too():
    """As models of transformers have them: hints of PyTorch's classes, behind a decorator's `*args, **kwargs`."""

    def outer(forward):
        @functools.wraps(forward)
        def wrapper(self, *args, **kwargs):
            return forward(self, *args, **kwargs)

        return wrapper

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(4, 4)

        def forward(self, tokens, weights):
            return self.words(tokens) * weights

    assert next(kind for _, kind in demands(describe(Tagger())[""])) == "any integer"

    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(4, 4)

        @outer
        def forward(
            self,
            input_ids: torch.LongTensor | None = None,
            attention_mask: Tensor | None = None,
            inputs_embeds: torch.FloatTensor | None = None,
            labels: torch.LongTensor | None = None,
            soft_labels: Tensor | None = None,
            use_cache: bool | None = None,
        ):
            return self.words(input_ids) if inputs_embeds is None else inputs_embeds  # fmt: skip

    floating = "bfloat16; within autocast also float16, float32"
    for model in (Text().to(BF16), guard(Text().to(BF16))):
        assert list(demands(describe(model)[""])) == [
            ("input_ids", "any integer"),
            ("attention_mask", f"any integer or bool, or {floating}"),
            ("inputs_embeds", f"floats: {floating}"),
            ("labels", f"any integer or bool, or {floating}"),
            ("soft_labels", f"floats: {floating}; not cast where that loses digits, as a loss compares with them"),
            ("others", "no tensors: use_cache"),
        ]
    model(
        torch.ones(1, 2, dtype=torch.int64), torch.ones(1, 2, dtype=torch.bool), labels=torch.ones(1, dtype=torch.int32)
    )
    assert (
        dict(demands(describe(Text())[""]))["soft_labels"] == "floats: float32; within autocast also bfloat16, float16"
    )
    with dtypeguard.mode("strict"), pytest.raises(DtypeError, match="ids of an embedding are integers"):
        model(input_ids=torch.ones(1, 2))
    with pytest.raises(dtypeguard.CastError, match="digits of it are lost in bfloat16, and a loss compares"):
        model(torch.ones(1, 2, dtype=torch.int64), soft_labels=torch.rand(1))


@pytest.mark.parametrize(
    ("annotation", "accepted"),
    [
        (Float[Tensor, "b"], (BF16,)),
        (Float32[Tensor, "b"], (F32,)),
        (Float[Tensor, "b"] | Int[Tensor, "b"], (BF16, *INTS)),
        (list[Float32[Tensor, "n+1"]], (F32,)),
    ],
)
def test_what_an_annotation_allows_is_what_the_checker_takes(annotation, accepted):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1, dtype=BF16))

        def forward(self, x):
            return x

    Net.forward.__annotations__["x"] = annotation
    rows = describe(Net())[""].arguments
    asked = {dtype for row in rows for dtype in row.dtypes if "float8" not in str(dtype)}
    assert asked == set(accepted)


def test_devices_are_those_of_the_guard():
    model = guard(Mixed(), mode="strict", device="meta", move_args=["lengths"])
    rows = {argument.name: argument for argument in describe(model)[""].arguments}
    assert {str(row.device) for row in rows.values()} == {"meta"}
    assert [name for name, row in rows.items() if row.moves] == ["lengths"]
    model(torch.ones(1, device="meta"), mask=torch.ones(1, dtype=torch.int64))
    with pytest.raises(DeviceError):
        model(torch.ones(1, device="meta"), lengths=torch.ones(1, dtype=torch.int64))


def test_a_forward_of_an_instance_s_own_is_what_is_described():
    model = nn.Linear(4, 2)
    model.forward = lambda x, extra=None: x
    for one in (model, guard(model, mode="strict")):
        assert [argument.name for argument in describe(one)[""].arguments] == ["x", "extra"]
    with pytest.raises(DtypeError):
        model(torch.ones(1, dtype=F64))


def test_wrappers_parametrizations_and_traced_models():
    parametrized = nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))
    for model in (nn.DataParallel(half()), torch.compile(half()), torch.fx.symbolic_trace(half()), parametrized):
        one = describe(model)
        assert describe(guard(model)).modules == one.modules
        assert one[""].dtype is (BF16 if model is not parametrized else F32)


def test_as_data():
    said = describe(Mixed())
    data = json.loads(said.to_json())
    assert (data["schema"], data["model"], data["guarded"]) == (1, "Mixed", False)
    assert data["parameters"].keys() == {"bfloat16", "float32", "float8_e4m3fn"}
    (head,) = [module for module in data["modules"] if module["path"] == "head"]
    assert (head["dtype"], head["anchor"], head["arguments"][0]["dtypes"]) == ("float32", "weight", ["float32"])
    assert said["tied"] is said["blocks.0.0"]


def test_as_a_page(tmp_path):
    said = describe(Mixed())
    said.to_html(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    page = Page(text)
    assert allowed(text) == {"style", "script"}
    for fact in (
        "Mixed: what is it held to?",
        "13 x Linear",
        "like weight: bfloat16 on cpu",
        "stores its parameters in",
    ):
        assert fact in page.text


BAD = [
    ((nn.Linear,), {}, TypeError, "describe takes a model, not the class Linear: pass Linear(...)"),
    ((None,), {}, TypeError, "describe takes an nn.Module, not None"),
    (
        (nn.Linear(1, 1),),
        {"depht": "all"},
        TypeError,
        "describe: there is no option depht=: did you mean depth=?",
    ),
    ((nn.Linear(1, 1),), {"depth": "deep"}, ValueError, "depth='deep' is none of 'auto', 'all', 'boundary'"),
    ((nn.Linear(1, 1),), {"skip_args": ["y"]}, ValueError, "skip_args: Linear.forward has no argument 'y', only input"),
    ((nn.Linear(1, 1),), {"skip_modules": ["y"]}, ValueError, "skip_modules: Linear has no submodule called 'y'"),
]


@pytest.mark.parametrize(("arguments", "options", "error", "text"), BAD)
def test_bad_arguments(arguments, options, error, text):
    with pytest.raises(error) as caught:
        describe(*arguments, **options)
    assert str(caught.value).startswith(text)


def test_a_module_that_is_not_checked_says_why():
    with pytest.raises(KeyError, match=r"'last' of Mixed is not checked: it takes input of other dtypes"):
        describe(Mixed())["last"]
    with pytest.raises(KeyError, match=r"'nowhere' of Mixed is not checked: it is no module of it"):
        describe(Mixed())["nowhere"]


def test_its_options_are_those_of_guard():
    import inspect

    from dtypeguard._core.doors.options import GuardOptions, read_options

    names = [p.name for p in inspect.signature(guard).parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert names == list(GuardOptions.__annotations__) == list(inspect.signature(read_options).parameters)
    assert dtypeguard.describe is describe


if __name__ == "__main__":
    GOLDEN.write_text(shown())
