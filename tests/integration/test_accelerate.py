"""accelerate under and around a guard: mixed precision, unwrapping, hooks, offloading, dispatch, empty weights."""

import copy
import json

import accelerate
import pytest
import torch
import transformers as hf
from accelerate import hooks
from accelerate.state import AcceleratorState
from accelerate.utils import set_module_tensor_to_device
from architectures import ARCHITECTURES, GROUPED, drawn, ids, pictures, same, tokens
from torch import nn

import dtypeguard
from dtypeguard import CastWarning, DtypeError, guard, is_guarded, unguard

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
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
@pytest.mark.parametrize("steps", [1, 2])
def test_a_prepared_model_trains_as_before(precision, order, depth, steps):
    model, twin = pair()
    _, mine, losses = trained(model, precision, order, depth, gradient_accumulation_steps=steps)
    _, _, expected = trained(twin, precision, gradient_accumulation_steps=steps)
    assert same(losses, expected) == 2
    assert same(dict(model.state_dict()), dict(twin.state_dict()))
    assert mine is model
    assert is_guarded(mine)
    assert dtypeguard.casts() == []


@precisions
@orders
def test_a_prepared_model_refuses_a_wrong_input(precision, order):
    _, model, _ = trained(pair()[0], precision, order)
    assert refuses(model, drawn(F64)(2, 5)) == "x"


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


def test_output_dtype_of_a_guard_from_before_is_what_accelerate_gets():
    model, _ = pair()
    seen = []
    guard(model, mode="lenient", output_dtype=BF16)
    model.register_forward_hook(lambda m, args, out: seen.append(out.dtype))
    model = accelerate.Accelerator(mixed_precision="no", cpu=True).prepare(model)
    with pytest.warns(CastWarning):
        assert model(drawn(F32)(2, 5)).dtype is BF16
    assert seen == [BF16]


@precisions
@orders
@pytest.mark.parametrize("keep", [True, False])
def test_unwrap_model_keeps_the_guard(precision, order, keep):
    accelerator, model, _ = trained(pair()[0], precision, order)
    x = drawn(F32)(2, 5)
    expected = model(x)
    bare = accelerator.unwrap_model(model, keep_fp32_wrapper=keep)
    assert bare is model
    assert is_guarded(bare)
    assert refuses(bare, x.double()) == "x"
    if not keep:
        plain = Net().eval()
        plain.load_state_dict(bare.state_dict())
        expected = plain(x)
    assert torch.equal(bare(x), expected)


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


@precisions
@orders
def test_unguard_takes_the_guard_off_a_prepared_model(precision, order):
    accelerator, model, _ = trained(pair()[0], precision, order)
    assert not is_guarded(unguard(model))
    with pytest.raises(RuntimeError, match="dtype"):
        model(drawn(F64)(2, 5))
    assert same(model(drawn(F32)(2, 5)), accelerator.unwrap_model(model)(drawn(F32)(2, 5)))


@precisions
@orders
def test_a_guard_of_a_prepared_model_can_be_replaced(precision, order):
    _, model, _ = trained(pair()[0], precision, order)
    guard(model, mode="lenient")
    with pytest.warns(CastWarning) as told:
        model(drawn(F64)(2, 5))
    assert len(told) == 1
    guard(model, mode="strict", skip_args=["scale"])
    x = drawn(F32)(2, 5)
    assert model(x, scale=torch.ones(3, dtype=F64)).dtype is F64


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


def test_autocast_of_the_accelerator_is_followed():
    model, twin = pair()
    accelerator = accelerate.Accelerator(mixed_precision="bf16", cpu=True)
    guard(model, mode="strict")
    with accelerator.autocast():
        out = model(drawn(BF16)(2, 5))
        assert same(out, twin(drawn(BF16)(2, 5)))
    assert dtypeguard.casts() == []


@orders
def test_a_copy_of_a_prepared_model_computes_with_its_own_weights(order):
    model, _ = pair(ARCHITECTURES["ViT"].build)
    accelerator = accelerate.Accelerator(mixed_precision="bf16", cpu=True)
    if order == "before":
        guard(model, mode="strict")
    model = accelerator.prepare(model)
    if order == "after":
        guard(model, mode="strict")
    inputs = pictures(drawn(F32))
    other = copy.deepcopy(model)
    assert is_guarded(other)
    assert same(other(**inputs), model(**inputs))
    assert refuses(other, inputs["pixel_values"].double()) == "pixel_values"
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    assert not other(**inputs).logits.any()
    assert model(**inputs).logits.any()


def test_get_state_dict_and_unwrapping_give_what_they_gave(tmp_path):
    accelerator, model, _ = trained(pair()[0], "bf16", "before", "all")
    state = accelerator.get_state_dict(model)
    assert all(state[key].data_ptr() == value.data_ptr() for key, value in model.state_dict().items())


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


def casting(model, folder):
    """A hook of somebody's own, which casts what comes in."""

    class Cast(hooks.ModelHook):
        def pre_forward(self, module, *args, **kwargs):
            return tuple(a.to(F32) for a in args), kwargs

    hooks.add_hook_to_module(model, Cast())


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
@torch.no_grad()
def test_a_hooked_model_computes_as_before(hook, order, depth, tmp_path):
    model, twin = hooked(hook, order, depth, tmp_path)
    for _ in range(2):
        assert same(model(drawn(F32)(2, 5), scale=2.0), twin(drawn(F32)(2, 5), scale=2.0))
    assert is_guarded(model)
    assert dtypeguard.casts() == []


@pytest.mark.thin(5)
@all_hooks
@orders
@torch.no_grad()
def test_a_hooked_model_computes_as_before_in_lenient_mode(hook, order, tmp_path):
    model, twin = hooked(hook, order, "all", tmp_path, mode="lenient")
    assert same(model(drawn(F32)(2, 5)), twin(drawn(F32)(2, 5)))
    assert dtypeguard.casts() == []


@pytest.mark.thin(6)
@all_hooks
@orders
@depths
@torch.no_grad()
def test_a_hooked_model_names_a_wrong_dtype_and_nothing_else(hook, order, depth, tmp_path):
    model, _ = hooked(hook, order, depth, tmp_path)
    with pytest.raises(DtypeError, match="argument `x` is float64") as caught:
        model(drawn(F64)(2, 5))
    assert "also" not in str(caught.value)


@pytest.mark.thin(5)
@all_hooks
@orders
@torch.no_grad()
def test_a_hooked_model_repairs_a_wrong_dtype(hook, order, tmp_path):
    model, twin = hooked(hook, order, "auto", tmp_path, mode="lenient")
    with pytest.warns(CastWarning, match="`x` was cast from float64 to float32") as told:
        repaired = model(drawn(F64)(2, 5))
    assert len(told) == 1
    assert same(repaired, twin(drawn(F64)(2, 5).float()))


@pytest.mark.thin(6)
@all_hooks
@orders
@depths
@torch.no_grad()
def test_the_guard_outlives_the_hooks(hook, order, depth, tmp_path):
    model, twin = hooked(hook, order, depth, tmp_path)
    hooks.remove_hook_from_module(model, recurse=True)
    assert not any(p.is_meta for p in model.parameters())
    assert is_guarded(model)
    assert same(model(drawn(F32)(2, 5)), twin(drawn(F32)(2, 5)))
    assert refuses(model, drawn(F64)(2, 5)) == "x"


@pytest.mark.thin(8)
@all_hooks
@orders
@depths
@pytest.mark.parametrize("first", ["guard", "hooks"])
@torch.no_grad()
def test_guard_and_hooks_come_off_in_any_order(hook, order, depth, first, tmp_path):
    model, twin = hooked(hook, order, depth, tmp_path)
    steps = [lambda: unguard(model), lambda: hooks.remove_hook_from_module(model, recurse=True)]
    for step in steps if first == "guard" else reversed(steps):
        step()
        assert same(model(drawn(F32)(2, 5)), twin(drawn(F32)(2, 5)))
    assert not is_guarded(model)
    assert [type(module) for module in model.modules()] == [type(module) for module in twin.modules()]
    with pytest.raises(RuntimeError, match="dtype"):
        model(drawn(F64)(2, 5))


@all_hooks
@torch.no_grad()
def test_hooks_come_on_and_off_again_under_one_guard(hook, tmp_path):
    model, twin = pair()
    guard(model, mode="strict", depth="all")
    for i in range(3):
        hook(model, str(tmp_path / str(i)))
        assert same(model(drawn(F32)(2, 5)), twin(drawn(F32)(2, 5)))
        hooks.remove_hook_from_module(model, recurse=True)
    assert refuses(model, drawn(F64)(2, 5)) == "x"


@torch.no_grad()
def test_a_guard_from_before_sees_what_a_hook_hands_on():
    model, twin = pair()
    guard(model, mode="strict")
    casting(model, None)
    assert same(model(drawn(F64)(2, 5)), twin(drawn(F64)(2, 5).float()))
    assert dtypeguard.casts() == []


@torch.no_grad()
def test_a_half_model_offloaded_asks_for_half(tmp_path):
    model, twin = (each.to(BF16) for each in pair())
    guard(model, mode="strict")
    offloaded_by_parts(model, str(tmp_path))
    assert same(model(drawn(BF16)(2, 5)), twin(drawn(BF16)(2, 5)))
    assert refuses(model, drawn(F32)(2, 5)) == "x"


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


def test_sequential_offloading_with_a_user_hook(tmp_path):
    model, twin = pair()
    guard(model, mode="strict")
    model, handle = accelerate.cpu_offload_with_hook(model, execution_device="cpu")
    with torch.no_grad():
        assert same(model(drawn(F32)(2, 5)), twin(drawn(F32)(2, 5)))
    handle.offload()
    handle.remove()
    assert refuses(model, drawn(F64)(2, 5)) == "x"


@pytest.mark.parametrize("hook", [None, aligned, offloaded_by_parts, chained])
@orders
def test_the_place_of_a_call_is_the_users_line(hook, order, tmp_path):
    if hook is None:
        _, model, _ = trained(pair()[0], "bf16", order)
    else:
        model, _ = hooked(hook, order, "auto", tmp_path)
    with pytest.raises(DtypeError) as caught:
        model(drawn(F64)(2, 5))
    assert caught.value.call_site.startswith("tests/integration/test_accelerate.py:")
    assert caught.value.call_site.endswith("in test_the_place_of_a_call_is_the_users_line")


def test_a_wrapped_guarded_model_is_found_by_a_recursive_unwrapping():
    inner = guard(pair()[0], mode="strict")
    outer = nn.Module()
    outer.module = inner
    outer = accelerate.utils.extract_model_from_parallel(nn.DataParallel(outer), recursive=True)
    assert outer is inner
    assert is_guarded(outer)


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


@slow
@pytest.mark.parametrize("hook", [offloaded_by_parts, dispatched], ids=lambda h: h.__name__)
@orders
@torch.no_grad()
def test_generate_with_offloaded_weights_gives_the_same_tokens(hook, order, tmp_path):
    model, twin = hooked(hook, order, "all", tmp_path, ARCHITECTURES["Llama"].build)
    options = {"max_new_tokens": 6, "min_new_tokens": 4, "do_sample": False}
    assert torch.equal(model.generate(ids(2, 5), **options), twin.generate(ids(2, 5), **options))


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


@torch.no_grad()
def test_an_empty_model_runs_on_meta_under_a_guard():
    with accelerate.init_empty_weights(include_buffers=True):
        model = Net()
    guard(model, mode="strict", depth="all")
    assert model(torch.ones(2, 5, device="meta")).shape == (2, 3)
    assert refuses(model, torch.ones(2, 5, device="meta", dtype=F64)) == "x"


@torch.no_grad()
def test_an_empty_model_that_is_assigned_its_weights_is_guarded_by_them():
    _, twin = pair()
    with accelerate.init_empty_weights(include_buffers=True):
        model = guard(Net().eval(), mode="strict")
    model.load_state_dict(twin.to(BF16).state_dict(), assign=True)
    assert same(model(drawn(BF16)(2, 5)), twin(drawn(BF16)(2, 5)))
    assert refuses(model, drawn(F32)(2, 5)) == "x"


def test_a_device_map_is_inferred_as_before():
    config = hf.LlamaConfig(**GROUPED)
    with accelerate.init_empty_weights():
        model = hf.LlamaForCausalLM(config)
    options = {"max_memory": {"cpu": 15000, "disk": "1GB"}, "no_split_module_classes": ["LlamaDecoderLayer"]}
    expected = accelerate.infer_auto_device_map(copy.deepcopy(model), **options)
    assert accelerate.infer_auto_device_map(guard(model, depth="all"), **options) == expected
    assert len(set(expected.values())) == 2


def test_a_saved_guarded_model_has_its_own_class_in_its_config(tmp_path):
    model = guard(ARCHITECTURES["Llama"].build())
    accelerator = accelerate.Accelerator(mixed_precision="bf16", cpu=True)
    model = accelerator.prepare(model)
    accelerator.unwrap_model(model).save_pretrained(tmp_path, save_function=accelerator.save)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
