"""Manifests of real models: what leaves the state alone is no difference, and what public faults changed is a line."""

import contextlib
import copy
import pickle

import diffusers
import peft
import pytest
import torch
import torch.distributed.checkpoint as dcp
import transformers as hf
from architectures import ARCHITECTURES, GROUPED, drawn
from ranks import on_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torchao.quantization import Int8WeightOnlyConfig, quantize_

import dtypeguard
from dtypeguard import manifest

F32, BF16 = torch.float32, torch.bfloat16


def train(model, inputs, steps=3):
    """Train a model on the sum of what it returns; the optimizer."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for _ in range(steps):
        found = model(**inputs)
        outputs = [out for out in found.values() if isinstance(out, torch.Tensor) and out.requires_grad]
        sum(out.float().sum() for out in outputs).backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def unchanged(build, folder, inputs=None, **load):
    """What is found in each form of a model that leaves its state alone."""
    model = build()
    manifest(model).save(folder / "dtypes.lock")
    lock = manifest.load(folder / "dtypes.lock")
    assert str(manifest(build())) == str(lock)
    model.save_pretrained(folder / "saved")
    yield "loaded", lock.diff(type(model).from_pretrained(folder / "saved", **load))
    yield "a file", lock.diff(folder / "saved")
    yield "a copy", lock.diff(copy.deepcopy(model))
    with contextlib.suppress(RuntimeError):  # torch pickles no parametrized modules
        yield "a pickle", lock.diff(pickle.loads(pickle.dumps(model)))
    yield "compiled", lock.diff(torch.compile(model))
    yield "there and back", lock.diff(copy.deepcopy(model).to(BF16).to(F32))
    yield "its state", lock.diff(model.state_dict())
    if inputs is not None:
        train(model.train(), inputs)
        yield "trained", lock.diff(model)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_leaves_a_transformer_alone_is_no_difference(name, tmp_path):
    architecture = ARCHITECTURES[name]
    inputs = architecture.inputs(drawn(F32))
    for form, found in unchanged(architecture.build, tmp_path, inputs, dtype=F32):
        assert not found, f"{form}: {found}"
        assert not found.new or form == "trained", f"{form}: {found}"  # a cache may appear at the first call


UNET = {
    "sample_size": 8, "block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"), "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "cross_attention_dim": 8, "attention_head_dim": 2,
}  # fmt: skip
VAE = {"block_out_channels": (8,), "norm_num_groups": 4, "latent_channels": 2}
DIFFUSERS = {
    "UNet2DConditionModel": lambda: diffusers.UNet2DConditionModel(**UNET),
    "UNet2DModel": lambda: diffusers.UNet2DModel(
        sample_size=8, block_out_channels=(8, 16), norm_num_groups=4, layers_per_block=1, attention_head_dim=2,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ),
    "AutoencoderKL": lambda: diffusers.AutoencoderKL(**VAE),
    "ControlNetModel": lambda: diffusers.ControlNetModel(
        block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4, cross_attention_dim=8, attention_head_dim=2,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), conditioning_embedding_out_channels=(4, 8),
    ),
    "DiTTransformer2DModel": lambda: diffusers.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=4, num_layers=1, sample_size=8, norm_num_groups=4
    ),
    "WanTransformer3DModel": lambda: diffusers.WanTransformer3DModel(
        num_attention_heads=2, attention_head_dim=12, num_layers=1, in_channels=2, out_channels=2, text_dim=8, ffn_dim=8
    ),
    "Transformer2DModel": lambda: diffusers.Transformer2DModel(
        num_attention_heads=2, attention_head_dim=4, in_channels=8, norm_num_groups=4
    ),
    "UNet1DModel": lambda: diffusers.UNet1DModel(block_out_channels=(8, 8, 16), sample_size=64),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFUSERS)
def test_what_leaves_a_model_of_diffusers_alone_is_no_difference(name, tmp_path):
    for form, found in unchanged(DIFFUSERS[name], tmp_path, torch_dtype=F32):
        assert (bool(found), found.new) == (False, []), f"{form}: {found}"


def test_a_pipeline_is_read_in_its_folder(tmp_path):
    unet, vae = DIFFUSERS["UNet2DModel"](), DIFFUSERS["AutoencoderKL"]()
    for name, model in (("unet", unet), ("vae", vae)):
        model.save_pretrained(tmp_path / name)
    lock = manifest({"unet": unet, "vae": vae})
    assert not lock.diff(tmp_path)
    vae.half().save_pretrained(tmp_path / "vae")
    assert {name.partition(".")[0] for row in lock.diff(tmp_path).rows for name in row.names} == {"vae"}


# ---------------------------------------------------------------- wrappers and subclasses


def llama(**options):
    torch.manual_seed(0)
    return hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED, **options))


def test_a_manifest_of_a_llama_has_at_most_25_lines():
    model = llama(tie_word_embeddings=True).to(BF16)
    for name, module in model.named_modules():
        module.to(
            F32 if "norm" in name or "rotary" in name else module.weight.dtype if hasattr(module, "weight") else F32
        )
    text = str(manifest(llama(tie_word_embeddings=True)))
    assert len(text.splitlines()) <= 25


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
def test_an_adapter_is_new_and_its_base_the_same():
    lock = manifest(llama().to(BF16))
    adapted = peft.get_peft_model(
        llama().to(BF16), peft.LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"])
    )
    found = lock.diff(adapted)
    assert not found, found
    assert {held for _, held in found.new} <= {"float32", "bfloat16"}
    assert any("lora_A" in pattern for pattern, _ in found.new)
    adapted.base_model.model.model.norm.float()
    assert [(row.pattern, row.actual) for row in lock.diff(adapted).rows] == [("model.norm.weight", "float32")]


@pytest.mark.filterwarnings("ignore:.*Deprecat")  # torchao of itself
def test_a_quantized_weight_is_told_with_what_it_keeps(tmp_path):
    model = nn.Sequential(nn.Linear(64, 64, dtype=BF16), nn.LayerNorm(64))
    before = manifest(model)
    quantize_(model, Int8WeightOnlyConfig())
    lock = manifest(model)
    weight = dict(lock.lines["tensors"])["0.weight"]
    assert weight.startswith("bfloat16 as ")
    assert " int8, scale " in weight
    assert [row.expected for row in before.diff(model).rows] == ["bfloat16"]
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    lock.check(tmp_path / "weights.pt")


# ---------------------------------------------------------------- public faults


def lines(found):
    return [(row.pattern, row.expected, row.actual) for row in found.rows]


def test_rotary_frequencies_rounded_by_a_model_wide_cast(tmp_path):
    """https://github.com/NVIDIA-NeMo/Automodel/pull/2549: seven families."""
    llama().save_pretrained(tmp_path)
    lock = manifest(hf.LlamaForCausalLM.from_pretrained(tmp_path, dtype=BF16))
    cast = hf.LlamaForCausalLM.from_pretrained(tmp_path, dtype=F32)
    with dtypeguard.audit():
        cast.to(BF16)  # whose `to` is transformers' own
        found = lock.diff(cast)
    assert lines(found) == [("model.rotary_emb.*", "float32", "bfloat16")]
    assert "since cast.to(BF16) at" in found.rows[0].origin
    assert "test_manifest_models.py" in found.rows[0].origin


def test_rotary_frequencies_of_a_vision_tower(tmp_path):
    """https://github.com/NVIDIA-NeMo/Automodel/pull/3856."""
    model = ARCHITECTURES["Qwen2-VL"].build()
    model.save_pretrained(tmp_path)
    lock = manifest(type(model).from_pretrained(tmp_path, dtype=BF16))
    cast = type(model).from_pretrained(tmp_path, dtype=BF16)
    cast.model.visual.to(BF16)
    assert lines(lock.diff(cast)) == [("model.visual.rotary_pos_emb.*", "float32", "bfloat16")]


class Kept(hf.LlamaForCausalLM):
    _keep_in_fp32_modules_strict = ("norm", "input_layernorm", "post_attention_layernorm")


NORMS = [("model.layers.*.input_layernorm.weight", "float32", "bfloat16"),
         ("model.layers.*.post_attention_layernorm.weight", "float32", "bfloat16"),
         ("model.norm.weight", "float32", "bfloat16")]  # fmt: skip


def test_modules_that_are_kept_in_float32_no_more(tmp_path):
    """https://github.com/huggingface/transformers/pull/46198 (112 tensors), axolotl/pull/3670, speculators/pull/668."""
    llama().save_pretrained(tmp_path)
    kept = Kept.from_pretrained(tmp_path, dtype=BF16)
    lock = manifest(kept)
    lost = hf.LlamaForCausalLM.from_pretrained(tmp_path, dtype=BF16)
    assert lines(lock.diff(lost)) == NORMS
    assert [
        (row[0], row[2], row[1]) for row in lines(manifest(lost).diff(kept))
    ] == NORMS  # and transformers/pull/43683
    with pytest.warns(
        dtypeguard.ContractWarning, match=r"5 tensors are bfloat16, and Kept\._keep_in_fp32_modules_strict"
    ):
        manifest(kept.to(BF16))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:TypedStorage is deprecated")  # dcp.save
def test_a_load_that_casts_to_its_template(tmp_path):
    """https://github.com/pytorch/pytorch/issues/187138."""
    dcp.save({"model": llama().state_dict()}, checkpoint_id=tmp_path, no_dist=True)
    lock = manifest(tmp_path)
    template = {"model": llama().to(BF16).state_dict()}
    dcp.load(template, checkpoint_id=tmp_path, no_dist=True)
    assert lines(lock.diff(template)) == [("*", "float32", "bfloat16")]


def test_buffers_that_a_checkpoint_wrapper_hides(tmp_path):
    """https://github.com/pytorch/torchtitan/pull/3861: names of buffers with and without the wrapper's part."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    def build():
        model = nn.Module()
        model.moe = nn.Linear(4, 4, dtype=BF16)
        model.moe.register_buffer("expert_bias", torch.zeros(4))
        return model

    lock, model = manifest(build()), build()
    model.moe = checkpoint_wrapper(model.moe)
    assert not lock.diff(model)
    plain = {name for name, _ in build().named_buffers()}
    pushed = {name: t if name in plain else t.to(BF16) for name, t in model.named_buffers()} | dict(
        model.named_parameters()
    )
    assert lines(lock.diff(pushed)) == [("moe.expert_bias", "float32", "bfloat16")]


def test_an_export_that_says_float32_and_is_bfloat16(tmp_path):
    """https://github.com/pytorch/torchtitan/pull/4166: weights were converted unless float32 was asked for."""
    lock = manifest(llama())  # of what the export should hold

    def export(model, dtype, path):
        state = model.state_dict()
        torch.save({n: t.to(dtype) for n, t in state.items()} if dtype is not F32 else state, path)

    export(llama().to(BF16), F32, tmp_path / "last.pt")
    assert lines(lock.diff(tmp_path / "last.pt")) == [("*", "float32", "bfloat16")]


def test_optimizer_state_narrowed_in_a_checkpoint(tmp_path):
    """https://github.com/vllm-project/speculators/pull/899, and of float32 parameters beside bfloat16 ones."""
    model = llama()
    ids = {"input_ids": torch.ones(1, 3, dtype=torch.int64)}
    optimizer = train(model, ids, 1)
    lock = manifest(model, optimizer)
    names = dict(enumerate(name for name, _ in model.named_parameters()))
    state = {names[n]: kept for n, kept in optimizer.state_dict()["state"].items()}

    def saved(dtype):
        narrow = {name: {key: t.to(dtype) for key, t in kept.items()} for name, kept in state.items()}
        torch.save({"model": model.state_dict(), "optim": {"state": narrow}}, tmp_path / "all.pt")
        return lock.diff(tmp_path / "all.pt")

    assert not saved(F32)
    assert [(row.section, row.pattern, row.actual) for row in saved(BF16).rows] == [("optimizer", "*", "bfloat16")]


# ---------------------------------------------------------------- ranks


class Narrow(nn.Module):
    """Half weights, and a norm in float32."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4, dtype=BF16)
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        return self.norm(self.inner(x).float())


WRAPPERS = {
    "DDP": DistributedDataParallel,
    "FSDP2": lambda model: [fully_shard(part, mesh=init_device_mesh("cpu", (2,))) for part in (model.inner, model)][-1],
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@on_ranks
def test_ranks_have_the_same_manifest(rank, wrapper):
    lock = manifest(Narrow())
    model = WRAPPERS[wrapper](Narrow())
    assert not lock.diff(model), lock.diff(model)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4, dtype=BF16)).sum().backward()
    optimizer.step()
    held = manifest(model, optimizer)
    assert [*held.lines] == ["tensors", "gradients", "optimizer"]
    said = [None, None]
    torch.distributed.all_gather_object(said, str(held))
    assert said[0] == said[1]
    root = model.module if hasattr(model, "module") else model
    root.inner.float()
    assert lines(lock.diff(model)) == [("inner.*", "bfloat16", "float32")]


@on_ranks
def test_a_sharded_model_is_held_to_its_manifest(rank):
    """Parameters of two dtypes under FSDP2, as in https://github.com/NVIDIA-NeMo/Automodel/pull/2419."""
    model = WRAPPERS["FSDP2"](Narrow())
    dtypeguard.guard(model, state=manifest(Narrow()), mode="strict")
    model(torch.ones(2, 4, dtype=BF16))
    model.to(BF16)
    with pytest.raises(dtypeguard.StateError, match=r"norm\.\*  float32 -> bfloat16 \(2 tensors\)"):
        model(torch.ones(2, 4, dtype=BF16))
