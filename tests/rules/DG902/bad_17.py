import torch

time, steps = torch.zeros(1).half(), 0
while time.item() < 1.0:
    time = time + 1e-3  # expect: DG902 "`time + 1e-3`: an error of 0.049 % comes in, 2.1 % goes out: 0.9707 where float32 has 0.992; it reaches a number that the program reads"
    steps += 1
print(steps)
