"""A right training loop in mixed precision, and three mistakes in it for which PyTorch raises no error.

A small convnet learns handwritten digits with float16 autocast, a GradScaler, two micro-batches for each step, and
gradient clipping. Each mistake is one line. Each loop runs twice: with PyTorch alone, to see what the mistake costs,
and under `dtypeguard.amp.watch`, to see when it is found. Every claim is asserted.

Run it with `python examples/mixed_precision.py`. It needs scikit-learn, which brings the data, and takes a few seconds
on one CPU core.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, AdamW, Optimizer

import dtypeguard

EPOCHS, BATCH, MICRO = 3, 50, 25
TRAINED = 1400  # images to train on; the others are for the test
CHANCE = 0.25  # the accuracy of a network that learned nothing is below this


def load() -> tuple[Tensor, Tensor]:
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images = torch.from_numpy(digits.images).float()[:, None] / 16  # one channel, values between 0 and 1
    return images[order], torch.from_numpy(digits.target)[order]


IMAGES, LABELS = load()


def build() -> nn.Sequential:
    """The same network each time; the random order of batches after it is the same too."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, kernel_size=3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )  # fmt: skip


def train(model: nn.Module, optimizer: Optimizer, scaler: GradScaler, *, clip_too_early: bool = False) -> int:
    """Train, and return the number of steps."""
    steps = 0
    for _ in range(EPOCHS):
        for batch in torch.randperm(TRAINED).split(BATCH):
            for part in batch.split(MICRO):
                with torch.autocast("cpu", dtype=torch.float16, enabled=scaler.is_enabled()):
                    logits = model(IMAGES[part].to(dtype_of(model)))
                loss = F.cross_entropy(logits.float(), LABELS[part]) * (MICRO / BATCH)
                scaler.scale(loss).backward()
            if clip_too_early:
                clip_grad_norm_(model.parameters(), 1.0)  # the gradients are still multiplied by 65536
            scaler.unscale_(optimizer)
            if not clip_too_early:
                clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            steps += 1
    return steps


def dtype_of(model: nn.Module) -> torch.dtype:
    """The dtype of the images: that of the parameters. Under autocast both are float32."""
    return next(model.parameters()).dtype


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    predicted = model(IMAGES[TRAINED:].to(dtype_of(model))).argmax(dim=1)
    return (predicted == LABELS[TRAINED:]).double().mean().item()


def heading(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


@contextmanager
def found(rule: str) -> Iterator[None]:
    """Print the error that the block must raise."""
    try:
        yield
    except dtypeguard.AmpError as error:
        if error.rule != rule:
            raise
        print(f"dtypeguard  strict: AmpError: {error}")
    else:
        raise AssertionError(f"this should have raised {rule}")


def right() -> float:
    heading("1. The loop as it should be, under a strict watch")
    model = build()
    optimizer = SGD(model.parameters(), lr=0.2, momentum=0.9)
    scaler = GradScaler("cpu")
    with dtypeguard.amp.watch(model, optimizer, scaler, mode="strict") as watch:
        steps = train(model, optimizer, scaler)
    assert watch.report() == []
    score = accuracy(model)
    assert score > 0.85

    alone = build()
    train(alone, SGD(alone.parameters(), lr=0.2, momentum=0.9), GradScaler("cpu"))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), alone.parameters(), strict=True))
    print(f"{steps} steps, test accuracy {score:.1%}, nothing found")
    print("trained without the watch, the parameters are the same to the last bit")
    return score


def clipped_too_early(good: float) -> None:
    heading("2. Gradients are clipped before `unscale_`")
    model = build()
    train(model, SGD(model.parameters(), lr=0.2, momentum=0.9), GradScaler("cpu"), clip_too_early=True)
    score = accuracy(model)
    assert score < CHANCE
    print(f"PyTorch     no error, no warning: test accuracy {score:.1%} instead of {good:.1%}")

    model = build()
    optimizer, scaler = SGD(model.parameters(), lr=0.2, momentum=0.9), GradScaler("cpu")
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with found("DG309"), dtypeguard.amp.watch(model, optimizer, scaler, mode="strict"):
        train(model, optimizer, scaler, clip_too_early=True)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    print("            before the first step: the parameters are still what they were")


def head_replaced(good: float) -> None:
    heading("3. A layer is replaced after the optimizer was built")

    def prepare() -> tuple[nn.Sequential, Optimizer]:
        model = build()
        optimizer = SGD(model.parameters(), lr=0.2, momentum=0.9)
        model[-1] = nn.Linear(32 * 4 * 4, 10)  # a new head, which the optimizer does not have
        return model, optimizer

    model, optimizer = prepare()
    head = model[-1].weight.detach().clone()
    train(model, optimizer, GradScaler("cpu"))
    score = accuracy(model)
    assert torch.equal(model[-1].weight, head)
    assert score < good - 0.1
    print(f"PyTorch     no error, no warning: the head never moves, test accuracy {score:.1%} instead of {good:.1%}")

    model, optimizer = prepare()
    scaler = GradScaler("cpu")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", dtypeguard.AmpWarning)
        watch = dtypeguard.amp.watch(model, optimizer, scaler, mode="lenient")
    assert len(said) == 1
    print(f"dtypeguard  lenient, before the first batch: AmpWarning: {said[0].message}")
    with watch:
        train(model, optimizer, scaler)  # training continues, without a second warning
    (finding,) = watch.report()
    assert (finding.rule, finding.parameters) == ("DG401", ("6.weight", "6.bias"))
    print(f"dtypeguard  and at the end the report has {finding.rule}, seen {finding.count} times")


def updates_lost() -> None:
    heading("4. A trained model is refined with bfloat16 parameters")
    trained = build()
    train(trained, AdamW(trained.parameters(), lr=1e-2), GradScaler("cpu"))

    def refine(dtype: torch.dtype) -> tuple[nn.Sequential, Optimizer, GradScaler]:
        model = build()
        model.load_state_dict(trained.state_dict())
        model.to(dtype)
        return model, AdamW(model.parameters(), lr=1e-5, weight_decay=0), GradScaler("cpu", enabled=False)

    shares = {}
    for dtype in (torch.float32, torch.bfloat16):
        model, optimizer, scaler = refine(dtype)
        before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        steps = train(model, optimizer, scaler)
        after = nn.utils.parameters_to_vector(model.parameters())
        shares[dtype] = (before != after).double().mean().item()
    wide, narrow = shares[torch.float32], shares[torch.bfloat16]
    assert narrow < wide / 10
    print(f"PyTorch     no error, no warning: {steps} steps move {narrow:.1%} of the weights; in float32, {wide:.1%}")

    model, optimizer, scaler = refine(torch.bfloat16)
    with found("DG406"), dtypeguard.amp.watch(model, optimizer, scaler, mode="strict"):
        train(model, optimizer, scaler)


def main() -> None:
    torch.set_num_threads(1)  # the tensors are small: one thread is as fast, and a busy second core does no harm
    good = right()
    clipped_too_early(good)
    head_replaced(good)
    updates_lost()


if __name__ == "__main__":
    main()
