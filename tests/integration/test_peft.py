"""PEFT over and under a guard: adapters in another dtype than the base, merged, saved, switched, prompted."""

import inspect

import peft
import pytest
import torch
import transformers as hf
from architectures import GROUPED, drawn, ids, same, tokens
from safetensors.torch import load_file
from support import BF16, F32, F64, LIBRARIES_WARN

import dtypeguard
from dtypeguard import CastWarning, DtypeError, guard, is_guarded, unguard

pytestmark = [  # what peft itself provokes, and says
    *LIBRARIES_WARN,
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


# ---------------------------------------------------------------- each method


@pytest.mark.thin(4)
@methods
@orders
@dtypes
@depths
def test_an_adapted_model_computes_learns_and_is_saved_as_before(method, order, dtype, depth, tmp_path):
    """Adapters are float32 on a bfloat16 base: peft casts between them by itself."""
    model, twin = pair(method, order, dtype, depth)
    assert appearance(model) == appearance(twin)
    assert dtypes_of(model) == dtypes_of(twin)
    with torch.no_grad():
        expected = run(twin.eval(), **tokens(None))
        assert same(run(model.eval(), **tokens(None)), expected)
        for each in (model, twin):
            each.save_pretrained(tmp_path / str(each is model))
        for name in ("adapter_model.safetensors", "adapter_config.json"):
            assert (tmp_path / "True" / name).read_bytes() == (tmp_path / "False" / name).read_bytes()
        assert load_file(tmp_path / "True" / "adapter_model.safetensors")
        skip = ["attention_mask"] if method in PROMPTED else ()
        loaded = peft.PeftModel.from_pretrained(guard(base(dtype), mode="strict", skip_args=skip), tmp_path / "True")
        bare = peft.PeftModel.from_pretrained(base(dtype), tmp_path / "True")
        assert is_guarded(loaded.get_base_model())
        assert same(run(loaded.eval(), **tokens(None)), run(bare.eval(), **tokens(None)))
        with model.disable_adapter(), twin.disable_adapter():
            assert same(run(model, **tokens(None)), run(twin, **tokens(None)))
    assert same(learned(model), learned(twin)) > 1
    with torch.autocast("cpu", dtype=BF16):
        assert same(learned(model), learned(twin)) > 1
    assert dtypeguard.casts() == []
    unguard(model)
    assert [type(module) for module in model.modules()] == [type(module) for module in twin.modules()]


def appearance(model):
    inner = model.get_base_model()
    status = None if model.active_peft_config.is_prompt_learning else model.get_model_status()
    signatures = inspect.signature(model.forward), inspect.signature(inner.forward)
    return repr(model), list(model.state_dict()), signatures, model.get_nb_trainable_parameters(), status


@pytest.mark.parametrize("method", ["prefix", "prompt", "p-tuning"])
@torch.no_grad()
def test_the_float32_mask_beside_prompts_is_a_side_input(method):
    model, twin = pair(method, "base", BF16)
    for mode in ("strict", "lenient"):
        guard(model.get_base_model(), mode=mode)
        assert same(run(model.eval(), **tokens(None)), run(twin.eval(), **tokens(None)))
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


# ---------------------------------------------------------------- what is wrong


@orders
@dtypes
def test_a_wrong_input_of_an_adapted_model_is_named_and_repaired(order, dtype):
    model, twin = pair("LoRA", order, dtype, mode=None, autocast_adapter_dtype=False)
    wrong = drawn(F64)(2, 7, 16)
    with dtypeguard.mode("strict"), pytest.raises(DtypeError) as caught:
        model(inputs_embeds=wrong)
    assert (caught.value.argument, caught.value.expected) == ("inputs_embeds", dtype)
    with pytest.warns(CastWarning, match="`inputs_embeds` was cast from float64 to") as told:
        repaired = run(model, inputs_embeds=wrong)
    assert len(told) == 1
    assert same(repaired, run(twin, inputs_embeds=wrong.to(dtype)))


def test_a_wrong_input_of_a_mixed_adapted_model_meets_the_layer_that_takes_it():
    model, _ = pair("LoRA", "whole", BF16)
    with pytest.raises(DtypeError, match="is float64"):
        model(inputs_embeds=drawn(F64)(2, 7, 16))


# ---------------------------------------------------------------- what people do to adapters


@pytest.mark.thin(8)
@pytest.mark.parametrize("method", ["LoRA", "DoRA", "saved modules"])
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
def test_unloading_gives_the_base_back(order, depth):
    model, _ = pair("LoRA", order, F32, depth)
    bare = model.unload()
    assert same(run(bare.eval(), **tokens(None)), run(base(), **tokens(None)))
    assert is_guarded(bare) is (order == "base")
    if order == "base":
        with pytest.raises(DtypeError):
            bare(inputs_embeds=drawn(F64)(2, 7, 16))


@orders
@depths
@torch.no_grad()
def test_adapters_are_added_merged_mixed_and_switched_as_before(order, depth, tmp_path):
    model, twin = pair("LoRA", order, BF16, depth)
    for each in (model.eval(), twin.eval()):
        torch.manual_seed(5)
        config = peft.LoraConfig(r=3, target_modules=["q_proj"], init_lora_weights=False)
        each.add_adapter("second", config)
    for step in ("merge_adapter", "unmerge_adapter"):
        getattr(model, step)(), getattr(twin, step)()
        assert same(run(model, **tokens(None)), run(twin, **tokens(None)))
    both = {"adapter_names": ["second", "__base__"]}
    assert same(run(model, **tokens(None), **both), run(twin, **tokens(None), **both))
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
def test_an_adapted_model_moves_to_another_dtype(order):
    model, twin = pair("LoRA", order, F32, "all")
    assert same(learned(model.to(BF16)), learned(twin.to(BF16)))
    assert same(learned(model.float()), learned(twin.float()))


@pytest.mark.thin(2)
@orders
def test_trainer_trains_an_adapted_model_as_before(order, tmp_path):
    class Sentences(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, i):
            return {"input_ids": (ids(8, 7)[i] + i) % 61, "labels": (ids(8, 7)[i] + i) % 61, "text": str(i)}

    results = []
    for i, model in enumerate(pair("LoRA", order, BF16, "all")):
        arguments = hf.TrainingArguments(
            str(tmp_path / str(i)),
            max_steps=3,
            per_device_train_batch_size=4,
            learning_rate=0.01,
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
