import torch
from torch import nn


def labels_of(predictions, threshold=0.5):
    if predictions.dtype == torch.float32:  # half predictions stay as they are
        predictions = (predictions >= threshold).int()
    return predictions


torch.manual_seed(0)
model = nn.Linear(4, 1).half()
predictions = model(torch.randn(32, 4).half()).squeeze(-1).sigmoid()
target = torch.randint(0, 2, (32,))
wrong = labels_of(predictions) != target  # expect: DG117 "`labels_of(predictions) != target` compares float16 with int64: 32 of 32 values have a fraction, which no integer equals"
print(wrong.float().mean())
