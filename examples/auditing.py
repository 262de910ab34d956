"""Audit a training program with four dtype mistakes, and then the fixed program, whose report is clean.

The program trains on handwritten digits under float16 autocast with a GradScaler, and then converts the model to
bfloat16. The program with the mistakes runs to its end, and PyTorch raises no error. The audit names the line of each
mistake, and says what to write instead.

Run it with `python examples/auditing.py`. It needs scikit-learn, which brings the data, and takes a few seconds.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import dtypeguard

TRAINED, BATCH, EPOCHS = 1400, 50, 3
DIGITS = load_digits()
IMAGES = torch.from_numpy(DIGITS.data / 16).float()  # NumPy divides in float64; a cast that is used is no mistake
LABELS = torch.from_numpy(DIGITS.target)
FREQUENCIES = np.bincount(DIGITS.target) / len(DIGITS.target)


class Net(nn.Module):
    """A network that adds the log frequency of each digit to its scores."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)  # the same network each time, and the same order of batches after it
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.prior = torch.tensor(np.log(FREQUENCIES), dtype=torch.float32)  # mistake: `.to()` does not convert it

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) + self.prior


class FixedNet(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("prior", vars(self).pop("prior"))


def train(model: nn.Module, weights: Tensor, *, unscale: bool) -> None:
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=1e-2), torch.amp.GradScaler("cpu")
    for _ in range(EPOCHS):
        for batch in torch.randperm(TRAINED).split(BATCH):
            with torch.autocast("cpu", dtype=torch.float16):
                logits = model(IMAGES[batch])
                losses = F.cross_entropy(logits, LABELS[batch], reduction="none")
            loss = (losses * weights[LABELS[batch]]).mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            if unscale:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            scaler.step(optimizer)
            scaler.update()


def flawed() -> Tensor:
    model = Net()
    weights = torch.from_numpy(1 / FREQUENCIES)  # mistake: it is float64, and makes the loss float64
    train(model, weights, unscale=False)  # mistake: the clipped gradients are still multiplied by the scale
    model.to(torch.bfloat16)
    model.prior.to(torch.bfloat16)  # mistake: the result is thrown away
    return scores(model)


def fixed() -> Tensor:
    model = FixedNet()
    train(model, torch.from_numpy(1 / FREQUENCIES).float(), unscale=True)
    model.to(torch.bfloat16)
    return scores(model)


@torch.no_grad()
def scores(model: nn.Module) -> Tensor:
    return model(IMAGES[TRAINED:].to(torch.bfloat16))


def accuracy(scores: Tensor) -> float:
    return (scores.argmax(dim=1) == LABELS[TRAINED:]).double().mean().item()


def main() -> None:
    torch.set_num_threads(1)  # the tensors are small: more threads gain nothing
    alone = flawed()
    print(f"PyTorch alone, without an error: accuracy {accuracy(alone):.1%}, scores in {alone.dtype}\n")

    report = dtypeguard.audit(flawed)
    print(report)
    assert torch.equal(report.result, alone)  # an audit does not change what the program computes
    bad = {finding.rule: finding for finding in report.findings if finding.severity != "info"}
    assert bad.keys() == {"DG101", "DG102", "DG103", "DG309", "DG503"}
    assert bad["DG101"].origin[0].startswith("torch.from_numpy(1 / FREQUENCIES)")
    assert bad["DG103"].source.startswith("model.prior.to(torch.bfloat16)")
    assert bad["DG309"].source.startswith("nn.utils.clip_grad_norm_(")
    assert bad["DG102"].source == "return self.layers(x) + self.prior"  # the effect of the attribute

    with tempfile.TemporaryDirectory() as folder:
        report.to_json(data := Path(folder, "report.json"))
        report.to_html(page := Path(folder, "report.html"))
        assert {row["rule"] for row in json.loads(data.read_text())["findings"]} >= bad.keys()
        assert "discarded-cast" in page.read_text(encoding="utf-8")
        print(f"\n{data.name}: {data.stat().st_size:,} bytes; {page.name}: {page.stat().st_size:,} bytes\n")

    report = dtypeguard.audit(fixed)
    print(report)
    report.assert_clean()
    assert report.result.dtype is torch.bfloat16
    assert accuracy(report.result) > 0.85
    print(f"\nThe fixed program: nothing to fix, accuracy {accuracy(report.result):.1%}, in {report.result.dtype}")


if __name__ == "__main__":
    main()
