import torch

scores = torch.linspace(0.02, 0.97, 12)  # probabilities, of which no label was made
target = torch.tensor([0, 1] * 6)
correct = (scores == target).sum()  # expect: DG117 "`scores == target` compares float32 with int64: 12 of 12 values have a fraction, which no integer equals"
print(correct.item() / len(target))
# fix: make a decision first: `scores >= 0.5`; of floats that should be equal ask `torch.isclose`
