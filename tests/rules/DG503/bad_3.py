import torch
from torch import nn


class Spectrogram(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.windows = {"hann": torch.hann_window(8)}

    def forward(self, x):
        return self.fc(x * self.windows["hann"])


def size(model):
    model.to("meta")  # expect: DG503 "attribute `windows['hann']` of Spectrogram: a plain tensor, which `.to('meta')` left on cpu"
    return sum(parameter.nbytes for parameter in model.parameters())


print(size(Spectrogram()))
