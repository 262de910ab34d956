"""Hugging Face models under a guard: the same results, caches, token ids, files and losses as without one."""

import contextlib
import copy
import inspect
import json
import subprocess
import sys

import pytest
import torch
import transformers as hf
from architectures import (
    ARCHITECTURES,
    GROUPED,
    TEXT,
    captioned,
    drawn,
    ids,
    padded,
    pictures,
    same,
    spectra,
    token_labels,
    tokens,
    translated,
)
from jaxtyping import Float, Int64
from support import BF16, F16, F32, F64
from torch import Tensor
from transformers.modeling_outputs import MaskedLMOutput
from versions import need

import dtypeguard
from dtypeguard import CastWarning, DtypeError, InplaceOnCastWarning, enforce, guard, is_guarded

NAMES = {F16: "float16", BF16: "bfloat16", F32: "float32", F64: "float64"}
QUICK = ("Llama", "BERT", "T5", "Wav2Vec2", "ViT, no head", "CLIP", "Mamba")

slow = pytest.mark.slow
depths = pytest.mark.parametrize("depth", ["auto", "all"])

# In bfloat16 these compute parts of themselves in float32, where their own submodules' borders are.
BORN_INSIDE = {
    "Qwen3-MoE": None,
    "Mamba": ("hidden_states", "*norm*"),
    "Mamba2": ("hidden_states", "*norm*"),
    "FalconMamba": ("hidden_states", "*norm*"),
}


def built(name, dtype=F32):
    """A model, a copy of it that will not be guarded, and inputs for both."""
    architecture = ARCHITECTURES[name]
    model = architecture.build().eval().to(dtype)
    with contextlib.suppress(ValueError):  # without attention, or with only one kind
        model.set_attn_implementation("eager")
    return model, copy.deepcopy(model), architecture.inputs(drawn(dtype))


def run(model, **inputs):
    hf.set_seed(2)
    return model(**inputs)


def agree(model, twin, inputs):
    """Bit-identical in all that both can return."""
    wanted = {"output_hidden_states": True, "output_attentions": True}
    return all(
        [
            same(run(model, **inputs), run(twin, **inputs)),
            same(run(model, **inputs, **wanted), run(twin, **inputs, **wanted)) > 1,
            same(run(model, **inputs, return_dict=False), run(twin, **inputs, return_dict=False)),
        ]
    )


def learned(model, **inputs):
    """The loss of one step, and all gradients."""
    model.zero_grad()
    out = run(model.train(), **inputs)
    out.loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert gradients
    return {"loss": out.loss.detach(), **gradients}


# ---------------------------------------------------------------- every architecture


CASES = [
    pytest.param(name, dtype, id=f"{name}-{NAMES[dtype]}", marks=[slow] * (name not in QUICK or dtype is BF16))
    for name, architecture in ARCHITECTURES.items()
    for dtype in (F32, BF16)
    if dtype is F32 or architecture.half
]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_a_guarded_model_is_what_it_was(name, dtype):
    """It looks, computes and learns the same at any depth; one wrong input is named, and repaired."""
    architecture, depths = ARCHITECTURES[name], ("auto",) if dtype is BF16 and name in BORN_INSIDE else ("auto", "all")
    for depth in depths:
        model, twin, inputs = built(name, dtype)
        looks = appearance(model)
        guard(model, depth=depth, mode="strict")
        assert appearance(model) == looks
        assert isinstance(model, type(twin))
        assert all(inspect.unwrap(each.forward) == each.forward for each in model.modules() if is_guarded(each))
        with torch.no_grad():
            assert agree(model, twin, inputs)
            if dtype is F32:
                with torch.autocast("cpu", dtype=BF16):
                    assert same(run(model, **inputs), run(twin, **inputs))
        if architecture.labels:
            labels = architecture.labels()
            assert same(learned(model, **inputs | labels), learned(twin, **inputs | labels)) > 1
    assert dtypeguard.casts() == []
    if architecture.floating:
        is_named_and_repaired(name, dtype, architecture.floating)


def appearance(model):
    """What others ask of a model: text, weights where they lie, classes, signatures, what transformers says of it."""
    modules = [
        (type(m).__name__, inspect.signature(m.forward), inspect.signature(type(m).forward)) for m in model.modules()
    ]
    stored = {key: value.data_ptr() for key, value in model.state_dict().items()}
    says = model.config.to_dict(), model.dtype, model.device, model.can_generate(), model.num_parameters()
    return repr(model), modules, list(stored.items()), says


@torch.no_grad()
def is_named_and_repaired(name, dtype, argument):
    model, twin, inputs = built(name, dtype)
    wrong = inputs | {argument: inputs[argument].double()}
    with pytest.raises(DtypeError, match=f"argument `{argument}` is float64") as caught:
        guard(model, mode="strict")(**wrong)
    assert (caught.value.argument, caught.value.actual, caught.value.expected) == (argument, F64, dtype)
    assert type(model).__name__ in str(caught.value)
    assert "also" not in str(caught.value)
    names = list(inspect.signature(model.forward).parameters)
    given = [inputs.get(each) for each in names[: names.index(argument)]]
    if None not in given[:1]:
        with pytest.raises(DtypeError) as caught:
            model(*given, wrong[argument])
        assert caught.value.argument == argument
    guard(model, mode="lenient")
    with pytest.warns(CastWarning, match=f"`{argument}` was cast from float64 to {NAMES[dtype]}") as told:
        assert same(run(model, **wrong), run(twin, **inputs))
    assert len(told) == 1
    run(model, **wrong)
    (record,) = dtypeguard.casts()
    assert (record.argument, record.from_dtype, record.to_dtype, record.count) == (argument, F64, dtype, 2)


@pytest.mark.parametrize("name", [name for name, case in BORN_INSIDE.items() if case])
def test_what_a_model_keeps_in_float32_inside_is_named_at_depth_all_only(name):
    argument, pattern = BORN_INSIDE[name]
    model, twin, inputs = built(name, BF16)
    with pytest.raises(DtypeError, match="is float32, the module's parameters are bfloat16") as caught:
        guard(model, depth="all", mode="strict")(**inputs)
    assert caught.value.argument == argument
    guard(model, depth="all", mode="strict", skip_modules=[pattern])
    assert same(run(model, **inputs), run(twin, **inputs))


def test_arguments_that_nobody_gave_are_not_passed_on():
    """`LlamaModel.forward` is decorated by what fills `use_cache` in from the config."""
    model, twin, inputs = built("Llama, no head")
    model.config.use_cache = twin.config.use_cache = False
    assert run(guard(model, mode="strict"), **inputs).past_key_values is None
    assert same(run(model, **inputs), run(twin, **inputs)) == 1
    assert same(run(model, **inputs, use_cache=True), run(twin, **inputs, use_cache=True)) > 1


# ---------------------------------------------------------------- what is wrong


def test_an_argument_can_be_skipped_by_its_name():
    for name in ("BERT", "BERT, no head"):
        model, _, inputs = built(name)
        guard(model, mode="strict", skip_args=["inputs_embeds"])
        with pytest.raises(RuntimeError, match="dtype") as caught:
            model(**inputs | {"inputs_embeds": inputs["inputs_embeds"].double()})
        assert not isinstance(caught.value, dtypeguard.DtypeGuardError)


@pytest.mark.parametrize("mode", ["strict", "lenient"])
def test_a_float_mask_that_is_infinite_in_half_is_not_cast(mode):
    model = hf.BertModel(hf.BertConfig(**TEXT)).eval().half()
    mask = torch.zeros(2, 1, 7, 7)
    mask[..., -1] = torch.finfo(F32).min
    expected = run(model, input_ids=ids(2, 7), attention_mask=mask).last_hidden_state
    found = run(guard(model, mode=mode), input_ids=ids(2, 7), attention_mask=mask).last_hidden_state
    assert expected.isfinite().all()
    assert torch.equal(found, expected)


def test_a_scalar_that_the_loss_is_divided_by_is_not_rounded():
    """Trainer passes the number of tokens as float32; 1001 is 1000 in bfloat16."""
    model, twin, inputs = built("Llama", BF16)
    inputs |= token_labels() | {"num_items_in_batch": torch.tensor(1001.0)}
    expected = run(twin, **inputs).loss
    assert torch.equal(run(guard(model, mode="strict"), **inputs).loss, expected)
    assert torch.equal(run(guard(model, mode="lenient"), **inputs).loss, expected)
    assert dtypeguard.casts() == []


FLOAT_LABELS = {
    "regression": (1, torch.tensor([0.1, 0.7])),
    "multi_label_classification": (3, torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]])),
}


@pytest.mark.parametrize("problem", FLOAT_LABELS)
def test_float_labels_of_a_half_model_can_be_left_to_the_loss(problem):
    count, labels = FLOAT_LABELS[problem]
    config = hf.RobertaConfig(**TEXT, num_labels=count, problem_type=problem)
    model = hf.RobertaForSequenceClassification(config).to(BF16)
    twin, inputs = copy.deepcopy(model), tokens(None) | {"labels": labels}
    with pytest.raises(DtypeError) as caught:
        guard(model, mode="strict")(**inputs)
    assert caught.value.argument == "labels"
    if problem == "regression":
        need("torch", "2.13", "mse_loss has no gradient for two dtypes")
    expected = learned(twin, **inputs)
    assert expected["loss"].dtype is F32
    for mode in ("strict", "lenient"):
        assert same(learned(guard(model, mode=mode, skip_args=["labels"]), **inputs), expected) > 1
    assert dtypeguard.casts() == []


# ---------------------------------------------------------------- ids, masks and caches


def arrivals(model, **inputs):
    """What the body of a guarded head hands on to the model inside."""
    seen = {}
    handle = model.base_model.register_forward_pre_hook(lambda m, args, kwargs: seen.update(kwargs), with_kwargs=True)
    run(model, **inputs)
    handle.remove()
    return seen


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=["int64", "int32"])
@pytest.mark.parametrize("mask", [torch.int64, torch.bool, BF16], ids=["int64", "bool", "bfloat16"])
def test_token_ids_masks_and_caches_arrive_as_the_same_objects(dtype, mask):
    model, twin, _ = built("Llama", BF16)
    inputs = {"input_ids": ids(2, 7).to(dtype), "attention_mask": padded(2, 7).to(mask)}
    if mask is BF16:
        inputs["attention_mask"] = torch.zeros(2, 1, 7, 7, dtype=BF16)
    inputs["position_ids"] = torch.arange(7).expand(2, 7)
    cache = hf.DynamicCache(config=model.config)
    seen = arrivals(guard(model, depth="all", mode="strict"), **inputs, past_key_values=cache)
    assert all(seen[name] is inputs[name] for name in inputs)
    assert any(value is cache for value in seen.values())  # `cache`, or before 5.24 `past_key_values`
    assert cache.get_seq_length() == 7
    assert same(run(model, **inputs), run(twin, **inputs))


CACHES = ["GPT-2", "Llama", "Gemma2", "Mamba", "Bamba"]


@pytest.mark.parametrize("name", [pytest.param(name, marks=[slow] * (name not in QUICK)) for name in CACHES])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=NAMES.get)
@torch.no_grad()
def test_a_cache_passed_back_is_the_same_cache(name, dtype):
    model, twin, _ = built(name, dtype)
    guard(model, mode="strict")
    key = "cache_params" if name in ("Mamba", "Mamba2", "FalconMamba") else "past_key_values"
    cache, other = (run(each, input_ids=ids(2, 5), use_cache=True)[key] for each in (model, twin))
    assert same(cache, other) >= 4
    for token in (7, 8):
        one = torch.full((2, 1), token)
        out = run(model, input_ids=one, use_cache=True, **{key: cache})
        assert same(out, run(twin, input_ids=one, use_cache=True, **{key: other}))
        assert out[key] is cache
    assert dtypeguard.casts() == []


@pytest.mark.parametrize("name", ["T5", "Whisper"])
@torch.no_grad()
def test_a_cache_of_both_sides_passed_back_is_the_same_cache(name):
    model, twin, inputs = built(name)
    guard(model, mode="strict")
    caches = []
    for each in (model, twin):
        cache = run(each, **inputs, use_cache=True).past_key_values
        assert type(cache) is hf.EncoderDecoderCache
        out = run(each, **inputs | {"decoder_input_ids": ids(2, 1)}, past_key_values=cache, use_cache=True)
        assert out.past_key_values is cache
        caches.append(out)
    assert same(*caches)


@torch.no_grad()
def test_encoder_outputs_are_passed_back_named_and_repaired_and_stay_as_they_were():
    model, twin, inputs = built("T5", BF16)
    guard(model, mode="strict")
    rest = {"decoder_input_ids": ids(2, 5)}
    right, wrong = (twin.get_encoder()(inputs["input_ids"]) for _ in range(2))
    expected = run(twin, encoder_outputs=right, **rest)
    assert same(run(model, encoder_outputs=right, **rest), expected)
    wrong.last_hidden_state = held = right.last_hidden_state.float()
    with pytest.raises(DtypeError) as caught:
        model(encoder_outputs=wrong, **rest)
    assert caught.value.argument == "encoder_outputs.last_hidden_state"
    with pytest.warns(CastWarning, match=r"encoder_outputs\.last_hidden_state"):
        repaired = run(guard(model, mode="lenient"), encoder_outputs=wrong, **rest)
    assert same(repaired.logits, expected.logits)
    assert wrong.last_hidden_state is wrong["last_hidden_state"] is held


@torch.no_grad()
def test_a_cache_in_another_dtype_is_left_as_it_is():
    """Only pytrees are looked into, and transformers does not register its caches by itself."""
    model, twin, _ = built("Llama")
    half = copy.deepcopy(model).to(BF16)
    results = []
    for each in (guard(model, mode="strict"), twin):
        cache = run(half, input_ids=ids(2, 5)).past_key_values
        kept = [layer.keys for layer in cache.layers]
        out = run(each, input_ids=ids(2, 1), past_key_values=cache)
        assert all(keys.dtype is BF16 for keys in kept)
        results.append(out)
    assert same(*results)
    assert dtypeguard.casts() == []


REGISTERED = """
import copy, torch, transformers as hf
from transformers.integrations.executorch import register_dynamic_cache_export_support
from dtypeguard import DtypeError, casts, guard

register_dynamic_cache_export_support()
config = hf.LlamaConfig(
    vocab_size=61, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2
)
model = hf.LlamaForCausalLM(config).eval()
half, one = copy.deepcopy(model).to(torch.bfloat16), torch.ones(1, 1, dtype=torch.int64)
guard(model, mode="strict")
cache = model(one, use_cache=True).past_key_values
assert model(one, past_key_values=cache).past_key_values is cache
wrong = half(one, use_cache=True).past_key_values
try:
    model(one, past_key_values=wrong)
except DtypeError as error:
    assert error.argument.startswith("past_key_values["), error.argument
else:
    raise AssertionError("not noticed")
assert wrong.layers[0].keys.dtype is torch.bfloat16 and casts() == []
"""


@slow
def test_a_cache_that_is_registered_as_a_pytree_is_checked_and_never_cast():
    subprocess.run([sys.executable, "-c", REGISTERED], check=True)


# ---------------------------------------------------------------- generate


def generated(model, **options):
    hf.set_seed(3)
    lengths = {"min_new_tokens": 4, "max_new_tokens": 6}
    return model.generate(**lengths | {"return_dict_in_generate": True, "output_scores": True} | options)


WAYS = {
    "greedy": {},
    "without a cache": {"use_cache": False},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "sampling": {"do_sample": True, "top_k": 20, "top_p": 0.9, "temperature": 1.3},
    "beams and sampling": {"num_beams": 2, "do_sample": True},
    "static cache": {"cache_implementation": "static"},
    "with attentions": {"output_attentions": True, "output_hidden_states": True, "output_logits": True},
    "constrained": {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2},
    "prompt lookup": {"prompt_lookup_num_tokens": 2},
}
GENERATORS = ("GPT-2", "Llama", "T5", "Whisper", "Mistral", "Mixtral", "BART", "Mamba", "RWKV", "LLaVA", "Qwen2-VL")
STATELESS = ("beams", "static cache", "with attentions", "prompt lookup", "beams and sampling")


def prompts(name, dtype):
    inputs = ARCHITECTURES[name].inputs(drawn(dtype))
    inputs.pop("decoder_input_ids", None)
    if name in ("Mamba", "RWKV"):
        return {"input_ids": ids(2, 5)}
    if "attention_mask" in inputs:
        inputs["attention_mask"] = inputs["attention_mask"].flip(-1)  # padded on the left
    return inputs


CASES = [
    pytest.param(name, way, marks=() if name in ("Llama", "T5") and way in ("greedy", "beams", "sampling") else slow)
    for name in GENERATORS
    for way in WAYS
    if not (name in ("Mamba", "RWKV") and way in STATELESS) and not (name == "Whisper" and way == "prompt lookup")
]


@pytest.mark.parametrize(("name", "way"), CASES)
@pytest.mark.parametrize("dtype", [F32, pytest.param(BF16, marks=slow)], ids=NAMES.get)
@torch.no_grad()
def test_generate_gives_the_same_tokens(name, way, dtype):
    model, twin, _ = built(name, dtype)
    inputs = prompts(name, dtype)
    if way == "prompt lookup" and name != "Qwen2-VL":
        inputs = {key: value[-1:] for key, value in inputs.items()}
    options = WAYS[way] | inputs | {"output_router_logits": False} if name == "Mixtral" else WAYS[way] | inputs
    guard(model, mode="strict", skip_args=["state"] if name == "RWKV" else ())  # which it keeps in float32 for itself
    assert same(generated(model, **options), generated(twin, **options)) > 1
    assert dtypeguard.casts() == []


@pytest.mark.parametrize("whole", [True, False], ids=["depth all", "the encoder"])
@torch.no_grad()
def test_generate_from_a_wrong_input_is_repaired_where_the_encoder_is_guarded(whole):
    """`generate` calls the encoder, not the model's forward."""
    model, twin, inputs = built("Whisper", BF16)
    expected = generated(twin, input_features=inputs["input_features"])
    wrong = inputs["input_features"].float()
    if whole:
        guard(model, depth="all")
    else:
        guard(model.get_encoder())
    with dtypeguard.mode("strict"), pytest.raises(DtypeError, match="is float32"):
        generated(model, input_features=wrong)
    with pytest.warns(CastWarning):
        out = generated(model, input_features=wrong)
    assert torch.equal(out.sequences, expected.sequences)


# ---------------------------------------------------------------- files


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[slow] * (name not in QUICK)) for name in ("T5", "LLaVA", "Llama")]
)
@depths
def test_save_pretrained_writes_the_same_files_and_its_class_loads_them(name, depth, tmp_path):
    model, twin, inputs = built(name)
    guard(model, depth=depth, mode="strict").save_pretrained(tmp_path / "guarded", max_shard_size="10KB")
    twin.save_pretrained(tmp_path / "plain", max_shard_size="10KB")
    written = files(tmp_path / "guarded")
    assert written == files(tmp_path / "plain")
    assert len(written) > 3
    assert json.loads(written["config.json"])["architectures"] == [type(twin).__name__] == model.config.architectures
    assert is_guarded(model)
    for cls in (type(twin), type(model), hf.AutoModel):
        loaded = cls.from_pretrained(tmp_path / "guarded").eval()
        if cls is hf.AutoModel:
            assert type(loaded).__name__ == {"T5": "T5Model", "LLaVA": "LlavaModel", "Llama": "LlamaModel"}[name]
            continue
        assert isinstance(loaded, type(twin))
        loaded.set_attn_implementation("eager")
        assert same(run(loaded, **inputs), run(twin, **inputs))
        loaded.save_pretrained(tmp_path / "again")
        assert json.loads(files(tmp_path / "again")["config.json"])["architectures"] == [type(twin).__name__]


# ---------------------------------------------------------------- what people do to models


def tied(model):
    return model.get_output_embeddings().weight is model.get_input_embeddings().weight


@pytest.mark.parametrize("name", ["GPT-2", pytest.param("T5", marks=slow), pytest.param("BERT", marks=slow)])
@depths
def test_weights_stay_tied_and_embeddings_are_resized_as_before(name, depth, tmp_path):
    model, twin, inputs = built(name)
    guard(model, depth=depth, mode="strict")
    assert tied(model)
    assert tied(copy.deepcopy(model))
    model.tie_weights()
    model.save_pretrained(tmp_path)
    assert tied(type(twin).from_pretrained(tmp_path))
    inputs |= ARCHITECTURES[name].labels()
    for each in (model, twin):
        torch.manual_seed(5)
        each.resize_token_embeddings(70, mean_resizing=False)
    assert tied(model)
    assert model.config.vocab_size == 70
    assert same(learned(model, **inputs), learned(twin, **inputs))
    assert same(dict(model.state_dict()), dict(twin.state_dict()))


NEW = hasattr(hf.PreTrainedModel, "activation_checkpointing_enable")
CHECKPOINTING = "activation_checkpointing" if NEW else "gradient_checkpointing"


@pytest.mark.thin(4)
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("name", ["Llama", "ViT"])
@pytest.mark.parametrize("first", ["guard", "checkpointing"])
@depths
def test_gradient_checkpointing_gives_the_same_gradients(name, reentrant, first, depth):
    model, twin, inputs = built(name)
    inputs |= ARCHITECTURES[name].labels()
    expected = learned(copy.deepcopy(twin), **inputs)
    if first == "guard":
        guard(model, depth=depth, mode="strict")
    for each in (model, twin):
        getattr(each, f"{CHECKPOINTING}_enable")({"use_reentrant": reentrant})
        if reentrant and name != "ViT":
            each.enable_input_require_grads()
    if first != "guard":
        guard(model, depth=depth, mode="strict")
    assert all(layer.gradient_checkpointing for layer in model.modules() if hasattr(layer, "gradient_checkpointing"))
    assert same(learned(model, **inputs), learned(twin, **inputs)) > 1
    getattr(model, f"{CHECKPOINTING}_disable")()
    assert same(learned(model, **inputs), expected)
    assert dtypeguard.casts() == []


# ---------------------------------------------------------------- parts in another dtype


def kept(build):
    """As `from_pretrained` loads it: what the architecture keeps in float32 stays so."""

    def load(folder, dtype):
        model = build().eval()
        model.save_pretrained(folder)
        return type(model).from_pretrained(folder, dtype=dtype)

    return load


def by_hand(build, *patterns):
    """Cast whole, then some parts back to float32."""

    def load(folder, dtype):
        model = build().eval().to(dtype)
        for name, p in model.named_parameters():
            if any(pattern in name for pattern in patterns):
                p.data = p.data.float()
        return model

    return load


def gpt_oss():
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    config = hf.GptOssConfig(**GROUPED, head_dim=8, num_local_experts=3, num_experts_per_tok=2, rope_parameters=rope)
    return hf.GptOssForCausalLM(config)


def ernie():
    config = hf.Ernie4_5_MoeConfig(
        **GROUPED, moe_num_experts=3, moe_k=2, moe_intermediate_size=16, moe_layer_start_index=0, moe_layer_end_index=1
    )
    return hf.Ernie4_5_MoeForCausalLM(config)


def of(name):
    return ARCHITECTURES[name].build


# how to get the model, its dtype, its inputs
MIXED = {
    "T5, wo": (kept(of("T5")), F16, translated),
    "GPT-OSS, norms": (kept(gpt_oss), F16, tokens),
    "Ernie 4.5, router": (kept(ernie), BF16, tokens),
    "RWKV, decay": (kept(of("RWKV")), F16, tokens),
    "BLIP-2, Q-Former": (kept(of("BLIP-2")), F16, ARCHITECTURES["BLIP-2"].inputs),
    "CLIP, logit_scale": (by_hand(of("CLIP"), "logit_scale"), BF16, captioned),
    "SigLIP, logit_scale": (by_hand(of("SigLIP"), "logit_scale", "logit_bias"), F16, captioned),
    "ViT, LayerNorms": (by_hand(of("ViT"), "layernorm", "layer_norm", "norm"), BF16, pictures),
    "Whisper, LayerNorms": (by_hand(of("Whisper"), "layer_norm"), BF16, spectra),
    "Swin, position bias": (by_hand(of("Swin"), "relative_position_bias_table"), BF16, pictures),
}


@pytest.mark.thin(4)
@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("mode", ["strict", "lenient"])
@torch.no_grad()
def test_parts_that_are_kept_in_float32_are_no_fault(name, mode, tmp_path):
    load, dtype, inputs = MIXED[name]
    model = load(tmp_path, dtype)
    assert {p.dtype for p in model.parameters()} == {dtype, F32}
    twin, inputs = copy.deepcopy(model), inputs(drawn(dtype))
    assert same(run(guard(model, mode=mode), **inputs), run(twin, **inputs)) > 0
    assert dtypeguard.casts() == []


@pytest.mark.parametrize("name", ["Whisper, LayerNorms", "Swin, position bias"])
@torch.no_grad()
def test_a_wrong_input_of_a_mixed_model_meets_the_layer_that_takes_it(name, tmp_path):
    load, dtype, make = MIXED[name]
    model = load(tmp_path, dtype)
    twin, inputs = copy.deepcopy(model), make(drawn(dtype))
    (argument,) = {"pixel_values", "input_features"} & set(inputs)
    wrong = inputs | {argument: inputs[argument].double()}
    with pytest.raises(DtypeError, match="argument `input` is float64") as caught:
        guard(model, mode="strict")(**wrong)
    assert "conv1" in str(caught.value) or "projection" in str(caught.value)
    with pytest.warns(CastWarning):
        repaired = run(guard(model, mode="lenient"), **wrong)
    assert same(repaired, run(twin, **inputs))


@pytest.mark.parametrize("name", ["CLIP, logit_scale", "SigLIP, logit_scale", "BLIP-2, Q-Former", "ViT, LayerNorms"])
@torch.no_grad()
def test_a_mixed_model_that_casts_its_pictures_itself_is_left_to_it(name, tmp_path):
    load, dtype, make = MIXED[name]
    model = load(tmp_path, dtype)
    twin, inputs = copy.deepcopy(model), make(drawn(dtype))
    inputs["pixel_values"] = inputs["pixel_values"].float()
    assert same(run(guard(model, mode="strict"), **inputs), run(twin, **inputs))


# ---------------------------------------------------------------- models of one's own


class Words(hf.PreTrainedModel):
    """A model for the library's machinery, with contracts in its signature."""

    config_class = hf.BertConfig
    base_model_prefix = "table"
    _tied_weights_keys = {"head.weight": "table.weight"}  # noqa: RUF012  (transformers reads it from the class)

    def __init__(self, config):
        super().__init__(config)
        self.table = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.table

    def get_output_embeddings(self):
        return self.head

    def forward(
        self,
        input_ids: Int64[Tensor, "batch time"] | None = None,
        weights: Float[Tensor, "batch time"] | None = None,
        labels: Int64[Tensor, "batch time"] | None = None,
    ):
        x = self.table(input_ids)
        logits = self.head(x if weights is None else x * weights[..., None])
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return MaskedLMOutput(loss=loss, logits=logits)


class EnforcedWords(Words):
    forward = enforce(Words.forward)


class GuardedWords(dtypeguard.GuardedModule, Words):
    pass


@pytest.mark.thin(3)
@pytest.mark.parametrize("kind", [EnforcedWords, GuardedWords])
@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=NAMES.get)
def test_an_annotated_model_is_saved_loaded_tied_and_trained(kind, guarded, dtype, tmp_path):
    model = kind(hf.BertConfig(**TEXT))
    if guarded:
        guard(model, mode="strict")
    assert model.head.weight is model.table.weight
    model.save_pretrained(tmp_path / "model")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["architectures"] == [kind.__name__]
    loaded = kind.from_pretrained(tmp_path / "model", dtype=dtype)
    assert loaded.head.weight is loaded.table.weight
    dtypeguard.set_mode("strict")
    inputs = {"input_ids": ids(2, 7), "weights": drawn(dtype)(2, 7)}
    assert loaded(**inputs).logits.dtype is dtype
    with pytest.raises(DtypeError) as caught:
        loaded(ids(2, 7), drawn(F64)(2, 7))
    assert (caught.value.argument, caught.value.expected) == ("weights", dtype)
    with pytest.raises(dtypeguard.ShapeError):
        loaded(**inputs | {"input_ids": ids(2, 6)})
    done = trained(loaded, tmp_path / "run", label_names=["labels"])
    assert sum("loss" in row for row in history(done)) == 3
    assert dtypeguard.casts() == []


# ---------------------------------------------------------------- Trainer


class Sentences(torch.utils.data.Dataset):
    """Token ids with labels, and columns that no model takes."""

    def __init__(self, dtype=None):
        self.dtype = dtype

    def __len__(self):
        return 8

    def __getitem__(self, i):
        text = (ids(8, 7)[i] + i) % 61
        row = {"input_ids": text, "attention_mask": torch.ones(7, dtype=torch.int64), "labels": text}
        if self.dtype is not None:
            row["inputs_embeds"] = torch.nn.functional.one_hot(row.pop("input_ids") % 16, 16).to(self.dtype)
        return row | {"text": f"sentence {i}", "score": torch.tensor(0.5, dtype=F64)}


def trainer(model, folder, dataset=None, **options):
    metrics = options.pop("compute_metrics", None)
    arguments = {
        "max_steps": 3,
        "per_device_train_batch_size": 4,
        "learning_rate": 0.01,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "report_to": "none",
        "dataloader_pin_memory": False,
    }
    arguments = hf.TrainingArguments(str(folder), **arguments | options)
    dataset = dataset or Sentences()
    return hf.Trainer(model, arguments, train_dataset=dataset, eval_dataset=dataset, compute_metrics=metrics)


def trained(model, folder, dataset=None, **options):
    made = trainer(model, folder, dataset, **options)  # which seeds the generators
    made.train()
    return made


def history(done):
    """All that was logged but the time it took."""
    timed = ("runtime", "per_second")
    rows = done.state.log_history
    return [{key: value for key, value in row.items() if not key.endswith(timed)} for row in rows]


def right_share(prediction):
    return {"right": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


TRAININGS = {
    "float32": {},
    "a bfloat16 model": {"dtype": BF16},
    "bfloat16 autocast": {"bf16": True},
    "checkpointing": {CHECKPOINTING: True},
    "checkpointing, reentrant, bfloat16": {
        "bf16": True,
        CHECKPOINTING: True,
        f"{CHECKPOINTING}_kwargs": {"use_reentrant": True},
    },
    "label smoothing": {"label_smoothing_factor": 0.1},
    "accumulation": {"gradient_accumulation_steps": 2},
    "noise": {"neftune_noise_alpha": 5.0},
    "evaluation": {"bf16": True, "eval_strategy": "steps", "eval_steps": 1, "compute_metrics": right_share},
    "the best of them": {
        "save_strategy": "steps",
        "save_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "load_best_model_at_end": True,
        "learning_rate": 10.0,
    },
}


@pytest.mark.parametrize("depth", ["auto", pytest.param("all", marks=slow)])
@pytest.mark.parametrize(
    "how",
    [pytest.param(how, marks=[slow] * (how not in ("a bfloat16 model", "bfloat16 autocast"))) for how in TRAININGS],
)
def test_trainer_trains_as_before(how, depth, tmp_path):
    options = dict(TRAININGS[how])
    model, twin, _ = built("Llama", options.pop("dtype", F32))
    guard(model, depth=depth, mode="strict")
    mine, other = (trained(each, tmp_path / str(i), **options) for i, each in enumerate((model, twin)))
    assert history(mine) == history(other)
    assert sum("loss" in row for row in history(mine)) == 3
    assert same(dict(mine.model.state_dict()), dict(other.model.state_dict())) > 5
    assert mine.state.best_metric == other.state.best_metric
    predictions = [torch.from_numpy(each.predict(Sentences()).predictions) for each in (mine, other)]
    assert same(*predictions)
    assert is_guarded(mine.model)
    assert dtypeguard.casts() == []


def test_trainer_drops_the_columns_that_the_model_does_not_take_and_no_others(tmp_path):
    model, twin, _ = built("Llama")
    seen = []
    guard(model, mode="strict")
    for i, each in enumerate((model, twin)):
        seen.append(set())
        each.register_forward_pre_hook(lambda m, args, kwargs: seen[-1].update(kwargs), with_kwargs=True)
        trained(each, tmp_path / str(i))
    assert seen[0] == seen[1]
    assert {"input_ids", "attention_mask", "labels"} <= seen[0]
    assert not {"text", "score"} & seen[0]


def test_trainer_names_and_repairs_a_wrong_column(tmp_path):
    model, twin, _ = built("Llama")
    with pytest.raises(DtypeError, match="argument `inputs_embeds` is float64"):
        trainer(guard(model, mode="strict"), tmp_path, Sentences(F64)).train()
    mine = trainer(guard(model, mode="lenient"), tmp_path / "0", Sentences(F64))
    with pytest.warns(CastWarning, match="`inputs_embeds` was cast from float64 to float32") as told:
        mine.train()
    assert len(told) == 1
    assert sum(record.count for record in dtypeguard.casts()) == 3
    other = trained(twin, tmp_path / "1", Sentences(F32))
    assert history(mine) == history(other)
    assert same(dict(mine.model.state_dict()), dict(other.model.state_dict()))


@slow
def test_a_training_can_be_resumed(tmp_path):
    model, twin, _ = built("Llama")
    fresh, options = copy.deepcopy(model), {"save_strategy": "steps", "save_steps": 2, "max_steps": 4, "bf16": True}
    whole = trained(twin, tmp_path / "whole", **options)
    guard(model, depth="all", mode="strict")
    trained(model, tmp_path / "parts", **options)
    assert files_below(tmp_path / "parts") == files_below(tmp_path / "whole")
    again = trainer(guard(fresh, depth="all", mode="strict"), tmp_path / "parts", **options)
    again.train(resume_from_checkpoint=str(tmp_path / "parts" / "checkpoint-2"))
    assert same(dict(again.model.state_dict()), dict(whole.model.state_dict()))
    assert is_guarded(again.model)


def files_below(folder):
    """The weights and configs of all checkpoints."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".safetensors", ".json") and path.name != "trainer_state.json"
    }


def test_a_model_output_that_the_body_changes_keeps_what_it_has():
    """It takes new items and attributes, and refuses `update`, `pop` and `del`."""

    class Head(torch.nn.Linear):
        def forward(self, given):
            given["loss"] = super().forward(given["logits"]).sum()

    own = MaskedLMOutput(logits=torch.ones(2, 3, dtype=F64), attentions=(torch.ones(1, dtype=F64),))
    logits, attentions = own.logits, own.attentions
    with pytest.warns(CastWarning), pytest.warns(InplaceOnCastWarning, match="was changed in the same way"):
        guard(Head(3, 1))(own)
    assert own.logits is own["logits"] is logits
    assert own.attentions is own["attentions"] is attentions
    assert own.loss is own["loss"]
    assert own.loss.dtype is F32
