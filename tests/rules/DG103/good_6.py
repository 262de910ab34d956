"""Copies that are written to and read, and writes to what is no copy."""

import torch


class Pool:
    def keep(self, x):
        wide = x.float()
        wide.mul_(2)
        self.kept = wide

    def total(self, x):
        total = 0.0
        wide = None
        for row in x:
            if wide is not None:
                total += wide.sum().item()
            wide = row.float()
            wide.mul_(2)
        return total

    def seen(self, x):
        wide = x.float()
        array = wide.numpy()
        wide.mul_(2)
        return array

    def later(self, x):
        wide = x.float()
        wide.mul_(2)
        return lambda: wide

    def before(self, x):
        def shown():
            return wide

        wide = x.float()
        wide.mul_(2)
        return shown()

    def at_once(self, x):
        wide = x.float(); total = wide.sum()  # noqa: E702
        wide.mul_(2)
        return total

    def given(self, x):
        wide = x.float()
        return wide.mul_(2)

    def chained(self, x):
        wide = x.float()
        scaled = wide.mul_(2)
        return x.float().mul_(2).add(scaled)

    def itself(self, x):
        x = x.double() if x.is_complex() else x
        x.mul_(1)
        same = x.to(x.dtype)
        same.mul_(1)


x = torch.ones(3, 2).half()
pool = Pool()
pool.keep(x), pool.itself(x)
print(pool.kept, pool.total(x), pool.seen(x), pool.later(x)(), pool.given(x), pool.chained(x))
print(pool.before(x), pool.at_once(x))
