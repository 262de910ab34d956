"""Recipes: which module gets which low-bit format, as the plain data that five tools load."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..._core.base.pyproject import near

_Data = dict[str, Any]

_ENGINE = "fp8 fp8:e5m2 fp8:block fp8:block:e5m2 mxfp8 mxfp8:e5m2 nvfp4 nvfp4:hadamard nvfp4:sr nvfp4:hadamard:sr"
_WIDE = frozenset(["tf32", "bf16", "fp16"])  # dtypes of torch: to these tools their modules are left alone
_SCALES = (("", False), (":rceil", True))  # whether powers of two are rounded up
_OURS = {"e5m2", "rceil"}  # options that a tool may not know: it has no gradients, or rounds scales in its own way
_ALONE = {"set_inductor_config": False}  # else the whole process gets new settings: before torchao 0.18 TF32 as well


def recipe(tool: str, formats: Mapping[str, str], kept: Sequence[str]) -> _Data:
    """What a tool loads to give modules their formats, by their names in `named_modules()`, and to leave others."""
    key = check_tool(tool)
    if both := sorted({*formats} & {*kept}):
        raise ValueError(f"to_recipe({tool!r}): module {both[0]!r} has a format, and is kept")
    named, table, write = _TOOLS[key]
    low = {name: spec for name, spec in formats.items() if spec.split(":")[0] not in _WIDE}
    wide = [name for name in formats if name not in low]
    return write({name: _row(named, table, name, spec) for name, spec in low.items()}, [*kept, *wide])


def check_tool(tool: str) -> str:
    """The key of a tool, however it is written."""
    key = re.sub("[-_]", "", str(tool).lower())
    if key not in _TOOLS:
        legal = [name for name, *_ in _TOOLS.values()]
        raise ValueError(f"to_recipe({tool!r}): the tool must be one of {', '.join(legal)}{near(tool, legal)}")
    return key


def _row(tool: str, table: Callable[[int], _Data], name: str, spec: str) -> Any:
    """What a tool takes for a module's format; tools for inference have no use for the element of gradients."""
    base, *options = spec.lower().replace(" ", "").split(":")
    sizes = {one for one in options if base == "int4" and one.isdecimal()}
    rows, given = table(int(min(sizes, default="128"))), {*options} - sizes
    for left in (given, given - _OURS):
        if (key := ":".join([base, *sorted(left)])) in rows:
            return rows[key]
    raise ValueError(f"to_recipe({tool!r}): {tool} has no {spec!r}, which {name!r} gets; it takes {', '.join(rows)}")


def _config(kind: str, version: int = 1, **data: Any) -> _Data:
    return {"_type": kind, "_version": version, "_data": data}


def _mx(element: str, up: bool, **more: Any) -> _Data:
    """Torch has no dtype of six bits, so a name stands for it."""
    dtype: Any = element if element.startswith("fp6") else {"_type": "torch.dtype", "_data": element}
    scales: _Data = {"scaling_mode": {"_type": "ScaleCalculationMode", "_data": "RCEIL" if up else "FLOOR"}}
    return _config("MXDynamicActivationMXWeightConfig", activation_dtype=dtype, weight_dtype=dtype, **scales, **more)


def _torchao_formats(size: int) -> _Data:
    emulated = {"kernel_preference": {"_type": "KernelPreference", "_data": "EMULATED"}}  # fp6 has no other
    float8, blocks = "Float8DynamicActivationFloat8WeightConfig", ([1, 128], [128, 128])  # of activations and weights
    return {
        "fp8": _config(float8, 2, granularity=_config("PerTensor"), **_ALONE),
        "fp8:row": _config(float8, 2, granularity=_config("PerRow"), **_ALONE),
        "fp8:block": _config(float8, 2, granularity=[_config("PerBlock", block_size=one) for one in blocks], **_ALONE),
        **{f"mxfp8{option}": _mx("float8_e4m3fn", up) for option, up in _SCALES},
        **{f"mxfp6{option}": _mx("fp6_e2m3", up, **emulated) for option, up in _SCALES},
        **{f"mxfp6:e3m2{option}": _mx("fp6_e3m2", up, **emulated) for option, up in _SCALES},
        **{f"mxfp4{option}": _mx("float4_e2m1fn_x2", up) for option, up in _SCALES},
        "nvfp4": _config("NVFP4DynamicActivationNVFP4WeightConfig"),
        "int8": _config("Int8WeightOnlyConfig", 2, granularity=_config("PerRow"), **_ALONE),
        "int4": _config("Int4WeightOnlyConfig", 2, group_size=size, **_ALONE),
    }


def _torchao(rows: _Data, kept: Sequence[str]) -> _Data:
    """For `config_from_dict`, and then `quantize_(model, config, filter_fn=None)`."""
    return _config("FqnToConfig", fqn_to_config=rows | dict.fromkeys(kept))


def _transformers(rows: _Data, kept: Sequence[str]) -> _Data:
    """For `from_pretrained(quantization_config=)`; names in `modules_to_not_convert` would match parts of others."""
    return {"quant_method": "torchao", "quant_type": {"default": _torchao(rows, kept)}, "modules_to_not_convert": []}


def _engine(rows: _Data, kept: Sequence[str]) -> _Data:
    """For `nvdlfw_inspect.api.initialize(config_file=)`: what to keep; `te.autocast(recipe=)` tells the one format."""
    if len(several := sorted({*rows.values()})) > 1:
        told = "to_recipe('transformer_engine'): transformer_engine takes one format for all modules that are not kept"
        raise ValueError(f"{told}, and these have {' and '.join(several)}")
    names = "|".join(map(re.escape, kept))
    # `infer_and_assign_layer_names` puts "model." in front; a module of several products has a name for each.
    pattern = rf"^(?:model\.)?(?:{names})(?:\.fc[12]|\.gemm_\d+)?$"
    if any(re.search(pattern, one) for name in rows for one in (name, f"model.{name}")):
        pattern = f"^(?:{names})$"
    feature = {"DisableQuantizationLayer": {"enabled": True}}
    return {"kept": {"enabled": True, "layers": {"layer_name_regex_pattern": pattern}, "transformer_engine": feature}}


def _fp8(**more: Any) -> _Data:
    return {"num_bits": [4, 3], **more}


def _blocks(bits: tuple[int, int], along: int, scale: tuple[int, int]) -> list[_Data]:
    """Of weights and inputs alike."""
    sizes = {-1: along, "type": "dynamic"}
    return [{"num_bits": [*bits], "block_sizes": {**sizes, "scale_bits": [*scale]}} for _ in range(2)]


def _modelopt_formats(size: int) -> _Data:
    """Sizes of blocks are by axis, an integer: Python and YAML keep such keys, JSON makes text of them."""
    return {
        "fp8": [_fp8(), _fp8()],
        "fp8:row": [_fp8(axis=0), _fp8(type="dynamic", block_sizes={-1: None})],
        "fp8:block": [_fp8(block_sizes={-1: 128, -2: 128}), _fp8(type="dynamic", block_sizes={-1: 128})],
        "mxfp8": _blocks((4, 3), 32, (8, 0)),
        "mxfp6": _blocks((2, 3), 32, (8, 0)),
        "mxfp6:e3m2": _blocks((3, 2), 32, (8, 0)),
        "mxfp4": _blocks((2, 1), 32, (8, 0)),
        "nvfp4": _blocks((2, 1), 16, (4, 3)),
        "int8": [{"num_bits": 8, "axis": 0}],
        "int4": [{"num_bits": 4, "block_sizes": {-1: size, "type": "static"}}],
    }


def _modelopt(rows: _Data, kept: Sequence[str]) -> _Data:
    """For `mtq.quantize`: all is off but what a later entry names."""
    entries: list[_Data] = [{"quantizer_name": "*", "enable": False}]
    for name, row in rows.items():
        exact = re.sub(r"([*?\[])", r"[\1]", f"{name}." if name else "")
        pairs = zip(("weight_quantizer", "input_quantizer"), row, strict=False)
        entries += [{"quantizer_name": exact + key, "cfg": cfg} for key, cfg in pairs]
    return {"quant_cfg": entries, "algorithm": "max"}


def _args(bits: int, strategy: str, **more: Any) -> _Data:
    return {"num_bits": bits, "type": "float", "strategy": strategy, "symmetric": True, "dynamic": False} | more


def _compressor_formats(size: int) -> _Data:
    power: _Data = {"group_size": 32, "scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8"}
    twice: _Data = {"group_size": 16, "scale_dtype": "torch.float8_e4m3fn", "zp_dtype": "torch.float8_e4m3fn"}
    seen: _Data = {"observer": "static_minmax"}
    return {
        "fp8": [_args(8, "tensor"), _args(8, "tensor", **seen)],
        "fp8:row": [_args(8, "channel"), _args(8, "token", dynamic=True)],
        "fp8:block": [_args(8, "block", block_structure=[128, 128]), _args(8, "group", dynamic=True, group_size=128)],
        "mxfp8": [_args(8, "group", **power), _args(8, "group", dynamic=True, **power)],
        "mxfp4": [_args(4, "group", **power), _args(4, "group", dynamic=True, **power)],
        "nvfp4": [_args(4, "tensor_group", **twice), _args(4, "tensor_group", dynamic="local", **twice, **seen)],
        "int8": [_args(8, "channel", type="int")],
        "int4": [_args(4, "group", type="int", group_size=size)],
    }


def _compressor(rows: _Data, kept: Sequence[str]) -> _Data:
    """For `Recipe.create_instance`, as text in JSON or YAML; a name without a dot could be that of a class as well."""
    exact = {name: name if "." in name else f"re:{re.escape(name)}$" for name in (*rows, *kept)}
    groups: dict[str, _Data] = {}
    for name, row in rows.items():
        new = {"targets": [], **dict(zip(("weights", "input_activations"), row, strict=False))}
        groups.setdefault(str(row), new)["targets"].append(exact[name])
    config = {f"group_{number}": group for number, group in enumerate(groups.values())}
    modifier = {"config_groups": config, "ignore": [exact[name] for name in kept]}
    return {"quant_stage": {"quant_modifiers": {"QuantizationModifier": modifier}}}


_TOOLS: dict[str, tuple[str, Callable[[int], _Data], Callable[[_Data, Sequence[str]], _Data]]] = {
    "torchao": ("torchao", _torchao_formats, _torchao),
    "transformers": ("transformers", _torchao_formats, _transformers),
    "transformerengine": ("transformer_engine", lambda size: {key: key for key in _ENGINE.split()}, _engine),
    "modelopt": ("modelopt", _modelopt_formats, _modelopt),
    "llmcompressor": ("llm-compressor", _compressor_formats, _compressor),
}
