import torch


def area_of(polygon):
    x, y = polygon.unbind(1)
    return 0.5 * (x * y.roll(-1) - x.roll(-1) * y).sum().abs()  # expect: DG902 "`(x * y.roll(-1) - x.roll(-1) * y).sum()`: an error of 0.31 % comes in, more than 1000 % goes out: 262144 where float64 has 2454; it reaches a number that the program reads; rounded in float32: x * y.roll(-1) at program.py:6, in area_of"


corners = [[500_012.37, 5_300_041.12], [499_991.82, 5_300_066.40], [499_970.05, 5_300_030.91], [499_993.28, 5_300_008.76]]
area = area_of(torch.tensor(corners))
print(f"{area.item():.1f} m2")
