import torch

torch.manual_seed(9)
corner, size = torch.rand(40, 2) * 500, torch.rand(40, 2) * 80 + 30
corner[23, 0], size[23] = 5801.3, torch.tensor([3.1, 6.0])
truth = torch.cat([corner, corner + size], 1)
boxes = torch.cat([corner + 0.1, corner + size + 0.1], 1).half()


def area(box):
    return (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])


def overlap(one, other):
    sides = torch.minimum(one[:, 2:], other[:, 2:]) - torch.maximum(one[:, :2], other[:, :2])
    shared = sides.clamp(min=0).prod(1)
    return shared / (area(one) + area(other) - shared)  # expect: DG902 "`shared / (area(one) + area(other) - shared)`: an error of 0.29 % comes in, 32 % goes out: 0.59 where float64 has 0.9076; it reaches a number that the program reads; rounded in float16: torch.cat([corner + 0.1, corner + size + 0.1], 1).half() at program.py:7, in <module>"


print(overlap(boxes.float(), truth)[23].item())
