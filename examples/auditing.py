"""A training program with four dtype mistakes, audited; then the mended program, whose report is clean.

Handwritten digits, float16 autocast with a GradScaler, and bfloat16 when it is done. The program with the mistakes runs
to its end, and PyTorch says nothing. The audit names the line of each, and what to write there instead.

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
IMAGES = torch.from_numpy(DIGITS.data / 16).float()  # NumPy divides in float64; a cast that is kept is no mistake
LABELS = torch.from_numpy(DIGITS.target)
FREQUENCIES = np.bincount(DIGITS.target) / len(DIGITS.target)


class Net(nn.Module):
    """Its scores start from how frequent each digit is."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)  # the same network each time, and the same order of batches after it
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.prior = torch.tensor(np.log(FREQUENCIES), dtype=torch.float32)  # mistake: `.to()` will not reach it

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) + self.prior


class MendedNet(Net):
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
    weights = torch.from_numpy(1 / FREQUENCIES)  # mistake: float64, and so is the loss that it multiplies
    train(model, weights, unscale=False)  # mistake: what is clipped is still multiplied by the scale
    model.to(torch.bfloat16)
    model.prior.to(torch.bfloat16)  # mistake: this gives a new tensor, which nobody keeps
    return scores(model)


def mended() -> Tensor:
    model = MendedNet()
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
    print(f"PyTorch alone says nothing: accuracy {accuracy(alone):.1%}, scores in {alone.dtype}\n")

    report = dtypeguard.audit(flawed)
    print(report)
    assert torch.equal(report.result, alone)  # an audit changes nothing that the program computes
    bad = {finding.rule: finding for finding in report.findings if finding.severity != "info"}
    assert bad.keys() == {"DG101", "DG102", "DG103", "DG309", "DG503"}
    assert bad["DG101"].origin[0].startswith("torch.from_numpy(1 / FREQUENCIES)")
    assert bad["DG103"].source.startswith("model.prior.to(torch.bfloat16)")
    assert bad["DG309"].source.startswith("nn.utils.clip_grad_norm_(")
    assert bad["DG102"].source == "return self.layers(x) + self.prior"  # what came of the attribute

    with tempfile.TemporaryDirectory() as folder:
        report.to_json(data := Path(folder, "report.json"))
        report.to_html(page := Path(folder, "report.html"))
        assert {row["rule"] for row in json.loads(data.read_text())["findings"]} >= bad.keys()
        assert "discarded-cast" in page.read_text(encoding="utf-8")
        print(f"\n{data.name}: {data.stat().st_size:,} bytes; {page.name}: {page.stat().st_size:,} bytes\n")

    report = dtypeguard.audit(mended)
    print(report)
    report.assert_clean()
    assert report.result.dtype is torch.bfloat16
    assert accuracy(report.result) > 0.85
    print(f"\nThe mended program: nothing to mend, accuracy {accuracy(report.result):.1%}, in {report.result.dtype}")


if __name__ == "__main__":
    main()
