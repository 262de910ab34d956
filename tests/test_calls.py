"""One batch, read in one way: by `compare`, `dryrun`, `check_module` and `diff`."""

import collections

import pytest
import torch
from torch import nn

import dtypeguard
from dtypeguard import testing

Pair = collections.namedtuple("Pair", "a b")
X = torch.ones(2, 4)
IDS = torch.tensor([[1, 2]])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layer = nn.Embedding(5, 4), nn.Linear(4, 2)


class Tokens(Net):
    def forward(self, input_ids, scale=None):
        assert scale is None
        return self.layer(self.embed(input_ids))


class Two(Net):
    def forward(self, a, b):
        return self.layer(a) + self.layer(b)


class OneDict(Net):
    def forward(self, batch):
        return self.layer(batch["x"])


class OnePair(Net):
    def forward(self, pair):
        return self.layer(pair[0]) + self.layer(pair[1])


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(4, 2)

    def forward(self, rows):
        return self.rnn(rows)[1]


class Labelled(torch.Tensor):
    """A subclass as PyTorch's notes have it, which torch refuses to call where a dispatch mode is on."""


class Labels(Net):
    def forward(self, x):
        return (Labelled([2.0, 3.0]) * Labelled(self.layer(x))).as_subclass(torch.Tensor)


READERS = {
    "compare": lambda model, batch: dtypeguard.compare(model, batch, dtype="bfloat16"),
    "dryrun": lambda model, batch: dtypeguard.dryrun(model, batch, dtype="float32", region=None),
    "check_module": lambda model, batch: testing.check_module(
        lambda: model, batch, dtype=[torch.float32], max_examples=1
    ),
}
FITS = {
    "tensor": (Tokens, IDS),
    "tuple": (Two, (X, X)),
    "dict": (Tokens, {"input_ids": IDS}),
    "mapping": (Tokens, collections.UserDict(input_ids=IDS)),
    "one dict": (OneDict, ({"x": X},)),
    "one tuple": (OnePair, ((X, X),)),
    "named tuple": (OnePair, Pair(X, X)),
    "a subclass in forward": (Labels, X),
    "packed sequence": (Packed, nn.utils.rnn.pack_sequence([X])),
}
MISREAD = {
    "dict": (OneDict, {"x": X}, "a dict is read as keyword arguments: where it is one argument, write ({...},)"),
    "tuple": (OnePair, (X, X), "a tuple is read as positional arguments: where it is one argument, write ((...,),)"),
    "named tuple": (Two, Pair(X, X), "a named tuple is read as one argument: where it holds several, write tuple(...)"),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize(("kind", "batch"), FITS.values(), ids=FITS)
def test_a_batch_is_read_alike_everywhere(read, kind, batch):
    read(kind(), batch)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize(("kind", "batch", "advice"), MISREAD.values(), ids=MISREAD)
def test_a_batch_that_does_not_fit_is_told_how_it_was_read(read, kind, batch, advice):
    with pytest.raises(TypeError) as error:
        read(kind(), batch)
    assert str(error.value).split("; ", 1)[1].partition("\n")[0] == advice


RUNNERS = {name: read for name, read in READERS.items() if name != "dryrun"} | {
    "diff": lambda model, batch: dtypeguard.diff(model, model, batch),
    "capture": lambda model, batch: dtypeguard.capture(model, batch, "never.safetensors"),
}


@pytest.mark.parametrize("run", RUNNERS.values(), ids=RUNNERS)
def test_a_batch_without_values_is_refused_by_what_runs_the_model(run):
    with pytest.raises(dtypeguard.DeviceError, match=r"argument .* is on meta, and has no values: create it"):
        run(Two(), (X, X.to("meta")))
