"""Hugging Face models under a guard: the same results, caches, token ids, files and losses as without one."""

import contextlib
import copy
import inspect
import json
import pickle
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
from torch import Tensor
from transformers.modeling_outputs import MaskedLMOutput
from versions import need

import dtypeguard
from dtypeguard import CastError, CastWarning, DtypeError, InplaceOnCastWarning, enforce, guard, is_guarded, unguard

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
NAMES = {F16: "float16", BF16: "bfloat16", F32: "float32", F64: "float64"}
QUICK = ("GPT-2", "Llama", "Llama, no head", "BERT", "T5", "Whisper", "Wav2Vec2", "ViT", "CLIP", "Mamba")


def table(*names):
    """Cases by name; what stands for many others is quick, the rest are slow in sum."""
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


EVERY = pytest.mark.parametrize("name", table(*ARCHITECTURES))
HALF = pytest.mark.parametrize("name", [name for name, a in ARCHITECTURES.items() if a.half])
TAUGHT = pytest.mark.parametrize("name", table(*(name for name, a in ARCHITECTURES.items() if a.labels)))
slow = pytest.mark.slow
FLOATING = pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=() if name in QUICK else slow, id=f"{name}-{NAMES[dtype]}")
        for name, a in ARCHITECTURES.items()
        for dtype in (F32, BF16)
        if a.floating and (a.half or dtype is F32)
    ],
)
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


# ---------------------------------------------------------------- nothing changes


@EVERY
@torch.no_grad()
def test_a_guarded_model_returns_what_it_returned(name):
    model, twin, inputs = built(name)
    assert agree(guard(model, mode="strict"), twin, inputs)
    assert dtypeguard.casts() == []


@slow
@EVERY
@torch.no_grad()
def test_so_does_one_that_is_guarded_everywhere(name):
    model, twin, inputs = built(name)
    assert agree(guard(model, depth="all", mode="strict"), twin, inputs)
    assert dtypeguard.casts() == []


@slow
@HALF
@torch.no_grad()
def test_so_does_one_in_bfloat16(name):
    model, twin, inputs = built(name, BF16)
    assert agree(guard(model, mode="strict"), twin, inputs)
    assert dtypeguard.casts() == []


@slow
@pytest.mark.parametrize("name", [name for name, a in ARCHITECTURES.items() if a.half and name not in BORN_INSIDE])
@torch.no_grad()
def test_so_does_one_in_bfloat16_that_is_guarded_everywhere(name):
    model, twin, inputs = built(name, BF16)
    assert agree(guard(model, depth="all", mode="strict"), twin, inputs)
    assert dtypeguard.casts() == []


@slow
@EVERY
@depths
@torch.no_grad()
def test_so_does_one_under_autocast(name, depth):
    model, twin, inputs = built(name)
    guard(model, depth=depth, mode="strict")
    with torch.autocast("cpu", dtype=BF16):
        assert same(run(model, **inputs), run(twin, **inputs))
    assert dtypeguard.casts() == []


@pytest.mark.thin(4)
@EVERY
@depths
def test_a_guarded_model_looks_as_it_looked(name, depth):
    model, twin, _ = built(name)
    stored = {key: value.data_ptr() for key, value in model.state_dict().items()}
    guard(model, depth=depth)
    assert {key: value.data_ptr() for key, value in model.state_dict().items()} == stored
    assert list(stored) == list(twin.state_dict())
    assert isinstance(model, type(twin))
    assert repr(model) == repr(twin)
    for mine, other in zip(model.modules(), twin.modules(), strict=True):
        assert type(mine).__name__ == type(other).__name__
        assert inspect.signature(mine.forward) == inspect.signature(other.forward)
        assert inspect.signature(type(mine).forward) == inspect.signature(type(other).forward)
    assert model.config.to_dict() == twin.config.to_dict()
    assert (model.dtype, model.device, model.can_generate()) == (twin.dtype, twin.device, twin.can_generate())
    assert model.num_parameters() == twin.num_parameters()


@EVERY
def test_nothing_on_the_forward_leads_around_the_guard(name):
    model, _, _ = built(name)
    guard(model, depth="all")
    assert all(inspect.unwrap(module.forward) == module.forward for module in model.modules() if is_guarded(module))


@pytest.mark.thin(4)
@TAUGHT
@depths
def test_a_guarded_model_learns_what_it_learned(name, depth):
    model, twin, inputs = built(name)
    inputs |= ARCHITECTURES[name].labels()
    assert same(learned(guard(model, depth=depth, mode="strict"), **inputs), learned(twin, **inputs)) > 1
    assert dtypeguard.casts() == []


@slow
@TAUGHT
def test_so_it_does_in_bfloat16(name):
    model, twin, inputs = built(name, BF16)
    inputs |= ARCHITECTURES[name].labels()
    assert same(learned(guard(model, mode="strict"), **inputs), learned(twin, **inputs)) > 1
    assert dtypeguard.casts() == []


@pytest.mark.parametrize("name", [name for name, case in BORN_INSIDE.items() if case])
def test_what_a_model_keeps_in_float32_inside_is_named_at_depth_all_only(name):
    argument, pattern = BORN_INSIDE[name]
    model, twin, inputs = built(name, BF16)
    with pytest.raises(DtypeError, match="is float32, the module's parameters are bfloat16") as caught:
        guard(model, depth="all", mode="strict")(**inputs)
    assert caught.value.argument == argument
    guard(model, depth="all", mode="strict", skip_modules=[pattern])
    assert same(run(model, **inputs), run(twin, **inputs))


def test_arguments_are_passed_on_by_position_too():
    model, twin, _ = built("GPT-2")
    guard(model, mode="strict")
    given = (ids(2, 7), None, padded(2, 7))
    assert same(run(lambda: model(*given)), run(lambda: twin(*given)))


def test_arguments_that_nobody_gave_are_not_passed_on():
    """`LlamaModel.forward` is decorated by what fills `use_cache` in from the config."""
    model, twin, inputs = built("Llama, no head")
    model.config.use_cache = twin.config.use_cache = False
    assert run(guard(model, mode="strict"), **inputs).past_key_values is None
    assert same(run(model, **inputs), run(twin, **inputs)) == 1
    assert same(run(model, **inputs, use_cache=True), run(twin, **inputs, use_cache=True)) > 1


# ---------------------------------------------------------------- what is wrong


@FLOATING
@torch.no_grad()
def test_a_wrong_input_is_named(name, dtype):
    model, _, inputs = built(name, dtype)
    argument = ARCHITECTURES[name].floating
    inputs[argument] = inputs[argument].double()
    with pytest.raises(DtypeError, match=f"argument `{argument}` is float64") as caught:
        guard(model, mode="strict")(**inputs)
    error = caught.value
    assert (error.argument, error.actual, error.expected) == (argument, F64, dtype)
    assert type(model).__name__ in str(error)
    assert "also" not in str(error)


@FLOATING
@torch.no_grad()
def test_a_wrong_input_is_repaired(name, dtype):
    model, twin, inputs = built(name, dtype)
    argument = ARCHITECTURES[name].floating
    wrong = inputs | {argument: inputs[argument].double()}
    guard(model, mode="lenient")
    with pytest.warns(CastWarning, match=f"`{argument}` was cast from float64 to {NAMES[dtype]}") as told:
        repaired = run(model, **wrong)
    assert same(repaired, run(twin, **inputs))
    assert len(told) == 1
    (record,) = dtypeguard.casts()
    assert (record.argument, record.from_dtype, record.to_dtype, record.count) == (argument, F64, dtype, 1)
    run(model, **wrong)
    assert dtypeguard.casts()[0].count == 2


def test_every_wrong_input_is_named():
    model, _, inputs = built("Decision Transformer")
    wrong = {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}
    with pytest.raises(DtypeError) as caught:
        guard(model, mode="strict")(**wrong)
    for argument in ("states", "actions", "rewards", "returns_to_go"):
        assert f"argument `{argument}` is float64" in str(caught.value)


def test_a_wrong_input_by_position_has_its_name():
    model, _, inputs = built("ViT")
    with pytest.raises(DtypeError) as caught:
        guard(model, mode="strict")(inputs["pixel_values"].double())
    assert caught.value.argument == "pixel_values"


@pytest.mark.parametrize("name", ["BERT, no head", "ViT, no head", "Whisper, no head"])
def test_a_wrong_input_by_position_of_a_decorated_forward_has_its_name(name):
    model, _, inputs = built(name)
    argument = ARCHITECTURES[name].floating
    names = list(inspect.signature(model.forward).parameters)
    given = [inputs.get(each) for each in names[: names.index(argument) + 1]]
    given[-1] = given[-1].double()
    with pytest.raises(DtypeError) as caught:
        guard(model, mode="strict")(*given)
    assert caught.value.argument == argument


def test_an_argument_can_be_skipped_by_its_name():
    for name in ("BERT", "BERT, no head"):
        model, _, inputs = built(name)
        guard(model, mode="strict", skip_args=["inputs_embeds"])
        with pytest.raises(RuntimeError, match="dtype") as caught:
            model(**inputs | {"inputs_embeds": inputs["inputs_embeds"].double()})
        assert not isinstance(caught.value, dtypeguard.DtypeGuardError)


def test_a_float_mask_that_is_infinite_in_half_is_refused_rather_than_cast():
    model = hf.BertModel(hf.BertConfig(**TEXT)).eval().half()
    mask = torch.zeros(2, 1, 7, 7)
    mask[..., -1] = torch.finfo(F32).min
    with pytest.raises(CastError, match="become infinite"):
        guard(model, mode="lenient")(ids(2, 7), attention_mask=mask)


def test_a_wrong_input_in_training_gets_its_gradient_in_its_own_dtype():
    model, twin, inputs = built("BERT")
    wrong = inputs["inputs_embeds"].double().requires_grad_()
    right = inputs["inputs_embeds"].clone().requires_grad_()
    with pytest.warns(CastWarning):
        run(guard(model, mode="lenient"), **inputs | {"inputs_embeds": wrong}).logits.sum().backward()
    run(twin, **inputs | {"inputs_embeds": right}).logits.sum().backward()
    assert wrong.grad.dtype is F64
    assert torch.equal(wrong.grad, right.grad.double())


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
@pytest.mark.parametrize("mask", [torch.int64, torch.int32, torch.bool], ids=["int64", "int32", "bool"])
@depths
def test_token_ids_and_masks_arrive_as_the_same_objects(dtype, mask, depth):
    model, twin, _ = built("Llama", BF16)
    inputs = {"input_ids": ids(2, 7).to(dtype), "attention_mask": padded(2, 7).to(mask)}
    inputs["position_ids"] = torch.arange(7).expand(2, 7)
    seen = arrivals(guard(model, depth=depth, mode="strict"), **inputs)
    assert all(seen[name] is inputs[name] for name in inputs)
    assert same(run(model, **inputs), run(twin, **inputs))


def test_a_float_mask_in_the_dtype_of_the_model_arrives_too():
    model, twin, _ = built("Llama", BF16)
    mask = torch.zeros(2, 1, 7, 7, dtype=BF16)
    inputs = {"input_ids": ids(2, 7), "attention_mask": mask}
    assert arrivals(guard(model, mode="strict"), **inputs)["attention_mask"] is mask
    assert same(run(model, **inputs), run(twin, **inputs))


@pytest.mark.parametrize("name", table("GPT-2", "Llama", "Mistral", "Gemma2", "Mamba", "Mamba2", "Bamba"))
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


def test_a_cache_arrives_as_the_same_object():
    model, _, _ = built("Llama")
    cache = hf.DynamicCache(config=model.config)
    assert arrivals(guard(model, mode="strict"), input_ids=ids(2, 5), past_key_values=cache)["past_key_values"] is cache
    assert cache.get_seq_length() == 5


@pytest.mark.parametrize("name", ["T5", "BART", "Whisper"])
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
def test_encoder_outputs_can_be_passed_back():
    model, twin, inputs = built("T5", BF16)
    guard(model, mode="strict")
    outputs = [each.get_encoder()(inputs["input_ids"]) for each in (model, twin)]
    rest = {"decoder_input_ids": ids(2, 5)}
    assert same(run(model, encoder_outputs=outputs[0], **rest), run(twin, encoder_outputs=outputs[1], **rest))
    outputs[0].last_hidden_state = outputs[0].last_hidden_state.float()
    with pytest.raises(DtypeError) as caught:
        model(encoder_outputs=outputs[0], **rest)
    assert caught.value.argument == "encoder_outputs.last_hidden_state"


@torch.no_grad()
def test_encoder_outputs_in_another_dtype_are_repaired_and_stay_as_they_were():
    model, twin, inputs = built("T5", BF16)
    right = twin.get_encoder()(inputs["input_ids"])
    wrong = copy.deepcopy(right)
    wrong.last_hidden_state = held = right.last_hidden_state.float()
    rest = {"decoder_input_ids": ids(2, 5)}
    with pytest.warns(CastWarning, match=r"encoder_outputs\.last_hidden_state"):
        repaired = run(guard(model, mode="lenient"), encoder_outputs=wrong, **rest)
    expected = run(twin, encoder_outputs=right, **rest)
    assert same(repaired.logits, expected.logits)
    assert wrong.last_hidden_state is held
    assert wrong["last_hidden_state"] is held


@pytest.mark.parametrize("dtype", [F32, BF16], ids=NAMES.get)
@torch.no_grad()
def test_a_static_cache_is_filled_as_before(dtype):
    model, twin, _ = built("Llama", dtype)
    guard(model, mode="strict")
    results = []
    for each in (model, twin):
        cache = hf.StaticCache(config=each.config, max_cache_len=16)
        for part in (ids(2, 5), ids(2, 1)):
            out = run(each, input_ids=part, past_key_values=cache, use_cache=True)
        assert out.past_key_values is cache
        results.append(out)
    assert same(*results) > 4


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


@torch.no_grad()
def test_a_guarded_assistant_helps_a_guarded_model():
    model, twin, _ = built("Llama")
    helper = guard(copy.deepcopy(model), mode="strict")
    options = {"input_ids": ids(1, 5)}
    expected = generated(twin, **options)
    out = generated(guard(model, mode="strict"), **options, assistant_model=helper)
    assert torch.equal(out.sequences, expected.sequences)


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


@torch.no_grad()
def test_a_streamer_sees_the_same_tokens():
    class Streamer:
        def __init__(self):
            self.seen = []

        def put(self, value):
            self.seen.append(value.clone())

        def end(self):
            pass

    model, twin, _ = built("Llama")
    mine, other = Streamer(), Streamer()
    guard(model, mode="strict").generate(ids(1, 4), max_new_tokens=5, streamer=mine)
    twin.generate(ids(1, 4), max_new_tokens=5, streamer=other)
    assert same(mine.seen, other.seen) == 6


# ---------------------------------------------------------------- files


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.thin(4)
@pytest.mark.parametrize("name", table("GPT-2", "T5", "ViT", "CLIP", "LLaVA", "Wav2Vec2", "Llama", "Llama, no head"))
@depths
def test_save_pretrained_writes_the_same_files(name, depth, tmp_path):
    model, twin, inputs = built(name)
    guard(model, depth=depth, mode="strict").save_pretrained(tmp_path / "guarded")
    twin.save_pretrained(tmp_path / "plain")
    written = files(tmp_path / "guarded")
    assert written == files(tmp_path / "plain")
    assert "model.safetensors" in written
    assert json.loads(written["config.json"])["architectures"] == [type(twin).__name__]
    assert model.config.architectures == [type(twin).__name__]
    assert is_guarded(model)
    loaded = type(twin).from_pretrained(tmp_path / "guarded", attn_implementation="eager" if name != "Mamba" else None)
    assert not is_guarded(loaded)
    assert same(run(loaded.eval(), **inputs), run(twin, **inputs))


def test_auto_classes_load_what_a_guarded_model_saved(tmp_path):
    model, _, _ = built("Llama")
    guard(model, depth="all").save_pretrained(tmp_path)
    loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is hf.LlamaForCausalLM
    assert same(dict(loaded.state_dict()), dict(model.state_dict()))
    assert type(hf.AutoModel.from_pretrained(tmp_path)) is hf.LlamaModel


def test_shards_are_the_same(tmp_path):
    model, twin, _ = built("Llama")
    guard(model, depth="all").save_pretrained(tmp_path / "guarded", max_shard_size="10KB")
    twin.save_pretrained(tmp_path / "plain", max_shard_size="10KB")
    assert files(tmp_path / "guarded") == files(tmp_path / "plain")
    assert len(files(tmp_path / "plain")) > 3


@torch.no_grad()
def test_a_model_loaded_in_bfloat16_is_guarded_in_bfloat16(tmp_path):
    model, _, inputs = built("ViT")
    model.save_pretrained(tmp_path)
    loaded = hf.ViTForImageClassification.from_pretrained(tmp_path, dtype=BF16)
    twin = copy.deepcopy(loaded)
    with pytest.raises(DtypeError, match="`pixel_values` is float32"):
        guard(loaded, mode="strict")(**inputs)
    with pytest.warns(CastWarning):
        repaired = guard(loaded, mode="lenient")(**inputs)
    assert same(repaired, twin(inputs["pixel_values"].to(BF16)))


@torch.no_grad()
def test_the_class_of_a_guarded_model_loads_a_model_that_works(tmp_path):
    model, twin, inputs = built("Llama")
    guard(model, mode="strict").save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert isinstance(loaded, hf.LlamaForCausalLM)
    assert same(run(loaded, **inputs), run(twin, **inputs))
    assert same(run(guard(loaded, mode="strict"), **inputs), run(twin, **inputs))
    loaded.save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]


@torch.no_grad()
def test_a_config_makes_a_new_model_of_the_class_of_a_guarded_one():
    model, twin, inputs = built("Llama")
    fresh = guard(model, mode="strict").__class__(model.config).eval()
    fresh.load_state_dict(model.state_dict())
    fresh.set_attn_implementation("eager")
    assert same(run(fresh, **inputs), run(twin, **inputs))
    made = type(model)._from_config(model.config, dtype=BF16)
    assert made.dtype is BF16


@depths
@torch.no_grad()
def test_pickles_and_copies_are_guarded_and_compute_the_same(depth):
    model, twin, inputs = built("BERT")
    guard(model, depth=depth, mode="strict")
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert is_guarded(other)
        assert same(run(other, **inputs), run(twin, **inputs))
        with pytest.raises(DtypeError):
            other(**inputs | {"inputs_embeds": inputs["inputs_embeds"].double()})


# ---------------------------------------------------------------- what people do to models


def tied(model):
    return model.get_output_embeddings().weight is model.get_input_embeddings().weight


@pytest.mark.parametrize("name", ["GPT-2", "T5", "BART", "BERT"])
@depths
def test_a_tied_weight_stays_tied(name, depth, tmp_path):
    model, twin, _ = built(name)
    assert tied(twin)
    guard(model, depth=depth, mode="strict")
    assert tied(model)
    assert tied(copy.deepcopy(model))
    model.tie_weights()
    assert tied(model.to(BF16))
    model.save_pretrained(tmp_path)
    assert tied(type(twin).from_pretrained(tmp_path))


@pytest.mark.parametrize("name", ["GPT-2", "T5", "Llama"])
@depths
def test_resized_embeddings_work_as_before(name, depth):
    model, twin, inputs = built(name)
    guard(model, depth=depth, mode="strict")
    inputs["labels"] = inputs.get("decoder_input_ids", inputs["input_ids"])
    for each in (model, twin):
        torch.manual_seed(5)
        each.resize_token_embeddings(70, mean_resizing=False)
    assert tied(model) == tied(twin)
    assert model.config.vocab_size == 70
    assert same(learned(model, **inputs), learned(twin, **inputs))
    assert same(dict(model.state_dict()), dict(twin.state_dict()))


NEW = hasattr(hf.PreTrainedModel, "activation_checkpointing_enable")
CHECKPOINTING = "activation_checkpointing" if NEW else "gradient_checkpointing"


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("name", ["Llama", pytest.param("T5", marks=slow), "ViT"])
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


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["GPT-2", "Llama", "BERT", "T5", "ViT", "Whisper"])
@torch.no_grad()
def test_attention_implementations_can_be_switched_under_a_guard(name, attention):
    model, twin, inputs = built(name, BF16)
    guard(model, depth="all", mode="strict")
    for each in (model, twin):
        each.set_attn_implementation(attention)
    assert model.config._attn_implementation == attention
    assert same(run(model, **inputs), run(twin, **inputs))


@depths
@torch.no_grad()
def test_a_model_that_is_cast_after_the_guard_asks_for_its_new_dtype(depth):
    model, twin, _ = built("ViT")
    guard(model, depth=depth, mode="strict")
    for cast, dtype in (("half", F16), ("bfloat16", BF16), ("double", F64), ("float", F32)):
        assert getattr(model, cast)() is model
        getattr(twin, cast)()
        inputs = pictures(drawn(dtype))
        assert same(run(model, **inputs), run(twin, **inputs))
        with pytest.raises(DtypeError) as caught:
            model(inputs["pixel_values"].to(F64 if dtype is not F64 else F32))
        assert caught.value.expected is dtype
    assert dtypeguard.casts() == []


@depths
def test_embeddings_and_heads_can_be_replaced(depth):
    model, twin, inputs = built("Llama")
    guard(model, depth=depth, mode="strict")
    for each in (model, twin):
        torch.manual_seed(5)
        each.set_input_embeddings(torch.nn.Embedding(61, 16))
        each.set_output_embeddings(torch.nn.Linear(16, 61))
    assert same(run(model, **inputs), run(twin, **inputs))


def test_a_guard_comes_off_completely():
    model, twin, inputs = built("Llama")
    unguard(guard(model, depth="all", mode="strict"))
    assert [type(module) for module in model.modules()] == [type(module) for module in twin.modules()]
    assert [vars(module).keys() for module in model.modules()] == [vars(module).keys() for module in twin.modules()]
    assert same(run(model, **inputs), run(twin, **inputs))


@torch.no_grad()
def test_feature_methods_work_as_before():
    model, twin, inputs = built("CLIP", BF16)
    guard(model, depth="all", mode="strict")
    pixels = {"pixel_values": inputs.pop("pixel_values")}
    assert same(model.get_image_features(**pixels), twin.get_image_features(**pixels))
    assert same(model.get_text_features(**inputs), twin.get_text_features(**inputs))
    with pytest.raises(DtypeError, match="is float32"):
        model.get_image_features(pixels["pixel_values"].float())


@torch.no_grad()
def test_backbones_work_as_before():
    config = hf.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, patch_size=4, out_features=["stage1"])
    model = hf.ConvNextBackbone(config).eval().to(BF16)
    twin, inputs = copy.deepcopy(model), pictures(drawn(BF16))
    guard(model, depth="all", mode="strict")
    assert same(run(model, **inputs), run(twin, **inputs))
    assert same(model.forward_with_filtered_kwargs(**inputs, colour=1), twin.forward_with_filtered_kwargs(**inputs))
    with pytest.raises(DtypeError, match="`pixel_values`"):
        model(inputs["pixel_values"].float())


def words():
    """A tokenizer of 60 words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    model = models.WordLevel({f"w{i}": i for i in range(60)} | {"?": 60}, unk_token="?")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="w0", unk_token="?", padding_side="left")


@pytest.mark.parametrize(
    ("task", "name", "options"),
    [
        ("text-generation", "Llama", {"max_new_tokens": 4, "do_sample": False}),
        ("text-classification", "RoBERTa", {"top_k": None}),
        ("feature-extraction", "Llama, no head", {}),
    ],
)
def test_a_pipeline_says_the_same(task, name, options):
    model, twin, _ = built(name)
    guard(model, depth="all", mode="strict")
    mine, other = (hf.pipeline(task, model=each, tokenizer=words()) for each in (model, twin))
    assert mine(["w5 w6 w7", "w8"], **options) == other(["w5 w6 w7", "w8"], **options)
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
@pytest.mark.parametrize("guarded", [pytest.param(False, marks=slow), True])
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


QUICK_TRAININGS = ("float32", "a bfloat16 model", "bfloat16 autocast", "checkpointing")
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
    "whole batches": {"auto_find_batch_size": True},
    "SGD": {"optim": "sgd"},
}


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    ("how", "name", "depth"),
    [
        pytest.param(how, name, depth, marks=() if quick and name == "Llama" and depth == "auto" else slow)
        for how, quick in ((how, how in QUICK_TRAININGS) for how in TRAININGS)
        for name in ("Llama", "GPT-2", "BERT")
        for depth in ("auto", "all")
    ],
)
def test_trainer_trains_as_before(name, how, depth, tmp_path):
    options = dict(TRAININGS[how])
    model, twin, _ = built(name, options.pop("dtype", F32))
    guard(model, depth=depth, mode="strict")
    mine, other = (trained(each, tmp_path / str(i), **options) for i, each in enumerate((model, twin)))
    assert history(mine) == history(other)
    assert sum("loss" in row for row in history(mine)) == 3
    assert same(dict(mine.model.state_dict()), dict(other.model.state_dict())) > 5
    assert is_guarded(mine.model)
    assert dtypeguard.casts() == []


@pytest.mark.thin(4)
@pytest.mark.parametrize("depth", ["auto", "all"])
@pytest.mark.parametrize("bf16", [False, True])
def test_trainer_evaluates_and_predicts_as_before(bf16, depth, tmp_path):
    model, twin, _ = built("Llama")
    guard(model, depth=depth, mode="strict")
    options = {"bf16": bf16, "eval_strategy": "steps", "eval_steps": 1, "compute_metrics": right_share}
    mine, other = (trained(each, tmp_path / str(i), **options) for i, each in enumerate((model, twin)))
    assert history(mine) == history(other)
    assert sum("eval_right" in row for row in history(mine)) == 3
    a, b = mine.predict(Sentences()), other.predict(Sentences())
    assert same(torch.from_numpy(a.predictions), torch.from_numpy(b.predictions))
    assert a.predictions.dtype == "float32"
    assert a.metrics["test_right"] == b.metrics["test_right"]


@pytest.mark.parametrize("bf16_full_eval", [True, False])
def test_a_full_evaluation_in_bfloat16_is_as_before(bf16_full_eval, tmp_path):
    model, twin, _ = built("Llama")
    guard(model, mode="strict")
    mine, other = (
        trainer(each, tmp_path / str(i), bf16_full_eval=bf16_full_eval) for i, each in enumerate((model, twin))
    )
    assert mine.evaluate()["eval_loss"] == other.evaluate()["eval_loss"]
    assert model.dtype is twin.dtype is (BF16 if bf16_full_eval else F32)


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


@pytest.mark.thin(2)
@pytest.mark.parametrize("bf16", [False, True])
def test_trainer_repairs_a_wrong_column_and_says_so_once(bf16, tmp_path):
    model, twin, _ = built("Llama")
    guard(model, mode="lenient")
    mine = trainer(model, tmp_path / "0", Sentences(F64), bf16=bf16)
    with pytest.warns(CastWarning, match="`inputs_embeds` was cast from float64 to float32") as told:
        mine.train()
    assert len(told) == 1
    assert sum(record.count for record in dtypeguard.casts()) == 3
    other = trained(twin, tmp_path / "1", Sentences(F32), bf16=bf16)
    assert history(mine) == history(other)
    assert same(dict(mine.model.state_dict()), dict(other.model.state_dict()))


def test_trainer_names_a_wrong_column(tmp_path):
    model, _, _ = built("Llama")
    with pytest.raises(DtypeError, match="argument `inputs_embeds` is float64"):
        trainer(guard(model, mode="strict"), tmp_path, Sentences(F64)).train()


@slow
@pytest.mark.parametrize("bf16", [False, True])
@depths
def test_a_training_can_be_resumed(bf16, depth, tmp_path):
    model, twin, _ = built("Llama")
    fresh, options = copy.deepcopy(model), {"save_strategy": "steps", "save_steps": 2, "max_steps": 4, "bf16": bf16}
    whole = trained(twin, tmp_path / "whole", **options)
    guard(model, depth=depth, mode="strict")
    trained(model, tmp_path / "parts", **options)
    assert files_below(tmp_path / "parts") == files_below(tmp_path / "whole")
    again = trainer(guard(fresh, depth=depth, mode="strict"), tmp_path / "parts", **options)
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


@slow
def test_the_best_model_is_loaded_into_the_guarded_one(tmp_path):
    model, twin, _ = built("Llama")
    guard(model, depth="all", mode="strict")
    options = {
        "save_strategy": "steps",
        "save_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "load_best_model_at_end": True,
        "learning_rate": 10.0,
    }
    mine, other = (trained(each, tmp_path / str(i), **options) for i, each in enumerate((model, twin)))
    assert mine.state.best_metric == other.state.best_metric
    assert same(dict(mine.model.state_dict()), dict(other.model.state_dict()))
    mine.save_model(tmp_path / "a"), other.save_model(tmp_path / "b")
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()
    assert json.loads((tmp_path / "a" / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]


@slow
def test_a_sequence_to_sequence_trainer_generates_as_before(tmp_path):
    class Pairs(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return {"input_ids": ids(4, 7)[i], "labels": ids(4, 5)[i]}

    model, twin, _ = built("T5")
    guard(model, depth="all", mode="strict")
    results = []
    for i, each in enumerate((model, twin)):
        arguments = hf.Seq2SeqTrainingArguments(
            str(tmp_path / str(i)),
            predict_with_generate=True,
            generation_max_length=6,
            max_steps=2,
            use_cpu=True,
            bf16=True,
            report_to="none",
            disable_tqdm=True,
            save_strategy="no",
            dataloader_pin_memory=False,
        )
        mine = hf.Seq2SeqTrainer(each, arguments, train_dataset=Pairs(), eval_dataset=Pairs())
        mine.train()
        results.append(torch.from_numpy(mine.predict(Pairs()).predictions))
    assert same(*results)


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
