"""PEFT over and under a guard: adapters in another dtype than the base, merged, saved, switched, prompted."""

import contextlib
import copy
import inspect

import peft
import pytest
import torch
import transformers as hf
from architectures import ARCHITECTURES, GROUPED, drawn, ids, pictures, same, tokens
from safetensors.torch import load_file

import dtypeguard
from dtypeguard import CastWarning, DtypeError, guard, is_guarded, unguard

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
pytestmark = [  # what peft itself provokes, and says
    pytest.mark.filterwarnings("ignore:`(is_)?gradient_checkpointing.* is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Unsupported layer type:UserWarning"),
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers` to `True`:UserWarning"),
    pytest.mark.filterwarnings("ignore:Position ids are not supported for parameter efficient tuning:UserWarning"),
    pytest.mark.filterwarnings("ignore:Careful, disabling adapter layers with bias:UserWarning"),
]
slow = pytest.mark.slow
depths = pytest.mark.parametrize("depth", ["auto", "all"])
orders = pytest.mark.parametrize("order", ["base", "whole"])  # what is guarded: the base before, or the PeftModel
dtypes = pytest.mark.parametrize("dtype", [F32, BF16], ids=["float32", "bfloat16"])


LAYERS = {"target_modules": ["q_proj", "v_proj"]}
METHODS = {
    "LoRA": lambda: peft.LoraConfig(task_type="CAUSAL_LM", r=2, lora_dropout=0.1, **LAYERS),
    "rsLoRA": lambda: peft.LoraConfig(task_type="CAUSAL_LM", r=2, use_rslora=True, init_lora_weights=False, **LAYERS),
    "DoRA": lambda: peft.LoraConfig(task_type="CAUSAL_LM", r=2, use_dora=True, **LAYERS),
    "all linear": lambda: peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules="all-linear"),
    "embeddings": lambda: peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["embed_tokens", "q_proj"]),
    "saved modules": lambda: peft.LoraConfig(task_type="CAUSAL_LM", r=2, modules_to_save=["lm_head"], **LAYERS),
    "trained tokens": lambda: peft.LoraConfig(task_type="CAUSAL_LM", r=2, trainable_token_indices=[3, 10], **LAYERS),
    "bias": lambda: peft.LoraConfig(task_type="CAUSAL_LM", r=2, bias="all", **LAYERS),
    "IA3": lambda: peft.IA3Config(
        task_type="CAUSAL_LM", target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]
    ),
    "LoHa": lambda: peft.LoHaConfig(task_type="CAUSAL_LM", r=2, **LAYERS),
    "LoKr": lambda: peft.LoKrConfig(task_type="CAUSAL_LM", r=2, **LAYERS),
    "AdaLoRA": lambda: peft.AdaLoraConfig(task_type="CAUSAL_LM", init_r=3, target_r=2, total_step=9, **LAYERS),
    "OFT": lambda: peft.OFTConfig(task_type="CAUSAL_LM", r=2, oft_block_size=0, **LAYERS),
    "VeRA": lambda: peft.VeraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"]),
    "layer norms": lambda: peft.LNTuningConfig(task_type="CAUSAL_LM", target_modules=["norm"]),
    "prompt": lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    "p-tuning": lambda: peft.PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=3, encoder_hidden_size=8),
    "prefix": lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
}
# peft puts ones in float32 before the mask, which the model takes in any dtype.
PROMPTED = ("prompt", "p-tuning", "prefix")
methods = pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=() if name in ("LoRA", "saved modules", "prompt") else slow) for name in METHODS],
)


def base(dtype=F32):
    torch.manual_seed(0)
    return hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED)).eval().to(dtype)


def adapted(model, method="LoRA", **options):
    torch.manual_seed(1)
    model = peft.get_peft_model(model, METHODS[method](), **options)
    torch.manual_seed(2)
    with torch.no_grad():  # an adapter that adds nothing would prove nothing
        for p in model.parameters():
            if p.requires_grad:
                p.add_(torch.randn(p.shape).to(p.dtype) * 0.05)
    return model


def pair(method="LoRA", order="whole", dtype=F32, depth="auto", mode="strict", **options):
    """An adapted model with a guard on its base or on the whole, and the same without."""
    model = base(dtype)
    if order == "base":
        guard(model, mode=mode, depth=depth, skip_args=["attention_mask"] if method in PROMPTED else ())
    model, twin = adapted(model, method, **options), adapted(base(dtype), method, **options)
    if order == "whole":
        guard(model, mode=mode, depth=depth)
    return model, twin


def run(model, **inputs):
    torch.manual_seed(3)
    return model(**inputs)


def learned(model):
    out = run(model.train(), **tokens(None), labels=ids(2, 7))
    out.loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    assert any(g is not None and g.any() for g in gradients.values())
    return {"loss": out.loss.detach(), **gradients}


def dtypes_of(model):
    return {p.dtype for p in model.parameters()}


# ---------------------------------------------------------------- the same results


@pytest.mark.thin(4)
@methods
@orders
@dtypes
def test_an_adapted_model_computes_and_learns_as_before(method, order, dtype):
    model, twin = pair(method, order, dtype)
    with torch.no_grad():
        assert same(run(model.eval(), **tokens(None)), run(twin.eval(), **tokens(None)))
    assert same(learned(model), learned(twin)) > 1
    assert dtypeguard.casts() == []


@pytest.mark.thin(4)
@methods
@orders
def test_so_does_one_that_is_guarded_everywhere(method, order):
    model, twin = pair(method, order, F32, "all")
    assert same(learned(model), learned(twin)) > 1
    assert dtypeguard.casts() == []


@pytest.mark.thin(4)
@pytest.mark.parametrize("method", ["LoRA", "saved modules", "embeddings", "all linear"])
@orders
def test_adapters_in_float32_on_a_bfloat16_base_are_no_fault_anywhere(method, order):
    """The usual setting: peft widens adapters to float32, and casts between them and the base by itself."""
    model, twin = pair(method, order, BF16, "all")
    assert dtypes_of(model) == dtypes_of(twin) == {BF16, F32}
    assert same(learned(model), learned(twin)) > 1
    assert dtypeguard.casts() == []


@pytest.mark.thin(5)
@pytest.mark.parametrize("method", ["LoRA", "saved modules"])
@orders
@depths
def test_nor_in_lenient_mode(method, order, depth):
    model, twin = pair(method, order, BF16, depth, "lenient")
    assert same(learned(model), learned(twin)) > 1
    assert dtypeguard.casts() == []


@orders
@depths
def test_a_dora_layer_that_widens_for_itself_is_no_fault(order, depth):
    model, twin = pair("DoRA", order, BF16, depth)
    assert same(learned(model), learned(twin)) > 1
    assert dtypeguard.casts() == []


@torch.no_grad()
def test_the_float32_mask_of_a_model_with_a_prefix_is_named_and_repaired():
    """It is the only floating argument: nothing shows that the caller knows the model's dtype."""
    model, twin = pair("prefix", "base", BF16)
    guard(model.get_base_model(), mode="strict")
    with pytest.raises(DtypeError) as caught:
        run(model.eval(), **tokens(None))
    assert caught.value.argument == "attention_mask"
    guard(model.get_base_model(), mode="lenient")
    with pytest.warns(CastWarning, match="`attention_mask` was cast from float32 to bfloat16"):
        repaired = run(model, **tokens(None))
    assert same(repaired, run(twin.eval(), **tokens(None)))


@pytest.mark.parametrize("method", ["prompt", "p-tuning"])
@torch.no_grad()
def test_the_float32_mask_beside_prompts_is_a_side_input(method):
    model, twin = pair(method, "base", BF16)
    for mode in ("strict", "lenient"):
        guard(model.get_base_model(), mode=mode)
        assert same(run(model.eval(), **tokens(None)), run(twin.eval(), **tokens(None)))
    assert dtypeguard.casts() == []


@pytest.mark.thin(4)
@pytest.mark.parametrize("method", ["LoRA", "DoRA", "prompt"])
@orders
@depths
def test_adapters_may_keep_the_dtype_of_the_base(method, order, depth):
    model, twin = pair(method, order, BF16, depth, autocast_adapter_dtype=False)
    assert method == "prompt" or dtypes_of(model) == {BF16}
    assert same(learned(model), learned(twin)) > 1
    assert dtypeguard.casts() == []


@pytest.mark.thin(6)
@pytest.mark.parametrize("method", ["LoRA", "DoRA", "prompt", "saved modules"])
@orders
@depths
@dtypes
def test_autocast_around_an_adapted_model_is_as_before(method, order, depth, dtype):
    model, twin = pair(method, order, dtype, depth)
    with torch.autocast("cpu", dtype=BF16):
        assert same(learned(model), learned(twin)) > 1
    assert dtypeguard.casts() == []


@orders
@depths
def test_layers_prepared_for_training_in_few_bits_are_no_fault(order, depth):
    """`prepare_model_for_kbit_training` widens what is not quantized; here nothing is."""
    model, twin = base(BF16), base(BF16)
    if order == "base":
        guard(model, mode="strict", depth=depth)
    model, twin = (
        adapted(peft.prepare_model_for_kbit_training(each, use_gradient_checkpointing=False)) for each in (model, twin)
    )
    if order == "whole":
        guard(model, mode="strict", depth=depth)
    assert same(learned(model), learned(twin)) > 1
    assert dtypeguard.casts() == []


@orders
@torch.no_grad()
def test_generate_of_an_adapted_model_gives_the_same_tokens(order):
    for method in ("LoRA", "prompt", "prefix"):
        model, twin = pair(method, order, BF16)
        options = tokens(None) | {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
        options["attention_mask"] = options["attention_mask"].flip(-1)
        assert torch.equal(model.eval().generate(**options), twin.eval().generate(**options))
    assert dtypeguard.casts() == []


@orders
@depths
def test_an_adapted_model_looks_as_before(order, depth):
    model, twin = pair("saved modules", order, F32, depth)
    assert repr(model) == repr(twin)
    assert list(model.state_dict()) == list(twin.state_dict())
    assert inspect.signature(model.forward) == inspect.signature(twin.forward)
    assert inspect.signature(model.get_base_model().forward) == inspect.signature(twin.get_base_model().forward)
    assert model.get_nb_trainable_parameters() == twin.get_nb_trainable_parameters()
    assert model.get_model_status() == twin.get_model_status()
    assert model.active_adapter == twin.active_adapter


# ---------------------------------------------------------------- what is wrong


@orders
@dtypes
def test_a_wrong_input_of_an_adapted_model_is_named(order, dtype):
    model, _ = pair("LoRA", order, dtype, autocast_adapter_dtype=False)
    with pytest.raises(DtypeError) as caught:
        model(inputs_embeds=drawn(F64)(2, 7, 16))
    assert caught.value.argument == "inputs_embeds"
    assert caught.value.expected is dtype


@orders
def test_a_wrong_input_of_an_adapted_model_is_repaired(order):
    model, twin = pair("LoRA", order, mode="lenient")
    with pytest.warns(CastWarning, match="`inputs_embeds` was cast from float64 to float32") as told:
        repaired = run(model, inputs_embeds=drawn(F64)(2, 7, 16))
    assert len(told) == 1
    assert same(repaired, run(twin, inputs_embeds=drawn(F64)(2, 7, 16).float()))


def test_a_wrong_input_of_a_mixed_adapted_model_meets_the_layer_that_takes_it():
    model, _ = pair("LoRA", "whole", BF16)
    with pytest.raises(DtypeError, match="is float64"):
        model(inputs_embeds=drawn(F64)(2, 7, 16))


# ---------------------------------------------------------------- what people do to adapters


@pytest.mark.thin(8)
@pytest.mark.parametrize("method", ["LoRA", "DoRA", "IA3", "LoKr", "saved modules"])
@orders
@depths
@dtypes
def test_merged_weights_are_the_same(method, order, depth, dtype):
    model, twin = pair(method, order, dtype, depth)
    merged, expected = model.merge_and_unload(), twin.merge_and_unload()
    assert type(merged).__name__ == type(expected).__name__
    assert same(dict(merged.state_dict()), dict(expected.state_dict()))
    with torch.no_grad():
        assert same(run(merged.eval(), **tokens(None)), run(expected.eval(), **tokens(None)))
    assert is_guarded(merged) is (order == "base")
    assert dtypeguard.casts() == []


@orders
@depths
@torch.no_grad()
def test_merging_and_unmerging_under_a_guard_is_as_before(order, depth):
    model, twin = pair("LoRA", order, BF16, depth)
    for step in ("merge_adapter", "unmerge_adapter"):
        getattr(model, step)(), getattr(twin, step)()
        assert same(run(model.eval(), **tokens(None)), run(twin.eval(), **tokens(None)))


@orders
@depths
@torch.no_grad()
def test_unloading_gives_the_base_back(order, depth):
    model, _ = pair("LoRA", order, F32, depth)
    bare = model.unload()
    assert same(run(bare.eval(), **tokens(None)), run(base(), **tokens(None)))
    assert is_guarded(bare) is (order == "base")
    if order == "base":
        with pytest.raises(DtypeError):
            bare(inputs_embeds=drawn(F64)(2, 7, 16))


@pytest.mark.thin(4)
@pytest.mark.parametrize("method", ["LoRA", "DoRA", "IA3", "saved modules", "bias", "prompt"])
@orders
@torch.no_grad()
def test_a_disabled_adapter_is_as_before(method, order):
    model, twin = pair(method, order, BF16)
    with contextlib.ExitStack() as stack:
        for each in (model.eval(), twin.eval()):
            stack.enter_context(each.disable_adapter())
        assert same(run(model, **tokens(None)), run(twin, **tokens(None)))
    assert same(run(model, **tokens(None)), run(twin, **tokens(None)))
    assert dtypeguard.casts() == []


@pytest.mark.thin(4)
@methods
@orders
@torch.no_grad()
def test_a_saved_adapter_has_the_same_file_and_loads(method, order, tmp_path):
    model, twin = pair(method, order, BF16)
    model.save_pretrained(tmp_path / "guarded")
    twin.save_pretrained(tmp_path / "plain")
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "guarded" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()
    assert load_file(tmp_path / "guarded" / "adapter_model.safetensors")
    skip = ["attention_mask"] if method in PROMPTED else ()
    loaded, expected = (
        peft.PeftModel.from_pretrained(each, tmp_path / "guarded").eval()
        for each in (guard(base(BF16), mode="strict", depth="all", skip_args=skip), base(BF16))
    )
    assert is_guarded(loaded.get_base_model())
    assert same(run(loaded, **tokens(None)), run(expected, **tokens(None)))
    assert dtypeguard.casts() == []


@orders
@depths
@torch.no_grad()
def test_a_second_adapter_can_be_added_and_switched_to(order, depth, tmp_path):
    model, twin = pair("LoRA", order, BF16, depth)
    for each in (model.eval(), twin.eval()):
        torch.manual_seed(5)
        config = peft.LoraConfig(r=3, target_modules=["q_proj"], init_lora_weights=False)
        each.add_adapter("second", config)
    for name in ("second", "default", "second"):
        model.set_adapter(name), twin.set_adapter(name)
        assert same(run(model, **tokens(None)), run(twin, **tokens(None)))
    for each in (model, twin):
        each.add_weighted_adapter(["default", "second"], [0.5, 0.5], "both", combination_type="cat")
        each.set_adapter("both")
    assert same(run(model, **tokens(None)), run(twin, **tokens(None)))
    model.delete_adapter("second"), twin.delete_adapter("second")
    model.set_adapter("default"), twin.set_adapter("default")
    assert same(run(model, **tokens(None)), run(twin, **tokens(None)))
    assert dtypeguard.casts() == []


@orders
@torch.no_grad()
def test_adapters_of_a_mixed_batch_are_as_before(order):
    model, twin = pair("LoRA", order, BF16, "all")
    results = []
    for each in (model.eval(), twin.eval()):
        torch.manual_seed(5)
        each.add_adapter("second", peft.LoraConfig(r=3, target_modules=["q_proj"], init_lora_weights=False))
        results.append(run(each, **tokens(None), adapter_names=["second", "__base__"]))
    assert same(*results)


@depths
@torch.no_grad()
def test_adapters_that_transformers_adds_itself_are_as_before(depth):
    model, twin = guard(base(BF16), mode="strict", depth=depth), base(BF16)
    for each in (model, twin):
        torch.manual_seed(5)
        each.add_adapter(peft.LoraConfig(r=2, init_lora_weights=False, **LAYERS))
    assert same(run(model, **tokens(None)), run(twin, **tokens(None)))
    model.disable_adapters(), twin.disable_adapters()
    assert same(run(model, **tokens(None)), run(twin, **tokens(None)))
    assert is_guarded(model)


@pytest.mark.thin(6)
@orders
@depths
@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_of_an_adapted_model_is_as_before(order, depth, reentrant):
    model, twin = pair("LoRA", order, BF16, depth)
    name = "activation_checkpointing" if hasattr(hf.PreTrainedModel, "activation_checkpointing_enable") else None
    for each in (model, twin):
        getattr(each.get_base_model(), f"{name or 'gradient_checkpointing'}_enable")({"use_reentrant": reentrant})
        each.get_base_model().enable_input_require_grads()
    assert same(learned(model), learned(twin)) > 1
    assert dtypeguard.casts() == []


@orders
@depths
def test_copies_and_an_unguarded_adapted_model_are_as_before(order, depth):
    model, twin = pair("LoRA", order, BF16, depth)
    assert same(run(copy.deepcopy(model), **tokens(None)), run(twin, **tokens(None)))
    unguard(model)
    assert [type(module) for module in model.modules()] == [type(module) for module in twin.modules()]
    assert same(run(model, **tokens(None)), run(twin, **tokens(None)))


@orders
def test_an_adapted_model_moves_to_another_dtype(order):
    model, twin = pair("LoRA", order, F32, "all")
    assert same(learned(model.to(BF16)), learned(twin.to(BF16)))
    assert same(learned(model.float()), learned(twin.float()))


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    ("name", "targets", "task"),
    [
        ("ViT", ["q_proj", "v_proj"], None),
        ("T5", ["q", "v"], "SEQ_2_SEQ_LM"),
        pytest.param("RoBERTa", ["query", "value"], "SEQ_CLS", marks=slow),
        pytest.param("Whisper", ["q_proj", "v_proj"], None, marks=slow),
        pytest.param("GPT-2", ["c_attn"], "CAUSAL_LM", marks=slow),
    ],
)
@orders
@depths
@dtypes
def test_adapted_models_of_other_kinds_are_as_before(name, targets, task, order, depth, dtype):
    models = []
    for each in range(2):
        torch.manual_seed(0)
        model = ARCHITECTURES[name].build().eval().to(dtype)
        if each == 0 and order == "base":
            guard(model, mode="strict", depth=depth)
        torch.manual_seed(1)
        config = peft.LoraConfig(
            task_type=task, r=2, target_modules=targets, init_lora_weights=False, fan_in_fan_out=name == "GPT-2"
        )
        models.append(peft.get_peft_model(model, config))
    if order == "whole":
        guard(models[0], mode="strict", depth=depth)
    inputs = ARCHITECTURES[name].inputs(drawn(dtype)) | ARCHITECTURES[name].labels()
    assert same(*(run(each, **inputs) for each in models))
    assert dtypeguard.casts() == []


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    "how", [pytest.param("float32", marks=slow), pytest.param("bfloat16 autocast", marks=slow), "bfloat16 base"]
)
@orders
def test_trainer_trains_an_adapted_model_as_before(how, order, tmp_path):
    class Sentences(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, i):
            return {"input_ids": (ids(8, 7)[i] + i) % 61, "labels": (ids(8, 7)[i] + i) % 61, "text": str(i)}

    results = []
    for i, model in enumerate(pair("LoRA", order, BF16 if how == "bfloat16 base" else F32, "all")):
        arguments = hf.TrainingArguments(
            str(tmp_path / str(i)),
            max_steps=3,
            per_device_train_batch_size=4,
            learning_rate=0.01,
            bf16=how == "bfloat16 autocast",
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = hf.Trainer(model, arguments, train_dataset=Sentences())
        trainer.train()
        results.append((tmp_path / str(i) / "checkpoint-3" / "adapter_model.safetensors").read_bytes())
    assert results[0] == results[1]
    assert dtypeguard.casts() == []


def test_pictures_in_another_dtype_reach_the_base_of_an_adapted_model():
    model = guard(ARCHITECTURES["ViT"].build().eval(), mode="strict")
    model = peft.get_peft_model(model, peft.LoraConfig(r=2, **LAYERS))
    wrong = pictures(drawn(F64))
    with pytest.raises(DtypeError) as caught:
        model(**wrong)
    assert caught.value.argument == "pixel_values"
