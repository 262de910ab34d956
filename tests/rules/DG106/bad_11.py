import torch

labels = torch.tensor([0, 2, 1, 1])
counts = [400, 60, 20]
weights = labels.new_tensor([160 / count for count in counts])  # expect: DG106 "`labels.new_tensor([160 / count for count in counts])` writes numbers into int64: 2 of 3 lose their fraction"
print(weights[labels])
# fix: keep them floats, or, where whole numbers are meant, `.round().to(torch.int64)`
