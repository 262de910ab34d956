import torch

torch.manual_seed(0)
self_energy = torch.tensor([-38.08316, -54.70775, -75.19446])[torch.randint(3, (90,))].sum()


def total(atomic):
    return atomic + self_energy


energies = total(0.0002 * torch.rand(20))
relative = (energies - energies.min()) * 627.5  # expect: DG902 "`energies - energies.min()`: an error of 6e-06 % comes in, 178 % goes out: 0 where float64 has 0.000193; it reaches values that the program reads; rounded in float32: atomic + self_energy at program.py:8, in total"
print([round(value, 6) for value in relative.tolist()])
