"""No false alarms in real libraries: a strict watch in Lightning, Trainer, accelerate or on ranks changes nothing."""

import contextlib

import accelerate
import lightning.pytorch as pl
import peft
import pytest
import ranks
import torch
import torch.distributed as dist
import transformers as hf
from accelerate.state import AcceleratorState
from lightning.pytorch.plugins.precision import MixedPrecision
from ranks import on_ranks
from support import BF16, F16, F32, LIBRARIES_WARN, same
from test_amp_silent import Loop, batches, mse, net, plain, silent, trained, twice
from torch import nn
from torch.amp import GradScaler
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.utils.data import DataLoader, TensorDataset

from dtypeguard import AmpError, amp

pytestmark = LIBRARIES_WARN
slow = pytest.mark.slow
STEPS = 60


@pytest.fixture(scope="module", autouse=True)
def _no_process_stays():
    yield
    ranks.stop()


def but(kept, names):
    """A table of which a few rows are run each time; the others take their time."""
    return [pytest.param(name, marks=() if name in kept else slow) for name in names]


def rows(steps=STEPS, dtype=F32, size=4):
    pairs = list(batches(steps, dtype, rows=size))
    return TensorDataset(torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs]))


# ---------------------------------------------------------------- Lightning


class Fitted(pl.LightningModule):
    """A watch begins where a user's would: when the optimizers are there."""

    def __init__(self, watch, rate=0.01, name="AdamW"):
        super().__init__()
        self.body, self.losses, self.stack = net(), [], contextlib.ExitStack()
        self.begin, self.rate, self.name = watch, rate, name

    def on_train_start(self):
        self.stack.enter_context(self.begin(self, self.optimizers()))

    def on_train_end(self):
        self.stack.close()

    def training_step(self, batch, index):
        loss = mse(self.body(batch[0]), batch[1])
        self.losses.append(loss.detach().clone())
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.losses.append(mse(self.body(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = getattr(torch.optim, self.name)(self.parameters(), lr=self.rate)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.rate, total_steps=2 * STEPS, cycle_momentum=False
        )
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class ByHand(Fitted):
    """Two optimizers, stepped by hand in turns."""

    def __init__(self, watch, clip=False):
        super().__init__(watch)
        self.automatic_optimization = False
        self.judge, self.clip = nn.Linear(3, 1), clip

    def training_step(self, batch, index):
        making, judging = self.optimizers()
        fake = self.body(batch[0]).float()
        for optimizer in (judging, making):
            self.toggle_optimizer(optimizer)
            if optimizer is judging:
                loss = self.judge(batch[1]).float().square().mean() - self.judge(fake.detach()).float().mean()
            else:
                loss = mse(fake, batch[1]) + self.judge(fake).float().mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            if self.clip:
                self.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
            optimizer.step()
            self.untoggle_optimizer(optimizer)
            self.losses.append(loss.detach())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.body.parameters(), lr=0.01), torch.optim.SGD(self.judge.parameters(), lr=0.01)


def mixed16(**options):
    return {"plugins": MixedPrecision("16-mixed", "cpu", scaler=GradScaler("cpu", **options))}


def fitted(model, **options):
    trainer = pl.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, val_check_interval=0.25, **options,
    )  # fmt: skip
    trainer.fit(model, DataLoader(rows(), batch_size=4), DataLoader(rows(2), batch_size=4))
    made = [model, model.losses, [optimizer.state_dict() for optimizer in trainer.optimizers]]
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    assert scaler is None or type(scaler) is GradScaler
    return [*made, scaler]


PRECISIONS = {
    "32-true": lambda: {"precision": "32-true"},
    "64-true": lambda: {"precision": "64-true"},
    "bf16-mixed": lambda: {"precision": "bf16-mixed"},
    "bf16-true": lambda: {"precision": "bf16-true"},
    "16-mixed": mixed16,
    "16-mixed with a scale to be found": lambda: mixed16(init_scale=2.0**40),
}
LOOPS = {
    "plain": {},
    "clip norm": {"gradient_clip_val": 0.3},
    "clip value": {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    "accumulate": {"accumulate_grad_batches": 3},
    "accumulate and clip": {"accumulate_grad_batches": 2, "gradient_clip_val": 0.3},
}


@pytest.mark.thin(3)
@pytest.mark.parametrize("loop", but(["accumulate and clip"], LOOPS))
@pytest.mark.parametrize("precision", but(["32-true", "bf16-mixed", "16-mixed"], PRECISIONS))
@silent
def test_lightning(watch, precision, loop):
    return fitted(
        Fitted(watch, rate=0.05 if precision == "bf16-true" else 0.01), **PRECISIONS[precision](), **LOOPS[loop]
    )


@pytest.mark.parametrize("name", ["SGD", "Adam", "LBFGS", "Adafactor"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
@slow
@silent
def test_lightning_with_other_optimizers(watch, precision, name):
    if (name, precision) == ("LBFGS", "16-mixed"):
        name = "RMSprop"  # Lightning refuses closures beside a scaler
    return fitted(Fitted(watch, rate=0.01, name=name), **PRECISIONS[precision]())


@pytest.mark.thin(4)
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
@silent
def test_lightning_by_hand(watch, precision, clip):
    if (precision, clip) == ("16-mixed", True):
        clip = False  # clip_gradients does not unscale there: that is a fault
    return fitted(ByHand(watch, clip), **PRECISIONS[precision]())


class Clumsy(Fitted):
    def on_before_optimizer_step(self, optimizer):
        if self.global_step == 20:
            self.body[3].bias.grad.fill_(float("nan"))


def test_in_lightning_a_fault_is_still_found():
    def begin(model, optimizer):
        return amp.watch(model, optimizer, mode="strict")

    with pytest.raises(AmpError) as caught:
        fitted(Clumsy(begin), precision="32-true")
    assert (caught.value.rule, caught.value.argument) == ("DG408", "body.3.bias")


# ---------------------------------------------------------------- Trainer


class Watching(hf.TrainerCallback):
    def __init__(self, watch):
        self.begin, self.losses, self.stack = watch, [], contextlib.ExitStack()

    def on_train_begin(self, args, state, control, model=None, optimizer=None, **kwargs):
        self.stack.enter_context(self.begin(model, optimizer))

    def on_train_end(self, args, state, control, **kwargs):
        self.stack.close()

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.losses += [logs[key] for key in ("loss", "eval_loss", "grad_norm") if key in logs]


def vit():
    config = hf.ViTConfig(
        image_size=8, patch_size=4, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    return hf.ViTForImageClassification(config)


def images(count=32):
    drawn = torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    return [{"pixel_values": image, "labels": n % 2} for n, image in enumerate(drawn)]


TRAININGS = {
    "float32": {},
    "bf16": {"bf16": True},
    "bf16 accumulated": {"bf16": True, "gradient_accumulation_steps": 2},
    "unclipped": {"max_grad_norm": 0.0},
    "checkpointed": {"activation_checkpointing": True},
    "warm-up": {"warmup_steps": 40, "lr_scheduler_type": "cosine"},
    "evaluated": {"eval_strategy": "steps", "eval_steps": 7, "bf16": True},
    "Adafactor": {"optim": "adafactor"},
    "fused AdamW": {"optim": "adamw_torch_fused"},
    "SGD": {"optim": "sgd"},
    "compiled": {"torch_compile": True, "torch_compile_backend": "aot_eager"},
}


@pytest.mark.parametrize("how", but(["float32", "bf16 accumulated"], TRAININGS))
@silent
def test_trainer(watch, how, tmp_path):
    torch._dynamo.reset()
    args = hf.TrainingArguments(
        output_dir=str(tmp_path), max_steps=STEPS, per_device_train_batch_size=4, logging_steps=1, use_cpu=True,
        report_to="none", disable_tqdm=True, save_strategy="no", seed=3, dataloader_pin_memory=False,
        learning_rate=1e-3, **TRAININGS[how],
    )  # fmt: skip
    callback, model = Watching(watch), vit()
    trainer = hf.Trainer(model=model, args=args, train_dataset=images(), eval_dataset=images(4), callbacks=[callback])
    trainer.train()
    assert len(callback.losses) >= STEPS
    return model, trainer.optimizer.state_dict(), callback.losses


# ---------------------------------------------------------------- accelerate


@pytest.fixture
def accelerator():
    """Makes accelerators; their state is global."""

    def make(precision="no", **options):
        AcceleratorState._reset_state(reset_partial_state=True)
        made = accelerate.Accelerator(mixed_precision="no" if precision == "fp16" else precision, cpu=True, **options)
        if precision == "fp16":  # as it would be on a GPU
            made.state._mixed_precision, made.native_amp, made.scaler = "fp16", True, GradScaler("cpu")
        return made

    yield make
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.thin(2)
@pytest.mark.parametrize("clip", but(["norm"], [None, "norm", "value"]))
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("precision", but(["bf16", "fp16"], ["no", "bf16", "fp16"]))
@silent
def test_accelerate(watch, accelerator, precision, accumulate, clip):
    accelerator = accelerator(precision, gradient_accumulation_steps=accumulate)
    model, losses = net(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 20))
    loader = DataLoader(rows(STEPS * accumulate), batch_size=4)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    with watch(model, optimizer.optimizer):
        for i, (x, y) in enumerate(loader):
            x = x * float("nan") if i == 9 and precision == "fp16" else x
            with accelerator.accumulate(model):
                loss = mse(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients and clip == "norm":
                    accelerator.clip_grad_norm_(model.parameters(), 0.3)
                if accelerator.sync_gradients and clip == "value":
                    accelerator.clip_grad_value_(model.parameters(), 0.01)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(loss)
    assert optimizer.step_was_skipped is False
    return model, optimizer.state_dict(), accelerator.scaler, losses


def test_the_wrapped_optimizer_of_accelerate_is_seen_through(accelerator):
    accelerator = accelerator("no")
    model, optimizer = accelerator.prepare(net(), torch.optim.AdamW(net().parameters(), lr=0.01))
    with pytest.raises(AmpError) as caught:
        amp.watch(model, optimizer, mode="strict")
    assert caught.value.rule == "DG401"


# ---------------------------------------------------------------- torchao and PEFT


LOW_BIT = [
    (name, dtype, rounding)
    for name in ("AdamW8bit", "AdamW4bit", "AdamWFp8", "Adam8bit", "Adam4bit", "_AdamW")
    for dtype, rounding in ((F32, False), (BF16, False), (BF16, True))
]


@slow
@pytest.mark.parametrize(("name", "dtype", "rounding"), LOW_BIT, ids=lambda value: str(value).replace("torch.", ""))
@pytest.mark.parametrize("rate", [0.05, 1e-3])
@silent
def test_low_bit_optimizers_of_torchao(watch, name, dtype, rounding, rate):
    import torchao.optim as low

    if not rounding and dtype is BF16 and rate < 0.01:
        rate = 0.02  # without rounding, smaller updates are lost
    model = nn.Sequential(nn.Linear(6, 128), nn.GELU(), nn.Linear(128, 128), nn.Linear(128, 3)).to(dtype)
    optimizer = getattr(low, name)(model.parameters(), lr=rate, bf16_stochastic_round=rounding)
    with torch.compiler.set_stance("force_eager"):
        _, _, losses = trained(watch, model, optimizer, batches(4 * STEPS, dtype))
    states = [{k: v for k, v in s.items() if type(v) is torch.Tensor} for s in optimizer.state.values()]
    return model, states, losses


LLAMA = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


@pytest.mark.thin(3)
@pytest.mark.parametrize("kept", [pytest.param([], marks=slow), ["lm_head"]], ids=["adapters", "a saved module too"])
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("groups", but(["all"], ["all", "trainable"]))
@silent
def test_float32_adapters_on_a_frozen_base(watch, dtype, groups, kept):
    """float16 with a scaler: the base is float16 and frozen, what is trained is float32."""
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA)).to(dtype)
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "v_proj"], modules_to_save=kept)
    model = peft.get_peft_model(model, config)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    parameters = [p for p in model.parameters() if p.requires_grad or groups == "all"]
    loop = Loop(model, torch.optim.AdamW(parameters, lr=0.01), GradScaler("cpu", enabled=dtype is F16))

    def iteration(loop):
        tokens = torch.randint(3, 32, (2, 8))
        with torch.autocast("cpu", F16 if dtype is F16 else BF16, enabled=dtype is not F32):
            loss = model(input_ids=tokens, labels=tokens).loss
        loop.losses.append(loss)
        loop.backward(loss.float())
        loop.clip()
        loop.finish()

    return loop.run(watch, iteration)


# ---------------------------------------------------------------- ranks


def of_rank(rank, steps=STEPS):
    return [(x[rank * 4 : rank * 4 + 4], y[rank * 4 : rank * 4 + 4]) for x, y in batches(steps, rows=8)]


BUCKETS = {
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "many buckets": {"bucket_cap_mb": 0.0001},
    "static": {"static_graph": True},
    "unused": {"find_unused_parameters": True},
}


def alike(program):
    """The same program on each rank, watched and not."""

    def seeded(watch):
        torch.manual_seed(1)
        return program(watch)

    twice(seeded)


CLIPS = {"norm": lambda model: clip_grad_norm_(model.parameters(), 0.3),
         "value": lambda model: clip_grad_value_(model.parameters(), 0.05)}  # fmt: skip


def stepped(clip="norm", bad=()):
    """An iteration; of bad ones the scaler skips the step."""

    def iteration(loop):
        loop.x = loop.x * float("nan") if loop.i in bad else loop.x
        loop.backward()
        if clip in CLIPS:
            loop.scaler.unscale_(loop.optimizer)
            CLIPS[clip](loop.model)
        loop.finish()

    return iteration


@pytest.mark.parametrize("name", but(["Adam"], ["SGD", "Adam", "fused Adam"]))
@pytest.mark.parametrize("clip", but(["norm"], ["norm", "value", "no"]))
@pytest.mark.parametrize("buckets", but(["plain", "views", "compressed"], [*BUCKETS, "compressed"]))
@on_ranks
def test_ddp_with_a_scaler(rank, buckets, clip, name):
    def program(watch):
        model = DistributedDataParallel(net(), **BUCKETS.get(buckets, {}))
        if buckets == "compressed":
            model.register_comm_hook(None, fp16_compress_hook)
        kind = getattr(torch.optim, name.split()[-1])
        optimizer = kind(model.parameters(), lr=0.01, fused=True if "fused" in name else None)
        return Loop(model, optimizer, GradScaler("cpu")).run(watch, stepped(clip, bad=[9]), of_rank(rank))

    alike(program)


@pytest.mark.thin(2)
@pytest.mark.parametrize("how", ["loss / n", "grad / n"])
@pytest.mark.parametrize("buckets", but(["views"], ["plain", "views"]))
@on_ranks
def test_ddp_accumulates_without_sync(rank, buckets, how):
    def program(watch):
        model, n = DistributedDataParallel(net(), **BUCKETS[buckets]), 3

        def iteration(loop):
            loss = loop.loss()
            with model.no_sync():
                for _ in range(n - 1):
                    loop.scaler.scale(loss / n if how == "loss / n" else loss).backward(retain_graph=True)
            loss = loop.loss()
            loop.backward(loss / n if how == "loss / n" else loss)
            if how == "grad / n":
                torch._foreach_div_(loop.gradients, n)
            loop.clip()
            loop.finish()

        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        return Loop(model, optimizer, GradScaler("cpu")).run(watch, iteration, of_rank(rank))

    alike(program)


@slow
@on_ranks
def test_gradients_that_are_reduced_by_hand(rank):
    def reduced(loop):
        loop.backward()
        for gradient in loop.gradients:
            dist.all_reduce(gradient)
            gradient.div_(dist.get_world_size())
        loop.finish()

    def program(watch):
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        return Loop(model, optimizer, GradScaler("cpu")).run(watch, reduced, of_rank(rank))

    alike(program)


@pytest.mark.parametrize("dtype", [None, BF16], ids=["float32", "bfloat16 autocast"])
@on_ranks
def test_ddp_without_a_scaler(rank, dtype):
    def program(watch):
        model = DistributedDataParallel(net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        loop = Loop(model, optimizer, GradScaler("cpu", enabled=False), dtype)
        return loop.run(watch, stepped(), of_rank(rank), told=False)

    alike(program)


def sharded(policy=None, dtype=F32):
    model = net(dtype, width=17)
    mesh = init_device_mesh("cpu", (2,))
    options = {"mp_policy": policy} if policy else {}
    for layer in (model[0], model[3]):
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def gathered(model, optimizer, *more):
    """Whole tensors, of parameters and of state."""

    def whole(value):
        return value.full_tensor() if isinstance(value, DTensor) else value

    states = [{key: whole(value) for key, value in state.items()} for state in optimizer.state.values()]
    return [whole(parameter) for parameter in model.parameters()], states, *more


POLICIES = {
    "float32": (None, F32),
    "bfloat16 compute": (MixedPrecisionPolicy(param_dtype=BF16), F32),
    "bfloat16 compute, float32 sums": (MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=F32), F32),
    "bfloat16": (None, BF16),
}


@slow
@pytest.mark.parametrize("name", but(["AdamW"], ["SGD", "AdamW"]))
@pytest.mark.parametrize("policy", but(["bfloat16 compute"], POLICIES))
@on_ranks
def test_fsdp2(rank, policy, name):
    def program(watch):
        policy_, dtype = POLICIES[policy]
        model = sharded(policy_, dtype)
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.05 if name != "SGD" or dtype is F32 else 0.2)
        data = [(x.to(dtype), y) for x, y in of_rank(rank)]
        return gathered(*trained(watch, model, optimizer, data))

    alike(program)


@on_ranks
def test_fsdp2_with_a_scaler(rank):
    def program(watch):
        model = sharded(MixedPrecisionPolicy(param_dtype=F16, reduce_dtype=F32))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        loop = Loop(model, optimizer, GradScaler("cpu"), None)
        return gathered(*loop.run(watch, stepped(bad=[9]), of_rank(rank)))

    alike(program)


@on_ranks
def test_fsdp1(rank):
    def clipped(loop):
        loop.loss().backward()
        loop.model.clip_grad_norm_(0.3)
        loop.optimizer.step()

    def program(watch):
        model = FullyShardedDataParallel(net(), use_orig_params=True, device_id=torch.device("cpu"))
        loop = Loop(model, torch.optim.AdamW(model.parameters(), lr=0.01), GradScaler("cpu", enabled=False), None)
        loop.run(watch, clipped, of_rank(rank), told=False)
        return [p.detach() for p in model.parameters()], loop.losses

    alike(program)


@slow
@pytest.mark.parametrize("scaled", [False, True], ids=["float32", "float16 and scaler"])
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # from the import of torch.distributed.optim
@on_ranks
def test_an_optimizer_whose_state_is_sharded(rank, scaled):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def program(watch):
        model = DistributedDataParallel(net())
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
        loop = Loop(model, optimizer, GradScaler("cpu", enabled=scaled), F16 if scaled else None)
        loop.run(watch, stepped(), of_rank(rank))
        return model, plain(list(optimizer.optim.state.values())), loop.losses

    alike(program)


@on_ranks
def test_on_ranks_a_fault_is_still_found(rank):
    torch.manual_seed(1)
    model = DistributedDataParallel(net())
    loop = Loop(model, torch.optim.AdamW(model.parameters(), lr=0.01), GradScaler("cpu"))
    with amp.watch(model, loop.optimizer, loop.scaler, mode="strict") as watch:
        loop.go(stepped("no"), of_rank(rank))
        assert watch.report() == []
        loop.backward()
        before = plain(dict(model.named_parameters()))
        with pytest.raises(AmpError) as caught:
            loop.optimizer.step()
    assert caught.value.rule == "DG312"
    assert same(before, plain(dict(model.named_parameters())))
