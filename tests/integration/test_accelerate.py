"""accelerate under and around a guard: mixed precision, unwrapping, hooks, offloading, dispatch, empty weights."""

import copy

import accelerate
import pytest
import torch
import transformers as hf
from accelerate import hooks
from accelerate.state import AcceleratorState
from accelerate.utils import set_module_tensor_to_device
from architectures import ARCHITECTURES, drawn, pictures, same, tokens
from support import BF16, F32, F64
from torch import nn

import dtypeguard
from dtypeguard import CastWarning, DtypeError, guard, is_guarded, unguard

slow = pytest.mark.slow
depths = pytest.mark.parametrize("depth", ["auto", "all"])
orders = pytest.mark.parametrize("order", ["before", "after"])
precisions = pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])  # on a CPU fp16 is no


@pytest.fixture(autouse=True)
def _fresh_state():
    """The state of an Accelerator is global."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.GELU(), nn.BatchNorm1d(8))
        self.head = nn.Linear(8, 3)

    def forward(self, x, *, scale=1.0):
        return self.head(self.body(x)) * scale


def pair(build=Net):
    torch.manual_seed(0)
    model = build().eval()
    return model, copy.deepcopy(model)


def refuses(model, *args, **kwargs):
    with pytest.raises(DtypeError) as caught:
        model(*args, **kwargs)
    return caught.value.argument


def batches():
    r = drawn(F32)
    return torch.utils.data.TensorDataset(r(8, 5), torch.arange(8) % 3)


# ---------------------------------------------------------------- prepare


def trained(model, precision, order=None, depth="auto", **how):
    """Three steps as accelerate's documentation shows them; a guard is put on before or after `prepare`."""
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(mixed_precision=precision, cpu=True, **how)
    if order == "before":
        guard(model, mode="strict", depth=depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, torch.utils.data.DataLoader(batches(), batch_size=4)
    )
    if order == "after":
        guard(model, mode="strict", depth=depth)
    losses = []
    for x, y in loader:
        with accelerator.accumulate(model):
            logits = model(x)
            assert logits.dtype is F32
            loss = nn.functional.cross_entropy(logits, y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    return accelerator, model, losses


@pytest.mark.thin(4)
@precisions
@orders
@depths
def test_a_prepared_model_trains_as_before_and_its_guard_stays_and_goes(precision, order, depth):
    model, twin = pair()
    accelerator, mine, losses = trained(model, precision, order, depth, gradient_accumulation_steps=2)
    _, _, expected = trained(twin, precision, gradient_accumulation_steps=2)
    assert same(losses, expected) == 2
    assert same(dict(model.state_dict()), dict(twin.state_dict()))
    assert mine is accelerator.unwrap_model(mine) is model
    assert is_guarded(mine)
    assert dtypeguard.casts() == []
    x, wrong = drawn(F32)(2, 5), drawn(F64)(2, 5)
    assert refuses(model, wrong) == "x"
    guard(model, mode="lenient", depth=depth)
    with pytest.warns(CastWarning) as told:
        assert same(model(wrong), twin(wrong.float()))
    assert len(told) == 1
    assert not is_guarded(unguard(model))
    with pytest.raises(RuntimeError, match="dtype"):
        model(wrong)
    assert same(model(x), twin(x))
    state = accelerator.get_state_dict(model)
    assert all(state[key].data_ptr() == value.data_ptr() for key, value in model.state_dict().items())


@orders
def test_what_leaves_a_model_prepared_for_bfloat16_is_float32(order):
    """Inside it is bfloat16; accelerate widens what leaves, and a guard put on afterwards stands outside of that."""
    inside = []
    _, model, _ = trained(pair()[0], "bf16", order)
    model.head.register_forward_hook(lambda m, args, out: inside.append((args[0].dtype, out.dtype)))
    assert model(drawn(F32)(2, 5)).dtype is F32
    assert inside == [(BF16, BF16)]


def test_a_guard_from_before_prepare_stands_inside_the_autocast_region():
    model, twin = pair()
    _, model, _ = trained(model, "bf16", "before")
    _, twin, _ = trained(twin, "bf16")
    half = drawn(BF16)(2, 5)
    assert same(model(half), twin(half))
    assert dtypeguard.casts() == []


def test_a_guard_from_after_prepare_stands_outside_and_asks_for_the_parameters_dtype():
    _, model, _ = trained(pair()[0], "bf16", "after")
    assert refuses(model, drawn(BF16)(2, 5)) == "x"
    guard(model, mode="lenient")
    with pytest.warns(CastWarning, match="`x` was cast from bfloat16 to float32"):
        model(drawn(BF16)(2, 5))


@orders
@pytest.mark.parametrize("keep", [True, False])
def test_unwrap_model_keeps_the_guard_of_a_decorated_forward(order, keep):
    """Every forward in transformers is decorated; accelerate follows `__wrapped__`."""
    model, _ = pair(ARCHITECTURES["ViT"].build)
    accelerator = accelerate.Accelerator(mixed_precision="bf16", cpu=True)
    if order == "before":
        guard(model, mode="strict")
    model = accelerator.prepare(model)
    if order == "after":
        guard(model, mode="strict")
    bare = accelerator.unwrap_model(model, keep_fp32_wrapper=keep)
    assert is_guarded(bare)
    inputs = pictures(drawn(F32))
    assert torch.isfinite(bare(**inputs)[0]).all()
    assert refuses(bare, pixel_values=inputs["pixel_values"].double()) == "pixel_values"


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_state_can_be_saved_and_loaded(precision, tmp_path):
    accelerator, model, _ = trained(pair()[0], precision, "before")
    kept = copy.deepcopy(model.state_dict())
    accelerator.save_state(tmp_path / "state")
    accelerator.save_model(model, tmp_path / "model")
    with torch.no_grad():
        model.head.weight.zero_()
    accelerator.load_state(tmp_path / "state")
    assert same(dict(model.state_dict()), dict(kept))
    assert is_guarded(model)
    loaded = Net()
    accelerate.load_checkpoint_in_model(loaded, tmp_path / "model")
    assert same(dict(loaded.state_dict()), dict(kept))


# ---------------------------------------------------------------- hooks


def aligned(model, folder):
    hooks.add_hook_to_module(model, hooks.AlignDevicesHook(execution_device="cpu", io_same_device=True))


def offloaded_whole(model, folder):
    hooks.add_hook_to_module(
        model, hooks.AlignDevicesHook(execution_device="cpu", offload=True, place_submodules=True, offload_buffers=True)
    )


def offloaded_by_parts(model, folder):
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"), offload_buffers=True)


def offloaded_to_disk(model, folder):
    accelerate.disk_offload(model, folder, execution_device=torch.device("cpu"), offload_buffers=True)


def offloaded_with_hook(model, folder):
    accelerate.cpu_offload_with_hook(model, execution_device="cpu")


def dispatched(model, folder):
    places = {name: "cpu" for name, _ in model.named_children()}
    places |= dict.fromkeys([next(iter(places))], "disk")
    places |= {name: "cpu" for name, _ in model.named_parameters(recurse=False)}
    accelerate.dispatch_model(model, places, main_device="cpu", offload_dir=folder, force_hooks=True)


def chained(model, folder):
    hooks.add_hook_to_module(model, hooks.ModelHook())
    hooks.add_hook_to_module(model, hooks.AlignDevicesHook(execution_device="cpu"), append=True)


def on_each_leaf(model, folder):
    hooks.attach_align_device_hook(model, execution_device="cpu", offload=True)


HOOKS = [
    aligned,
    offloaded_whole,
    offloaded_by_parts,
    offloaded_to_disk,
    offloaded_with_hook,
    dispatched,
    chained,
    on_each_leaf,
]
MOVING = [offloaded_whole, offloaded_by_parts, offloaded_to_disk, dispatched, on_each_leaf]
all_hooks = pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.__name__)


def hooked(hook, order, depth, folder, build=Net, mode="strict"):
    model, twin = pair(build)
    if order == "before":
        guard(model, mode=mode, depth=depth)
    hook(model, str(folder))
    if order == "after":
        guard(model, mode=mode, depth=depth)
    assert build is not Net or any(p.is_meta for p in model.parameters()) is (hook in MOVING)
    return model, twin


@pytest.mark.thin(6)
@all_hooks
@orders
@depths
@pytest.mark.parametrize("first", ["guard", "hooks"])
@torch.no_grad()
def test_a_hooked_model_computes_as_before_and_all_comes_off_in_any_order(hook, order, depth, first, tmp_path):
    model, twin = hooked(hook, order, depth, tmp_path)
    x, wrong = drawn(F32)(2, 5), drawn(F64)(2, 5)
    for _ in range(2):
        assert same(model(x, scale=2.0), twin(x, scale=2.0))
    with pytest.raises(DtypeError, match="argument `x` is float64") as caught:
        model(wrong)
    assert "also" not in str(caught.value)
    assert caught.value.call_site.startswith("tests/integration/test_accelerate.py:")
    with dtypeguard.mode("lenient"):
        guard(model, depth=depth)
        assert same(model(x), twin(x))
        assert dtypeguard.casts() == []
        with pytest.warns(CastWarning, match="`x` was cast from float64 to float32") as told:
            assert same(model(wrong), twin(wrong.float()))
    assert len(told) == 1
    guard(model, mode="strict", depth=depth)
    if first == "guard":
        unguard(model)
        assert same(model(x), twin(x))
    hooks.remove_hook_from_module(model, recurse=True)
    assert not any(p.is_meta for p in model.parameters())
    assert same(model(x), twin(x))
    if first == "hooks":
        assert refuses(model, wrong) == "x"
        hook(model, str(tmp_path / "again"))
        assert same(model(x), twin(x))
        hooks.remove_hook_from_module(model, recurse=True)
        unguard(model)
    assert [type(module) for module in model.modules()] == [type(module) for module in twin.modules()]
    with pytest.raises(RuntimeError, match="dtype"):
        model(wrong)


@torch.no_grad()
def test_a_guard_from_before_sees_what_a_hook_hands_on():
    class Cast(hooks.ModelHook):
        def pre_forward(self, module, *args, **kwargs):
            return tuple(a.to(F32) for a in args), kwargs

    model, twin = pair()
    hooks.add_hook_to_module(guard(model, mode="strict"), Cast())
    assert same(model(drawn(F64)(2, 5)), twin(drawn(F64)(2, 5).float()))
    assert dtypeguard.casts() == []


@pytest.mark.parametrize("mixed", ["head", "body.1"])
@orders
@torch.no_grad()
def test_a_mixed_model_offloaded_is_guarded_by_parts(mixed, order, tmp_path):
    model, _ = pair()
    model.to(BF16).get_submodule(mixed).float()
    if order == "before":
        guard(model, mode="strict")
    offloaded_by_parts(model, str(tmp_path))
    if order == "after":
        guard(model, mode="strict")
    assert refuses(model, drawn(F32)(2, 5)) == "input"


# ---------------------------------------------------------------- models of transformers


@pytest.mark.thin(8)
@pytest.mark.parametrize("name", ["Llama", pytest.param("T5", marks=slow), "ViT", pytest.param("CLIP", marks=slow)])
@pytest.mark.parametrize("hook", [aligned, offloaded_by_parts, offloaded_to_disk, dispatched], ids=lambda h: h.__name__)
@orders
@depths
@pytest.mark.filterwarnings("ignore:The following device_map keys do not match any submodules")  # a parameter's own key
@torch.no_grad()
def test_a_hooked_model_of_transformers_computes_as_before(name, hook, order, depth, tmp_path):
    model, twin = hooked(hook, order, depth, tmp_path, ARCHITECTURES[name].build)
    inputs = ARCHITECTURES[name].inputs(drawn(F32))
    assert same(model(**inputs), twin(**inputs))
    if ARCHITECTURES[name].floating:
        argument = ARCHITECTURES[name].floating
        assert refuses(model, **inputs | {argument: inputs[argument].double()}) == argument
    assert dtypeguard.casts() == []


@pytest.mark.parametrize("place", ["cpu", {"": "cpu"}, "offload"])
@torch.no_grad()
def test_a_model_loaded_with_a_device_map_is_guarded(place, tmp_path):
    twin = ARCHITECTURES["Llama"].build().eval()
    twin.save_pretrained(tmp_path / "model")
    if place == "offload":
        place = {"model.embed_tokens": "cpu", "model.layers": "disk", "model.norm": "cpu", "lm_head": "cpu"}
        place |= {"model.rotary_emb": "cpu"}
    model = hf.LlamaForCausalLM.from_pretrained(
        tmp_path / "model", device_map=place, offload_folder=str(tmp_path / "offload")
    )
    guard(model, mode="strict", depth="all")
    assert same(model(**tokens(None)), twin(**tokens(None)))
    assert refuses(model, inputs_embeds=drawn(F64)(2, 7, 16)) == "inputs_embeds"


# ---------------------------------------------------------------- empty weights


def saved(folder):
    model, twin = pair()
    accelerate.Accelerator(cpu=True).save_model(model, folder)
    return twin


@pytest.mark.thin(4)
@pytest.mark.parametrize("when", ["empty", "loaded"])
@pytest.mark.parametrize("offload", [False, True])
@depths
@torch.no_grad()
def test_a_checkpoint_is_loaded_into_a_guarded_empty_model(when, offload, depth, tmp_path):
    twin = saved(tmp_path / "model")
    with accelerate.init_empty_weights():
        model = Net().eval()
    assert all(p.is_meta for p in model.parameters())
    if when == "empty":
        guard(model, mode="strict", depth=depth)
    model = accelerate.load_checkpoint_and_dispatch(
        model,
        tmp_path / "model",
        device_map={"body": "disk" if offload else "cpu", "head": "cpu"},
        offload_folder=str(tmp_path / "offload"),
        force_hooks=True,
    )
    if when == "loaded":
        guard(model, mode="strict", depth=depth)
    assert any(p.is_meta for p in model.parameters()) is offload
    assert same(model(drawn(F32)(2, 5)), twin(drawn(F32)(2, 5)))
    assert refuses(model, drawn(F64)(2, 5)) == "x"
    assert dtypeguard.casts() == []


@pytest.mark.parametrize("dtype", [F32, BF16], ids=["float32", "bfloat16"])
@torch.no_grad()
def test_weights_that_are_set_one_by_one_are_followed(dtype):
    _, twin = pair()
    twin.to(dtype)
    with accelerate.init_empty_weights():
        empty = Net().eval()
    guard(empty, mode="strict", depth="all")
    for name, value in twin.state_dict().items():
        set_module_tensor_to_device(empty, name, "cpu", value=value, dtype=dtype)
    assert same(empty(drawn(dtype)(2, 5)), twin(drawn(dtype)(2, 5)))
    assert refuses(empty, drawn(F64)(2, 5)) == "x"
