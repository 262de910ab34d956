"""`to_recipe`: each tool loads what is written for it, and finds exactly the modules that are named."""

import copy
import fnmatch
import json
import re
import textwrap
import warnings

import pytest
import torch
from support import BF16
from torch import nn
from versions import since

from dtypeguard._tools.compare.recipes import recipe

FORMATS = ("fp8", "fp8:row", "fp8:block", "mxfp8", "mxfp6", "mxfp6:e3m2", "mxfp4", "nvfp4", "int8", "int4", "int4:64")
TOOLS = {
    "torchao": (*FORMATS, "mxfp8:rceil"),
    "transformers": FORMATS,
    "transformer_engine": ("fp8", "fp8:block", "mxfp8", "nvfp4", "nvfp4:sr:hadamard"),
    "modelopt": FORMATS,
    "llm-compressor": tuple(name for name in FORMATS if not name.startswith("mxfp6")),
}
CASES = [(tool, spec) for tool, specs in TOOLS.items() for spec in specs]
LOW = ("layers.1.up", "layers.10.up_proj", "head")  # each is a part of another name, or has another as a part
KEPT = ("layers.1.up_proj", "layers.0.up", "layers.10.up", "header")

new = since("torchao", "0.18", "it warns of its own settings")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.up_proj, self.Linear = (nn.Linear(128, 128) for _ in range(3))

    def forward(self, x):
        return self.Linear(self.up_proj(self.up(x)))


class Model(nn.Module):
    """Names that are parts of others, and one that is a class's."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(11))
        self.head, self.header, self.Linear = (nn.Linear(128, 128) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x) + self.header(x) + self.Linear(x)


LINEAR = {name for name, module in Model().named_modules() if isinstance(module, nn.Linear)}


def low(spec):
    return dict.fromkeys(LOW, spec)


# ---------------------------------------------------------------- all tools


@pytest.mark.parametrize(
    ("written", "tool"),
    [
        ("TorchAO", "torchao"), ("torch_ao", "torchao"), ("Transformers", "transformers"), ("ModelOpt", "modelopt"),
        ("transformer-engine", "transformer_engine"), ("TransformerEngine", "transformer_engine"),
        ("LLM_Compressor", "llm-compressor"), ("llmcompressor", "llm-compressor"),
    ],
)  # fmt: skip
def test_a_tool_may_be_written_in_many_ways(written, tool):
    assert recipe(written, low("mxfp8"), KEPT) == recipe(tool, low("mxfp8"), KEPT)


def test_another_tool_is_refused():
    legal = "torchao, transformers, transformer_engine, modelopt, llm-compressor"
    with pytest.raises(ValueError, match=re.escape(f"to_recipe('bitsandbytes'): the tool must be one of {legal}")):
        recipe("bitsandbytes", {}, ())


@pytest.mark.parametrize(
    ("tool", "spec", "takes"),
    [
        ("torchao", "fp8:sr", "fp8, fp8:row, fp8:block, mxfp8, mxfp8:rceil, mxfp6, "),
        ("torchao", "int8:64", "fp8, "),
        ("transformers", "nvfp4:sr", "fp8, "),
        ("transformer_engine", "fp8:row", "fp8, fp8:e5m2, fp8:block, "),
        ("transformer_engine", "int8", "fp8, "),
        ("transformer_engine", "mxfp4", "fp8, "),
        ("modelopt", "nvfp4:hadamard", "fp8, "),
        ("llm-compressor", "mxfp6", "fp8, fp8:row, fp8:block, mxfp8, mxfp4, nvfp4, int8, int4"),
        ("llm-compressor", "fp8:sr", "fp8, "),
    ],
)
def test_a_format_that_a_tool_does_not_know_is_refused(tool, spec, takes):
    told = f"to_recipe({tool!r}): {tool} has no {spec!r}, which 'layers.1.up' gets; it takes {takes}"
    with pytest.raises(ValueError, match=re.escape(told)):
        recipe(tool, low(spec), KEPT)


@pytest.mark.parametrize("wide", ["bf16", "fp16", "tf32"])
@pytest.mark.parametrize("tool", TOOLS)
def test_a_module_in_a_dtype_of_torch_is_left_alone(tool, wide):
    mixed = {**low("mxfp8"), "layers.0.up": wide}
    assert recipe(tool, mixed, KEPT[:1]) == recipe(tool, low("mxfp8"), (*KEPT[:1], "layers.0.up"))


@pytest.mark.parametrize("tool", TOOLS)
def test_a_module_that_has_a_format_is_not_kept(tool):
    with pytest.raises(ValueError, match=r"module 'head' has a format, and is kept"):
        recipe(tool, low("fp8"), ("head",))


@pytest.mark.parametrize(("tool", "spec"), CASES)
def test_a_recipe_is_plain_data(tool, spec):
    made = recipe(tool, low(spec), KEPT)
    if tool == "modelopt":  # whose keys are integers, as its own files have them
        yaml = pytest.importorskip("yaml")
        text = yaml.safe_dump(made)
        assert "&" not in text  # nothing is in there twice
        assert yaml.safe_load(text) == made
    else:
        assert json.loads(json.dumps(made)) == made


@pytest.mark.parametrize("tool", ["torchao", "transformers", "modelopt", "llm-compressor"])
@pytest.mark.parametrize("spec", ["fp8", "fp8:row", "fp8:block", "mxfp8"])
def test_the_element_of_gradients_is_nothing_to_inference(tool, spec):
    assert recipe(tool, low(f"{spec}:e5m2"), KEPT) == recipe(tool, low(spec), KEPT)


# ---------------------------------------------------------------- torchao


def torchao_config(spec):
    """The same by torchao's own classes."""
    from torchao import quantization as q
    from torchao.prototype import mx_formats as mx
    from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode
    from torchao.quantization.quantize_.common import KernelPreference

    alone = {"set_inductor_config": False}
    blocks = [q.PerBlock([1, 128]), q.PerBlock([128, 128])]
    emulated = {"kernel_preference": KernelPreference.EMULATED}

    def both(dtype, scales="FLOOR", **more):
        mode = ScaleCalculationMode[scales]
        config = mx.MXDynamicActivationMXWeightConfig
        return config(activation_dtype=dtype, weight_dtype=dtype, scaling_mode=mode, **more)

    made = {
        "fp8": lambda: q.Float8DynamicActivationFloat8WeightConfig(granularity=q.PerTensor(), **alone),
        "fp8:row": lambda: q.Float8DynamicActivationFloat8WeightConfig(granularity=q.PerRow(), **alone),
        "fp8:block": lambda: q.Float8DynamicActivationFloat8WeightConfig(granularity=blocks, **alone),
        "mxfp8": lambda: both(torch.float8_e4m3fn),
        "mxfp8:rceil": lambda: both(torch.float8_e4m3fn, "RCEIL"),
        "mxfp6": lambda: both("fp6_e2m3", **emulated),
        "mxfp6:e3m2": lambda: both("fp6_e3m2", **emulated),
        "mxfp4": lambda: both(torch.float4_e2m1fn_x2),
        "nvfp4": mx.NVFP4DynamicActivationNVFP4WeightConfig,
        "int8": lambda: q.Int8WeightOnlyConfig(granularity=q.PerRow(), **alone),
        "int4": lambda: q.Int4WeightOnlyConfig(group_size=128, **alone),
        "int4:64": lambda: q.Int4WeightOnlyConfig(group_size=64, **alone),
    }
    return made[spec]()


@pytest.fixture
def any_hardware(monkeypatch):
    """Torchao asks for hardware that multiplies a format before it makes a weight of it, which a CPU can."""
    from torchao.prototype.mx_formats import inference_workflow
    from torchao.quantization import quant_api

    monkeypatch.setattr(quant_api, "_check_hardware_support", lambda granularity: None)
    monkeypatch.setattr(inference_workflow, "is_sm_at_least_100", lambda: True)


def converted(model):
    return {name: type(m.weight.data).__name__ for name, m in model.named_modules() if isinstance(m, nn.Linear)}


@new
@pytest.mark.parametrize("spec", FORMATS)
def test_torchao_loads_the_configs_of_its_own_classes(spec):
    from torchao.core.config import config_from_dict

    config = config_from_dict(recipe("torchao", low(spec), KEPT))
    assert dict(config.fqn_to_config) == dict.fromkeys(LOW, torchao_config(spec)) | dict.fromkeys(KEPT)


@new
@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ("fp8", "Float8Tensor"), ("fp8:row", "Float8Tensor"), ("fp8:block", "Float8Tensor"), ("mxfp8", "MXTensor"),
        ("mxfp6", "MXTensor"), ("mxfp4", "MXTensor"), ("nvfp4", "NVFP4Tensor"), ("int8", "Int8Tensor"),
    ],
)  # fmt: skip
def test_torchao_converts_the_modules_that_are_named(spec, kind, any_hardware):
    from torchao.core.config import config_from_dict
    from torchao.quantization import quantize_

    model = Model().to(BF16)
    quantize_(model, config_from_dict(recipe("torchao", low(spec), KEPT)), filter_fn=None)
    assert converted(model) == dict.fromkeys(LINEAR, "Tensor") | dict.fromkeys(LOW, kind)


@new
@pytest.mark.parametrize(("spec", "error"), [("int8", 0.02), ("mxfp6", 0.2), ("mxfp6:e3m2", 0.3)])
@torch.no_grad()
def test_what_torchao_has_converted_runs(spec, error):
    from torchao.core.config import config_from_dict
    from torchao.quantization import quantize_

    torch.manual_seed(0)
    model, x = Model().to(BF16), torch.randn(32, 128, dtype=BF16)
    before = model(x)
    settings = torch._inductor.config.coordinate_descent_tuning, torch.get_float32_matmul_precision()
    quantize_(model, config_from_dict(recipe("torchao", low(spec), KEPT)), filter_fn=None)
    assert 0 < (model(x) - before).norm() < error * before.norm()
    assert settings == (torch._inductor.config.coordinate_descent_tuning, torch.get_float32_matmul_precision())


@new
def test_torchao_gives_each_module_its_own_format():
    from torchao.core.config import config_from_dict
    from torchao.quantization import quantize_

    model = Model().to(BF16)
    formats = {"layers.1.up": "int8", "head": "mxfp8", "Linear": "mxfp4"}
    quantize_(model, config_from_dict(recipe("torchao", formats, KEPT)), filter_fn=None)
    kinds = {"layers.1.up": "Int8Tensor", "head": "MXTensor", "Linear": "MXTensor"}
    assert converted(model) == dict.fromkeys(LINEAR, "Tensor") | kinds
    assert model.Linear.weight.elem_dtype == torch.float4_e2m1fn_x2


# ---------------------------------------------------------------- transformers


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A checkpoint; of twelve layers, so that some names begin like others."""
    hf = pytest.importorskip("transformers")
    config = hf.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=12, num_attention_heads=2,
        max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("llama")
    hf.LlamaForCausalLM(config).to(BF16).save_pretrained(folder)
    return folder


@new
@pytest.mark.parametrize("form", ["a config", "a dict"])
@pytest.mark.parametrize(
    "names", [("model.layers.1.mlp.up_proj", "model.layers.10.self_attn.q_proj"), ("lm_head",), ()], ids=len
)
def test_transformers_converts_the_modules_that_are_named(names, form, llama, tmp_path):
    import transformers as hf

    kept = [name for name in ("model.layers.11.mlp.up_proj", "lm_head") if name not in names]
    made = recipe("transformers", dict.fromkeys(names, "int8"), kept)
    given = hf.TorchAoConfig.from_dict(copy.deepcopy(made)) if form == "a config" else copy.deepcopy(made)
    model = hf.LlamaForCausalLM.from_pretrained(llama, quantization_config=given, dtype=BF16)
    assert {name for name, kind in converted(model).items() if kind == "Int8Tensor"} == {*names}
    assert set(converted(model).values()) <= {"Int8Tensor", "Tensor"}
    if names:
        model.save_pretrained(tmp_path)
        assert converted(hf.LlamaForCausalLM.from_pretrained(tmp_path)) == converted(model)


@new
@pytest.mark.parametrize("spec", FORMATS)
def test_transformers_loads_what_torchao_loads(spec):
    hf = pytest.importorskip("transformers")
    config = hf.TorchAoConfig.from_dict(recipe("transformers", low(spec), KEPT))
    assert config.quant_type.fqn_to_config["head"] == torchao_config(spec)
    assert hf.TorchAoConfig.from_dict(config.to_dict()).quant_type == config.quant_type


# ---------------------------------------------------------------- Transformer Engine

ENGINE = """
    from nvdlfw_inspect.base import BaseNamespaceAPI
    from nvdlfw_inspect.registry import Registry, api_method

    class Defaults:
        def fp8_gemm_enabled(self, config, layer_name, gemm, iteration):
            return True, None

    @Registry.register_namespace_api(namespace="transformer_engine")
    class Namespace(BaseNamespaceAPI):
        def __init__(self):
            super().__init__()
            self._default_api_impl = Defaults()

        def input_assertions_hook(self, api_name, **kwargs): ...
        def output_assertions_hook(self, api_name, ret, **kwargs): ...

        def routing_condition(self, api_name, config, layer_name, feature_obj, **kwargs):
            return config["enabled"], None

        def is_multiple_feature_invocation_allowed(self, api_name):
            return True

    @Registry.register_feature(namespace="transformer_engine")
    class DisableQuantizationLayer:
        @api_method
        def fp8_gemm_enabled(self, config, layer_name, gemm, iteration):
            return False, iteration + 1
"""


@pytest.fixture
def inspected(tmp_path):
    """Names of layers that stay in high precision: by the real tool, with a feature as the engine has it."""
    api = pytest.importorskip("nvdlfw_inspect.api")
    (tmp_path / "features").mkdir()
    (tmp_path / "features" / "engine.py").write_text(textwrap.dedent(ENGINE))

    def run(made, names):
        api.initialize(made, feature_dirs=[str(tmp_path / "features")], log_dir=str(tmp_path))
        try:
            names = names(api) if callable(names) else names
            ask = api.transformer_engine.fp8_gemm_enabled
            return {name for name in names if not ask(layer_name=name, gemm="fprop", iteration=0)[0]}
        finally:
            api.end_debug()

    yield run
    from nvdlfw_inspect import logging

    for handler in [*logging.get_logger().logger.handlers]:
        handler.close()
        logging.get_logger().logger.removeHandler(handler)


@pytest.mark.parametrize("spec", TOOLS["transformer_engine"])
def test_the_engine_keeps_the_layers_that_are_named(spec, inspected):
    assert inspected(recipe("transformer_engine", low(spec), KEPT), LINEAR) == {*KEPT}


def test_the_engine_keeps_them_by_the_names_that_the_tool_gives(inspected):
    def named(api):
        model = Model()
        api.infer_and_assign_layer_names(model)
        return [module.name for module in model.modules() if isinstance(module, nn.Linear)]

    assert inspected(recipe("transformer_engine", low("fp8"), KEPT), named) == {f"model.{name}" for name in KEPT}


def test_the_engine_keeps_each_product_of_a_module(inspected):
    products = [f"model.{name}.{part}" for name in ("mlp", "mlps") for part in ("fc1", "fc2", "gemm_0", "gemm_12", "x")]
    made = recipe("transformer_engine", {}, ("mlp",))
    assert inspected(made, products) == {f"model.mlp.{part}" for part in ("fc1", "fc2", "gemm_0", "gemm_12")}


@pytest.mark.parametrize("kept", [("model.up",), ("up",), ("block",)])
def test_a_name_that_could_be_anothers_stands_for_itself_alone(kept, inspected):
    formats = dict.fromkeys({"up", "model.up", "block.fc1"} - {*kept}, "fp8")
    assert inspected(recipe("transformer_engine", formats, kept), {*formats, *kept}) == {*kept}


def test_the_engine_keeps_nothing(inspected):
    assert inspected(recipe("transformer_engine", low("fp8"), ()), {*LINEAR, "model"}) == set()


@pytest.mark.parametrize(("one", "other"), [("fp8", "nvfp4"), ("fp8", "fp8:e5m2"), ("mxfp8", "fp8:block")])
def test_the_engine_has_one_format(one, other):
    told = f"one format for all modules that are not kept, and these have {' and '.join(sorted((one, other)))}"
    with pytest.raises(ValueError, match=told):
        recipe("transformer_engine", {"head": one, "up": other}, ())


# ---------------------------------------------------------------- Model Optimizer


@pytest.fixture
def mtq():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch.jit, and of a transformers that is too new for it
        return pytest.importorskip("modelopt.torch.quantization")


@pytest.mark.parametrize("spec", FORMATS)
def test_the_optimizer_s_patterns_match_the_modules_that_are_named(spec):
    entries = recipe("modelopt", low(spec), KEPT)["quant_cfg"]
    assert entries[0] == {"quantizer_name": "*", "enable": False}
    every = [f"{name}.{kind}_quantizer" for name in LINEAR for kind in ("weight", "input", "output")]
    found = [fnmatch.filter(every, entry["quantizer_name"]) for entry in entries[1:]]
    kinds = ("weight",) if spec.startswith("int") else ("weight", "input")
    assert found == [[f"{name}.{kind}_quantizer"] for name in LOW for kind in kinds]


def test_the_optimizer_s_patterns_take_signs_as_they_are():
    names = ("a[0].b", "a0.b", "a*", "ab", "a?")
    for name in names:
        *_, entry = recipe("modelopt", {name: "int8"}, ())["quant_cfg"]
        assert fnmatch.filter([f"{one}.weight_quantizer" for one in names], entry["quantizer_name"]) == [
            f"{name}.weight_quantizer"
        ]


@pytest.mark.parametrize("spec", FORMATS)
def test_the_optimizer_s_schema_holds(spec, mtq):
    from modelopt.torch.quantization.config import QuantizeConfig

    made = QuantizeConfig.model_validate(recipe("modelopt", low(spec), KEPT))
    assert len(made.quant_cfg) == 1 + len(LOW) * (1 if spec.startswith("int") else 2)


@pytest.mark.parametrize("spec", ["fp8", "fp8:row", "fp8:block", "int8", "int4", "int4:64"])
@torch.no_grad()
def test_the_optimizer_rounds_the_modules_that_are_named(spec, mtq):
    """The other formats it rounds on a GPU alone."""
    torch.manual_seed(0)
    model, x = Model(), torch.randn(16, 128)
    before = model(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mtq.quantize(model, recipe("modelopt", low(spec), KEPT), lambda model: model(x))
    kinds = ("weight",) if spec.startswith("int") else ("weight", "input")
    on = {name for name, module in model.named_modules() if getattr(module, "is_enabled", False)}
    assert on == {f"{name}.{kind}_quantizer" for name in LOW for kind in kinds}
    assert 0 < (model(x) - before).norm() < 0.2 * before.norm()


# ---------------------------------------------------------------- LLM Compressor

PRESETS = {
    "fp8": "FP8", "fp8:row": "FP8_DYNAMIC", "fp8:block": "FP8_BLOCK", "mxfp8": "MXFP8", "mxfp4": "MXFP4",
    "nvfp4": "NVFP4", "int4": "W4A16",
}  # fmt: skip


def modifier(spec, kept=KEPT):
    return recipe("llm-compressor", low(spec), kept)["quant_stage"]["quant_modifiers"]["QuantizationModifier"]


@pytest.mark.parametrize("spec", PRESETS)
def test_the_schemes_are_the_compressor_s_own(spec):
    quantization = pytest.importorskip("compressed_tensors.quantization")
    config = quantization.QuantizationConfig.model_validate(modifier(spec))
    (group,) = config.config_groups.values()
    wanted = quantization.preset_name_to_scheme(PRESETS[spec], group.targets)
    left_out = {part: {"observer"} for part in ("weights", "input_activations")}  # older presets tell none
    assert group.model_dump(exclude=left_out) == wanted.model_dump(exclude=left_out)


@pytest.mark.parametrize(("spec", "bits", "size"), [("int8", 8, None), ("int4", 4, 128), ("int4:64", 4, 64)])
def test_integers_are_of_weights_alone(spec, bits, size):
    """The preset for int8 has groups of 128 in newer versions, and rows in older ones."""
    quantization = pytest.importorskip("compressed_tensors.quantization")
    (group,) = quantization.QuantizationConfig.model_validate(modifier(spec)).config_groups.values()
    assert (group.weights.num_bits, group.weights.type, group.weights.group_size) == (bits, "int", size)
    assert group.weights.strategy == ("group" if size else "channel")
    assert group.input_activations is None


@pytest.mark.parametrize("spec", TOOLS["llm-compressor"])
def test_the_compressor_finds_the_modules_that_are_named(spec):
    quantization = pytest.importorskip("compressed_tensors.quantization")
    model = Model()
    config = quantization.QuantizationConfig.model_validate(modifier(spec))
    quantization.apply_quantization_config(model, config)
    assert {name for name, module in model.named_modules() if hasattr(module, "quantization_scheme")} == {*LOW}


@pytest.mark.parametrize("name", ["Linear", "layers.3.Linear"])
def test_a_module_that_is_named_like_a_class_is_one_module(name):
    match = pytest.importorskip("compressed_tensors.utils.match")
    made = recipe("llm-compressor", {name: "fp8", "head": "int8"}, ("header",))
    found = made["quant_stage"]["quant_modifiers"]["QuantizationModifier"]
    groups = [group["targets"] for group in found["config_groups"].values()]
    assert [[one for one, _ in match.match_named_modules(Model(), targets)] for targets in groups] == [[name], ["head"]]
    assert [one for one, _ in match.match_named_modules(Model(), found["ignore"])] == ["header"]


@pytest.mark.parametrize("spec", TOOLS["llm-compressor"])
def test_the_compressor_loads_the_recipe(spec):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = pytest.importorskip("llmcompressor.recipe")
        made = loader.Recipe.create_instance(json.dumps(recipe("llm-compressor", low(spec), KEPT)))
    (only,) = made.modifiers
    assert type(only).__name__ == "QuantizationModifier"
    model = Model()
    only.initialize_quantization(model)
    assert {name for name, module in model.named_modules() if hasattr(module, "quantization_scheme")} == {*LOW}
