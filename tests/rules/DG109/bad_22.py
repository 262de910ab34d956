import torch

torch.manual_seed(0)
rewards = torch.zeros(6, 4, dtype=torch.uint8)
for step in range(6):
    rewards[step] = torch.randint(-1, 2, (4,), dtype=torch.int8)  # expect: DG109 "`rewards[step] = torch.randint(-1, 2, (4,), dtype=torch.int8)`: 2 of 4 values are outside of 0 to 255 and wrap around"
total = torch.zeros(4)
for reward in rewards:
    total = reward + 0.97 * total
print(total.mean())
# fix: create the target with `dtype=torch.int8`, which has them all
