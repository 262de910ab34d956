"""Train on handwritten digits: float64 data from NumPy, and a float32 model.

Run it with `make demo`, or `python examples/digits.py`. It needs scikit-learn (which brings the data) and tqdm,
and takes a few seconds on two CPU cores.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, Int64
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from tqdm import tqdm

import dtypeguard

EPOCHS = 12
BATCH = 64


class DigitNet(nn.Module):
    """A small convnet. `Float` in its forward means the dtype of its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=3, padding=1)
        self.head = nn.Linear(32 * 4 * 4, 10)

    @dtypeguard.enforce
    def forward(self, x: Float[Tensor, "batch 1 8 8"]) -> Float[Tensor, "batch 10"]:
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.head(x.flatten(1))


@dtypeguard.enforce
def digit_loss(logits: Float32[Tensor, "batch 10"], labels: Int64[Tensor, "batch"]) -> Float32[Tensor, ""]:
    """`Float32` means float32. In a plain function that is so under autocast too."""
    return F.cross_entropy(logits, labels)


def heading(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


@contextmanager
def lenient() -> Iterator[list[warnings.WarningMessage]]:
    """Lenient mode, the default, with its warnings collected. Other warnings are not changed."""
    dtypeguard.reset_casts()  # each repair warns once; after this it warns again
    with warnings.catch_warnings(record=True) as caught, dtypeguard.mode("lenient"):
        warnings.simplefilter("always", dtypeguard.CastWarning)
        yield caught


@contextmanager
def shown(kind: type[Exception]) -> Iterator[None]:
    """Print the error that the block must raise."""
    try:
        yield
    except kind as error:
        print(f"{type(error).__name__}: {error}\n")
    else:
        raise AssertionError(f"this should have raised {kind.__name__}")


def load() -> list[Tensor]:
    """Training and test images, training and test labels, as NumPy gives them: float64 and int64."""
    digits = load_digits()
    images = digits.images[:, None] / 16.0  # one channel, values between 0 and 1
    arrays = train_test_split(images, digits.target, test_size=0.25, random_state=0)
    return [torch.from_numpy(array) for array in arrays]


def train(model: DigitNet, images: Tensor, labels: Tensor) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    bar = tqdm(range(EPOCHS), desc="training", unit="epoch")
    for _ in bar:
        for batch in torch.randperm(len(images)).split(BATCH):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(images[batch])
                loss = digit_loss(logits, labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        bar.set_postfix(loss=f"{loss.item():.3f}")


@torch.no_grad()
def accuracy(model: DigitNet, images: Tensor, labels: Tensor) -> float:
    predicted = model(images).argmax(dim=1)
    return (predicted == labels).double().mean().item()


def print_casts() -> None:
    """Print `dtypeguard.casts()` as a table: what was repaired, how often, and where."""
    row = "{:<17} {:<9} {:<20} {:>6} {:>8}  {}".format
    print(row("function", "argument", "cast", "times", "MB", "called at"))
    for cast in dtypeguard.casts():
        dtypes = f"{cast.from_dtype} > {cast.to_dtype}".replace("torch.", "")
        print(row(cast.function, cast.argument, dtypes, cast.count, f"{cast.bytes / 1e6:.2f}", cast.site))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the tensors are small: one thread is as fast, and a busy second core does no harm
    train_images, test_images, train_labels, test_labels = load()
    model = DigitNet()
    print(f"{len(train_images)} training images, {train_images.dtype}; the model's weights, {model.conv1.weight.dtype}")

    heading("1. PyTorch alone")
    with shown(RuntimeError), dtypeguard.mode("off"):  # nothing is checked: this is what plain PyTorch does
        model(train_images)
    print("Which argument? Of which function? Which of the two dtypes is the model's?")

    heading("2. Strict mode: the same call, explained")
    with shown(dtypeguard.DtypeError), dtypeguard.mode("strict"):
        model(train_images)

    heading("3. Lenient mode, the default: trained under bfloat16 autocast")
    with lenient() as caught:
        train(model, train_images, train_labels)
        score = accuracy(model, test_images, test_labels)
    print(f"test accuracy {score:.1%} on {len(test_images)} images\n")
    assert score > 0.95, "the model should have learned the digits"
    print_casts()
    print("\nThe images are float64. The logits are bfloat16 after autocast, and the loss expects float32.")
    print("Each repair warned once, with a CastWarning:")
    for warning in caught:
        print(f"  {warning.message}")

    heading("4. torch.compile")
    graphs = []

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    with lenient(), torch.no_grad():
        eager = model(test_images)
        compiled = torch.compile(model, fullgraph=True, backend=count)(test_images)
    assert len(graphs) == 1
    assert torch.equal(compiled, eager)
    print("one graph, with fullgraph=True, with the cast in it; the result is equal to that of eager mode")

    heading("5. A model without annotations: guard")
    mlp = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    dtypeguard.guard(mlp, mode="strict")
    with shown(dtypeguard.DtypeError):
        mlp(test_images)

    dtypeguard.guard(mlp, mode="lenient")
    with lenient() as caught:
        output = mlp(test_images)
    assert output.dtype is torch.float32
    print(f"lenient: the output is {output.dtype}, with one warning:\n  {caught[0].message}\n")

    dtypeguard.unguard(mlp)
    print("after unguard, PyTorch alone again:")
    with shown(RuntimeError):
        mlp(test_images)


if __name__ == "__main__":
    main()
