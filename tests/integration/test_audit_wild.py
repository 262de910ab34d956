"""No false alarms in real libraries: an audit of what is right in them changes no bit and warns of nothing."""

import copy

import accelerate
import lightning.pytorch as pl
import peft
import pytest
import torch
import transformers as hf
from accelerate.state import AcceleratorState
from architectures import ARCHITECTURES, GROUPED, drawn, ids, llama, same, tokens
from audit_cases import twice
from lightning.pytorch.plugins.precision import MixedPrecision
from support import LIBRARIES_WARN
from test_peft import METHODS, base
from test_transformers import BF16, F16, F32, GENERATORS, NAMES, QUICK, STATELESS, WAYS, generated, prompts
from torch import nn
from torch.amp import GradScaler
from torch.utils.data import DataLoader, TensorDataset
from versions import since

import dtypeguard

pytestmark = [  # what the libraries say by themselves
    *LIBRARIES_WARN,
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers` to `True`:UserWarning"),
    pytest.mark.filterwarnings("ignore:Position ids are not supported for parameter efficient tuning:UserWarning"),
    pytest.mark.filterwarnings("ignore:Unsupported layer type:UserWarning"),
    pytest.mark.filterwarnings("ignore:Using a target size .* that is different to the input size:UserWarning"),
]
slow = pytest.mark.slow


# ---------------------------------------------------------------- models of transformers

# What is found is so: (rule, what stands in the line)
TRUE_FINDINGS = {
    # its decoding head has a batch norm, whose statistics `.to(bfloat16)` converts too
    ("SegFormer", BF16): [("DG502", "self.batch_norm(hidden_states)")],
}


def every(*dtypes, quick=QUICK, models=ARCHITECTURES):
    return pytest.mark.parametrize(
        ("name", "dtype"),
        [
            pytest.param(name, dtype, id=f"{name}-{NAMES[dtype]}", marks=[slow] * (name not in quick or dtype is F16))
            for name in models
            for dtype in dtypes
            if dtype is F32 or ARCHITECTURES[name].half
        ],
    )


def compared(use, model, twin, *arguments):
    """What `use` makes of a model in an audit is what it makes of its twin without one. Returns what was warned of."""
    expected = use(twin, *copy.deepcopy(arguments))
    with dtypeguard.audit() as report:
        made = use(model, *arguments)
    assert same(made, expected) >= 1
    assert report.faults == []
    assert report.to_dict()["operations"] > 0
    return [(finding.rule, finding.source) for finding in report.findings if finding.severity != "info"]


@torch.no_grad()
def run(model, inputs):
    hf.set_seed(2)
    return model(**inputs, output_hidden_states=True)


@pytest.mark.thin(4)
@every(F32, BF16, F16)
def test_a_model_runs(name, dtype):
    architecture = ARCHITECTURES[name]
    model = architecture.build().eval().to(dtype)
    assert compared(run, model, copy.deepcopy(model), architecture.inputs(drawn(dtype))) == []


def learn(model, inputs):
    hf.set_seed(2)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.3), []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(**inputs).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    return losses, list(model.parameters())


TAUGHT = [name for name, architecture in ARCHITECTURES.items() if architecture.labels]


@pytest.mark.thin(4)
@every(F32, BF16, quick=("Llama", "BERT", "ViT"), models=TAUGHT)
def test_a_model_learns(name, dtype):
    architecture = ARCHITECTURES[name]
    model, inputs = architecture.build().train().to(dtype), architecture.inputs(drawn(dtype)) | architecture.labels()
    found = compared(learn, model, copy.deepcopy(model), inputs)
    expected = TRUE_FINDINGS.get((name, dtype), [])
    assert {rule for rule, _ in found} == {rule for rule, _ in expected}
    assert all(text in source for (_, source), (_, text) in zip(found, expected, strict=True))


@every(BF16, quick=("GPT-2",), models=TAUGHT)
def test_a_model_learns_under_autocast(name, dtype):
    architecture = ARCHITECTURES[name]
    model, inputs = architecture.build().train(), architecture.inputs(drawn(F32)) | architecture.labels()

    def in_region(model, inputs):
        hf.set_seed(2)
        optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-3), []
        for _ in range(5):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype):
                loss = model(**inputs).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses, list(model.parameters())

    assert compared(in_region, model, copy.deepcopy(model), inputs) == []


WRITERS = [
    pytest.param(
        name,
        way,
        dtype,
        marks=() if name in ("Llama", "T5") and way in ("greedy", "sampling") and dtype is BF16 else slow,
        id=f"{name}-{way}-{NAMES[dtype]}",
    )
    for name in GENERATORS
    for way in WAYS
    for dtype in (F32, BF16, F16)
    if not (name in ("Mamba", "RWKV") and way in STATELESS) and not (name == "Whisper" and way == "prompt lookup")
]


@pytest.mark.parametrize(("name", "way", "dtype"), WRITERS)
@torch.no_grad()
def test_a_model_writes(name, way, dtype):
    model, inputs = ARCHITECTURES[name].build().eval().to(dtype), prompts(name, dtype)
    if way == "prompt lookup" and name != "Qwen2-VL":
        inputs = {key: value[-1:] for key, value in inputs.items()}
    options = WAYS[way] | inputs | ({"output_router_logits": False} if name == "Mixtral" else {})
    assert compared(lambda model, options: generated(model, **options), model, copy.deepcopy(model), options) == []


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=NAMES.get)
def test_a_model_is_saved_and_loaded_in_a_dtype(dtype, tmp_path):
    torch.manual_seed(1)
    llama().to(dtype).save_pretrained(tmp_path)

    def load(_):
        model = hf.LlamaForCausalLM.from_pretrained(tmp_path, dtype=dtype).eval()
        return run(model, tokens(None))

    assert compared(load, None, None) == []
    assert torch.get_default_dtype() is F32


@pytest.mark.thin(6)
@pytest.mark.parametrize("rope", ["linear", "dynamic", "yarn", "llama3", "longrope"])
@pytest.mark.parametrize("dtype", [BF16, F16], ids=NAMES.get)
def test_positions_that_are_stretched(rope, dtype):
    scaling = {"rope_type": rope, "rope_theta": 10000.0, "factor": 4.0}
    if rope == "llama3":
        scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    if rope == "longrope":
        scaling |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 32}
    if rope == "yarn":
        scaling |= {"original_max_position_embeddings": 32}
    config = hf.LlamaConfig(**GROUPED | {"max_position_embeddings": 512}, rope_parameters=scaling)
    model = hf.LlamaForCausalLM(config).eval().to(dtype)
    assert compared(run, model, copy.deepcopy(model), {"input_ids": ids(1, 300)}) == []


# ---------------------------------------------------------------- PEFT and torchao


@pytest.mark.thin(4)
@pytest.mark.parametrize("autocast", [False, pytest.param(True, marks=slow)], ids=["", "autocast"])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=NAMES.get)
@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name in ("LoRA", "DoRA", "prompt") else slow) for name in METHODS]
)
def test_adapters_learn_over_a_frozen_base(method, dtype, autocast):
    """Over bfloat16 peft makes most adapters in float32."""

    def program():
        torch.manual_seed(1)
        model = peft.get_peft_model(base(dtype), METHODS[method]()).train()
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.02)
        losses = []
        for step in range(5):
            optimizer.zero_grad()
            with torch.autocast("cpu", BF16, enabled=autocast):
                loss = model(**tokens(None), labels=ids(2, 7) + step).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return model, losses

    twice(program)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=NAMES.get)
def test_an_adapter_is_saved_loaded_and_merged(dtype, tmp_path):
    def program():
        torch.manual_seed(1)
        peft.get_peft_model(base(dtype), METHODS["LoRA"]()).save_pretrained(tmp_path)
        model = peft.PeftModel.from_pretrained(base(dtype), tmp_path).merge_and_unload().eval()
        return model, generated(model, **tokens(None)).sequences

    twice(program)


@pytest.mark.thin(4)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=NAMES.get)
@pytest.mark.parametrize(
    "config", ["Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig", "Float8WeightOnlyConfig"]
)
@since("torchao", "0.18", "it warns of what it imports and of its own settings")
@torch.no_grad()
def test_weights_quantized_by_torchao(config, dtype):
    from torchao import quantization

    def program():
        model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)).to(dtype)
        quantization.quantize_(model, getattr(quantization, config)())
        return [model(torch.randn(4, 32).to(dtype)) for _ in range(3)]

    twice(program)


# ---------------------------------------------------------------- trainers: Lightning, transformers, accelerate


class Fitted(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))

    def training_step(self, batch, index):
        return (self.body(batch[0]).float() - batch[1].float()).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def rows():
    return DataLoader(TensorDataset(torch.randn(24, 6), torch.randn(24, 3)), batch_size=4)


PRECISIONS = {
    "32-true": lambda: {"precision": "32-true"},
    "bf16-true": lambda: {"precision": "bf16-true"},
    "bf16-mixed": lambda: {"precision": "bf16-mixed", "accumulate_grad_batches": 2},
    "16-mixed": lambda: {"plugins": MixedPrecision("16-mixed", "cpu", scaler=GradScaler("cpu"))},
}


@pytest.mark.thin(2)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_model_in_lightning(precision):
    def program():
        model = Fitted()
        trainer = pl.Trainer(
            max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, gradient_clip_val=0.3, **PRECISIONS[precision](),
        )  # fmt: skip
        trainer.fit(model, rows())
        return model, trainer.optimizers

    twice(program)


@pytest.mark.thin(2)
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_model_in_accelerate(precision):
    def program():
        AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = accelerate.Accelerator(mixed_precision=precision, cpu=True, gradient_accumulation_steps=2)
        model = Fitted().body
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        model, optimizer, loader = accelerator.prepare(model, optimizer, rows())
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward((model(x).float() - y).square().mean())
                accelerator.clip_grad_norm_(model.parameters(), 0.3)
                optimizer.step()
                optimizer.zero_grad()
        return model, optimizer.state_dict()

    twice(program)
    AcceleratorState._reset_state(reset_partial_state=True)


TRAININGS = {
    "float32": {},
    "bf16": {"bf16": True},
    "accumulated": {"bf16": True, "gradient_accumulation_steps": 2, "warmup_steps": 2},
    "with workers": {"dataloader_num_workers": 2},
    "checkpointed": {"gradient_checkpointing": True, "bf16": True},
    "evaluated": {"eval_strategy": "steps", "eval_steps": 2, "bf16_full_eval": True},
}


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=() if how in ("float32", "bf16") else slow) for how in TRAININGS]
)
def test_a_language_model_in_a_trainer(how, tmp_path):
    def program():
        hf.set_seed(1)
        text = torch.randint(3, 60, (24, 12)).tolist()
        data = [{"input_ids": line, "labels": line, "attention_mask": [1] * 12} for line in text]
        args = hf.TrainingArguments(
            output_dir=str(tmp_path), max_steps=6, per_device_train_batch_size=4, logging_steps=1, use_cpu=True,
            report_to="none", disable_tqdm=True, save_strategy="no", dataloader_pin_memory=False, **TRAININGS[how],
        )  # fmt: skip
        model = ARCHITECTURES["GPT-2"].build()
        trainer = hf.Trainer(model=model, args=args, train_dataset=data, eval_dataset=data[:4])
        trainer.train()
        return model, trainer.predict(data[:4]).predictions.tolist(), numbers(trainer.state.log_history)

    twice(program)


def numbers(history):
    """What was logged, without what depends on the clock."""
    return [{k: v for k, v in row.items() if not k.endswith(("runtime", "per_second"))} for row in history]
