"""Edits: small programs, what is written for them, and what is never written."""

import pytest
from mending import Mended

IMPORTS = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"

# The program, and the line that an edit writes.
WRITTEN = {
    "the dtype of what a table is added to, not of ids": (
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.emb = nn.Embedding(9, 4)\n        self.q = nn.Linear(4, 4)\n\n"
        "    def forward(self, ids):\n        h = self.emb(ids)\n"
        "        pos = torch.linspace(0, 1, 6)[:, None]\n        return self.q(h + pos)\n\n"
        "torch.manual_seed(0)\nprint(Net().bfloat16()(torch.arange(6)).float().std().item() > 0)",
        "        pos = torch.linspace(0, 1, 6, dtype=h.dtype)[:, None]",
    ),
    "the dtype of the other factor": (
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.q = nn.Linear(4, 4)\n\n"
        "    def forward(self, x):\n        s = (self.q(x) @ x.mT).float()\n        return s.softmax(-1) @ x\n\n"
        "torch.manual_seed(0)\nprint(Net().bfloat16()(torch.rand(6, 4).bfloat16()).float().std().item() > 0)",
        "        return s.softmax(-1).to(x.dtype) @ x",
    ),
    "a mask of floats that hides": (
        "scores, hidden = torch.randn(1, 3), torch.tensor([[0.0, 0.0, 1.0]]).double()\n"
        "print(scores.masked_fill(hidden, -1e4).argmax().item() < 2)",
        "print(scores.masked_fill(hidden.bool(), -1e4).argmax().item() < 2)",
    ),
    "a function that knows no bfloat16": (
        "x = torch.randn(3, 4).bfloat16()\npairs = torch.view_as_complex(x.view(3, 2, 2))",
        "pairs = torch.view_as_complex(x.view(3, 2, 2).float())",
    ),
    "and what goes on with its result": (
        "w = nn.Linear(3, 3).bfloat16().weight\ny = torch.randn(2, 3).bfloat16() @ w.inverse()",
        "y = torch.randn(2, 3).bfloat16() @ w.float().inverse().bfloat16()",
    ),
    "a table in a method, whose object has another name": (
        "class Head(nn.Module):\n    def __init__(s):\n        super().__init__()\n        s.a = s.b = nn.Linear(4, 4)"
        "\n\n    def forward(s, x):\n        h = s.a(x)\n        h = h + torch.linspace(0, 1, 4)\n        return s.b(h)"
        "\n\n\nprint(Head().half()(torch.rand(2, 4).half()))",
        "        h = h + torch.linspace(0, 1, 4, dtype=h.dtype)",
    ),
    "a parameter that is given float32 in a method": (
        "class Head(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.w = nn.Parameter(torch.ones(4, 2))\n\n"
        "    def forward(self, x):\n        h = x.float().softmax(-1)\n"
        "        return h @ self.w\n\n\nprint(Head().half()(torch.rand(2, 4).half()))",
        "        return h.to(self.w.dtype) @ self.w",
    ),
    "a layer that is given float32 in a method": (
        "class Head(nn.Module):\n    def __init__(s):\n        super().__init__()\n        s.b = nn.Linear(4, 2)"
        "\n\n    def forward(s, x):\n        h = x.float().softmax(-1)\n        return s.b(h)"
        "\n\n\nprint(Head().half()(torch.rand(2, 4).half()))",
        "        return s.b(h.to(s.b.weight.dtype))",
    ),
    "a count in uint8 of a number": (
        "seen = torch.zeros((), dtype=torch.uint8)\nfor _ in range(20):\n    seen += 16\nprint(seen)",
        "seen = torch.zeros((), dtype=torch.int64)",
    ),
    "a count in uint8": (
        "seen, x = torch.zeros((), dtype=torch.uint8), torch.ones(16)\n"
        "for _ in range(20):\n    seen += x.shape[0]\nprint(seen)",
        "seen, x = torch.zeros((), dtype=torch.int64), torch.ones(16)",
    ),
    "a table of NumPy's in a function": (
        "import numpy as np\n\n\ndef scaled(x, lin):\n    table = torch.from_numpy(np.ones(4, dtype=np.float32))\n"
        "    return lin(x * table)\n\n\nprint(scaled(torch.rand(2, 4).half(), nn.Linear(4, 4).half()))",
        "    table = torch.from_numpy(np.ones(4, dtype=np.float32)).to(x.dtype)",
    ),
    "two calls on one line": (
        "def inside(at, end):\n    return at.clamp_(0, end[0] - 1), at.clamp_(0, end[1] - 1)\n\n"
        "places = inside(torch.arange(3), torch.tensor([2.0, 3.0]))",
        "    return at.clamp_(0, (end[0] - 1).long()), at.clamp_(0, (end[1] - 1).long())",
    ),
    "an integer tensor that takes a fraction": (
        "lengths = torch.ones(2, 3).long().sum(1)\nlengths += 1e-4\nprint(1 / lengths)",
        "lengths = lengths + 1e-4",
    ),
    "a sum of pixels": (
        "image = torch.tensor([200, 100], dtype=torch.uint8)\nbright = image + image\nprint(bright)",
        "bright = (image.int() + image).clamp(0, 255).to(torch.uint8)",
    ),
    "a mask that was inverted before it became floats": (
        "attention, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(1, 3, 8)\n"
        "mask = ~torch.ones(3, 3).tril().bool()\nmask = mask.float()\nout, _ = attention(x, x, x, attn_mask=mask)",
        "out, _ = attention(x, x, x, attn_mask=mask.bool())",
    ),
    "an optimizer of which nothing is known": (
        "def train(model, optimizer):\n    scaler = torch.amp.GradScaler('cpu', init_scale=8.0)\n"
        "    scaler.scale(model(torch.ones(2, 4)).square().mean()).backward()\n    optimizer.step()\n\n\n"
        "model = nn.Linear(4, 1)\ngiven = model, torch.optim.SGD(model.parameters(), 0.1)\ntrain(*given)",
        "    scaler.step(optimizer)",
    ),
    "an update that is skipped with the step": (
        "model = nn.Linear(2, 1)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "scaler = torch.amp.GradScaler('cpu', init_scale=8.0)\nfor size in (1.0, 1e4, 1.0):\n"
        "    scaler.scale(model(size * torch.ones(3, 2)).square().mean()).backward()\n    scaler.unscale_(optimizer)\n"
        "    if nn.utils.clip_grad_norm_(model.parameters(), 1.0) < 1e5:\n        scaler.step(optimizer)\n"
        "        scaler.update()\n    optimizer.zero_grad()",
        "    scaler.update()",
    ),
    "a snapshot of what is trained": (
        "torch.manual_seed(0)\nmodel = nn.Linear(32, 32)\n"
        "first = {k: v.bfloat16() for k, v in model.state_dict().items()}\n"
        "for p in model.parameters():\n    p.data += 1e-4 * torch.randn_like(p)\n"
        "moved = sum((v - first[k]).square().sum() for k, v in model.state_dict().items())\nprint(moved.sqrt().item())",
        "first = {k: v.clone() for k, v in model.state_dict().items()}",
    ),
    "a dtype that other callers choose": (
        "def total(values, dtype):\n    out = torch.zeros((), dtype=dtype)\n    for value in values:\n"
        "        out += value\n    return out.item()\n\n\nprint(total([1.0] * 1000, torch.bfloat16))\n"
        "print(total([1_720_000_001.0] * 3, torch.float64))",
        "    out = torch.zeros((), dtype=torch.promote_types(dtype, torch.float32))",
    ),
    "a conversion that moves to a device": (
        "device = 'cpu'\nx = (torch.arange(64.0) / 64 + 100).to(device, torch.bfloat16)\n"
        "mean = x.mean()\nvariance = (x * x).mean() - mean * mean\nprint(variance.sqrt().item())",
        "x = (torch.arange(64.0) / 64 + 100).to(device)",
    ),
    "two sums that overflow on one line": (
        "prob = torch.full((16, 8192), 0.9).half()\ntotal = (prob * prob).sum() + (prob + prob).sum()\n"
        "print(total.item())",
        "total = (prob.float() * prob.float()).sum() + (prob.float() + prob.float()).sum()",
    ),
    "two losses in half on one line": (
        "model, scaler = nn.Linear(2, 1).half(), torch.amp.GradScaler('cpu', init_scale=8.0)\n"
        "def criterion(logits, real):\n    p = logits.sigmoid()\n    return -(p if real else 1 - p).log().mean()\n\n\n"
        "x = torch.ones(3, 2).half()\nloss = criterion(model(x), True) + criterion(model(-x), False)\n"
        "scaler.scale(loss).backward()",
        "loss = criterion(model(x).float(), True) + criterion(model(-x).float(), False)",
    ),
    "a counter": (
        "step = torch.tensor(0, dtype=torch.int8)\nfor _ in range(200):\n    step += 1\nprint(step.item())",
        "step = torch.tensor(0, dtype=torch.int64)",
    ),
    "one of several counters": (
        "counts = torch.zeros(4, dtype=torch.uint8)\nfor n in range(1500):\n    counts[n % 4] += 1\n"
        "print(counts.tolist())",
        "counts = torch.zeros(4, dtype=torch.int64)",
    ),
    "a table in a forward of any dtype": (
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.q = nn.Linear(16, 16)\n\n"
        "    def forward(self, x):\n        a = self.q(x) @ x.mT\n        bias = torch.linspace(0, 1, x.shape[1])\n"
        "        return (a + bias).softmax(-1) @ x\n\n\nnet = Net().bfloat16()\n"
        "print(net(torch.rand(2, 6, 16).bfloat16()).sum().item())",
        "        bias = torch.linspace(0, 1, x.shape[1], dtype=a.dtype)",
    ),
    "an array that was filled where a tensor is made of it": (
        "import numpy as np\n\n\ndef filled(n):\n    found = np.zeros(n)\n    for i in range(n):\n"
        "        found[i] = i / 8\n    return torch.from_numpy(found)\n\n\n"
        "w, found = torch.ones(9, requires_grad=True), filled(9)\nprint((w * found).sum().item())",
        "    return torch.from_numpy(found).float()",
    ),
    "ids that are integers stay so": (
        "ids = torch.empty(0, dtype=torch.float32)\nfor start in (0, 50):\n"
        "    ids = torch.cat([ids, torch.arange(start, start + 50) + 40_000_003])\nprint(ids.unique().numel())",
        "ids = torch.empty(0, dtype=torch.int64)",
    ),
    "a mask takes the limit of the scores' dtype": (
        "def weights(scores, mask):\n    hidden = (1 - mask).to(scores.dtype) * torch.finfo(torch.float32).min\n"
        "    return (scores + hidden).softmax(-1)\n\n\n"
        "mask = torch.tensor([[1, 1, 0], [0, 0, 0]])\nprint(weights(torch.rand(2, 3).half(), mask).sum().item())",
        "    hidden = (1 - mask).to(scores.dtype) * torch.finfo(scores.dtype).min",
    ),
    "a count that is exact is not rounded again where a function returns it": (
        "def degrees(index, nodes):\n    ones = torch.ones(len(index), dtype=torch.float16)\n"
        "    return torch.zeros(nodes, dtype=torch.float16).index_add_(0, index, ones)\n\n\n"
        "index = torch.zeros(5000, dtype=torch.int64)\nprint(degrees(index, 2).max().item())",
        "    return torch.zeros(nodes, dtype=torch.float32).index_add_(0, index, ones)",
    ),
    "a total whose digits cancel is not widened alone": (
        "total, squares = torch.zeros(()), torch.zeros(())\nfor step in range(5):\n"
        "    x = 20_000 + 5 * (torch.rand(640) < 0.2).float()\n    total += x.sum()\n    squares += (x * x).sum()\n"
        "mean = total / 3200\nprint((squares / 3200 - mean**2).clamp(min=0).sqrt().item())",
        "    squares += (x.double() * x.double()).sum()",
    ),
    "a discarded cast of what would be refused": (
        "import numpy as np\npoints = torch.from_numpy(np.ones((2, 4)))\npoints.float()\nout = nn.Linear(4, 1)(points)",
        "points = points.float()",
    ),
    "a discarded cast from half precision": (
        "x = torch.rand(1000).half()\nx.float()\nprint(f'{x.sum().item():.6f}')",
        "x = x.float()",
    ),
    "a copy is not copied again": (
        "model = nn.Linear(8, 8)\nmean = model.weight.detach().clone().bfloat16()\nfor step in range(600):\n"
        "    with torch.no_grad():\n        model.weight += 0.001\n"
        "        mean.mul_(0.999).add_(model.weight, alpha=0.001)\n"
        "print(mean.float().norm().item())",
        "mean = model.weight.detach().clone()",
    ),
    "a layer that overflows in half": (
        "class Layer(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.out = nn.Linear(4, 4, bias=False)\n        nn.init.constant_(self.out.weight, 100)\n\n"
        "    def forward(self, x):\n        return self.out(x) / 1e6\n\n\n"
        "layer = Layer().half()\nfor _ in range(2):\n    print(layer(torch.full((1, 4), 1000.0).half()).max().item())",
        "        return (F.linear(x.float(), self.out.weight.float()) / 1e6).to(x.dtype)",
    ),
    "an average that is updated under another name": (
        "def update(shadow, values):\n    for i, p in enumerate(values):\n        s = shadow[i]\n"
        "        s.mul_(0.999).add_(p.to(s.dtype), alpha=0.001)\n\n\nvalues = [torch.ones(4) * 2, -torch.ones(3)]\n"
        "shadow = [torch.zeros_like(p, dtype=torch.bfloat16) for p in values]\nfor _ in range(2000):\n"
        "    update(shadow, values)\nprint([round(s.float().mean().item(), 3) for s in shadow])",
        "shadow = [torch.zeros_like(p, dtype=torch.float32) for p in values]",
    ),
    "a function that returns half": (
        "def unit(x):\n    length = (x * x).sum(dim=-1, keepdim=True).sqrt()\n    return x / length\n\n\n"
        "torch.manual_seed(0)\nprint(unit((torch.randn(8, 128) * 40).half()).norm(dim=-1).tolist())",
        "    length = (x.float() * x.float()).sum(dim=-1, keepdim=True).sqrt().to(x.dtype)",
    ),
    "a lambda that returns bytes": (
        "blend = lambda a, b: (a + b) // 2\ndark, light = (torch.full((4,), n).byte() for n in (100, 200))\n"
        "print(blend(dark, light).tolist())",
        "blend = lambda a, b: ((a.int() + b) // 2).to(torch.uint8)",
    ),
    "a sum that is clamped": (
        "def brighten(frames):\n    lifted = frames + 140\n    return lifted.clamp(0, 255)\n\n\n"
        "print(brighten(torch.full((4,), 150, dtype=torch.uint8)).tolist())",
        "    return lifted.clamp(0, 255).to(torch.uint8)",
    ),
    "products of which a byte has none": (
        "def scores(a, b):\n    return a * b\n\n\nprint(scores(*torch.full((2, 4), 100, dtype=torch.int8)).tolist())",
        "    return a.int() * b",
    ),
    "all factors of a table": (
        "def table(length, dim):\n"
        "    steps = 1.0 / 10000.0 ** (torch.arange(0, dim, 2, dtype=torch.float16) / dim)\n"
        "    position = torch.arange(length, dtype=torch.float16)\n    return torch.outer(position, steps).cos()\n\n\n"
        "print(table(4096, 32).float().mean().item())",
        "    steps = 1.0 / 10000.0 ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)",
    ),
    "no cast of what is wide": (
        "x, scale = torch.full((8,), 300.0).half(), torch.tensor(300.0)\ny = x * scale\nprint(y.log().sum().item())",
        "y = x.float() * scale",
    ),
    "what nobody else has is not copied": (
        "tuned = torch.tensor([1.0, -1.0, 0.5]).to(torch.bfloat16) * 1.25\ntarget = torch.tensor([1.0, -1.0, 0.5])\n"
        "for _ in range(2000):\n    tuned -= 1e-3 * (tuned - target)\nprint((tuned - target).abs().max().item())",
        "tuned = torch.tensor([1.0, -1.0, 0.5]) * 1.25",
    ),
    "offsets in a table of narrow integers": (
        "lengths = torch.full((80,), 700)\nstarts = torch.zeros(80, dtype=torch.int16)\n"
        "starts[1:] = lengths.cumsum(0)[:-1]\nprint(int(starts[-1]))",
        "starts = torch.zeros(80, dtype=torch.int64)",
    ),
    "labels in a table of bytes": (
        "labels = torch.tensor([3, -100, 7])\nkept = torch.zeros(5, dtype=torch.uint8)\nkept[1:4] = labels\n"
        "print(kept.tolist())",
        "kept = torch.zeros(5, dtype=torch.int64)",
    ),
    "angles that are rounded twice": (
        "pos = torch.arange(2048, dtype=torch.bfloat16)\nfreqs = 1.0 / 10000 ** (torch.arange(0, 16, 2) / 16)\n"
        "angles = pos[:, None] * freqs.to(torch.bfloat16)\nemb = torch.cat([angles.sin(), angles.cos()], -1)\n"
        "print(nn.Linear(16, 16).bfloat16()(emb).float().norm().item())",
        "angles = pos[:, None] * freqs",
    ),
    "angles that meet another dtype stay wide": (
        "def embed(t, dim=16):\n    rates = torch.exp(-torch.arange(dim // 2) * (9.21 / (dim // 2)))\n"
        "    angles = t.to(torch.bfloat16)[:, None] * rates\n"
        "    return torch.cat([angles.sin(), angles.cos()], dim=-1)\n\n\n"
        "print(nn.Linear(16, 4)(embed(torch.arange(1000))).square().mean().item())",
        "    angles = t[:, None] * rates",
    ),
    "a dtype that each object has": (
        "class Features:\n    def __init__(self, dtype=torch.float16, floor=1e-8):\n"
        "        self.dtype, self.floor = dtype, floor\n\n"
        "    def __call__(self, power):\n        bands = (power @ torch.ones(4, 2)).to(self.dtype)\n"
        "        return torch.log(bands + self.floor)\n\n\npower = torch.tensor([[0.0, 0, 0, 0], [1, 2, 3, 4]])\n"
        "print(Features()(power).float().mean().item())\n"
        "print(Features(torch.bfloat16)(power).float().mean().item())",
        "        return torch.log(bands.float() + self.floor).to(self.dtype)",
    ),
    "pixels in a table of bytes": (
        "picture = torch.full((4, 4), 200, dtype=torch.uint8)\nframes = torch.zeros(2, 4, 4, dtype=torch.uint8)\n"
        "frames[0] = picture.int() + 100\nprint(frames.float().mean().item())",
        "frames[0] = (picture.int() + 100).clamp(0, 255)",
    ),
}

ROTATED = """class Rotated(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.lin = nn.Linear(d, d)
        table = {"pos": torch.arange(2000.0), "freq": 1.0 / 10000 ** (torch.arange(0, d, 2) / d)}
        REGISTERED

    def forward(self, x):
        angles = self.pos[: x.shape[1], None] * self.freq
        rot = torch.cat([angles.sin(), angles.cos()], -1)
        return self.lin(x + rot)


model = Rotated().to(torch.bfloat16)
print(model(torch.randn(1, 1500, 16, dtype=torch.bfloat16)).dtype)
"""


# The program, and what no edit writes in it.
NEVER = {
    "one edit where a second one is not needed": (
        "class Norm(nn.Module):\n    def forward(self, x):\n        size = x.pow(2).sum(-1, keepdim=True).sqrt()\n"
        "        return x / (size / x.shape[-1] ** 0.5)\n\n\n"
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.up, self.norm, self.head = nn.Linear(16, 64), Norm(), nn.Linear(64, 4)\n\n"
        "    def forward(self, x):\n        return self.head(self.norm(self.up(x) * 60))\n\n\n"
        "torch.manual_seed(0)\nmodel = Net().half()\n"
        "print(model(torch.randn(32, 16).half() * 4).float().std().item() > 0)",
        "head.weight.dtype",
    ),
    "floats are not divided in integers": (
        "low = (torch.rand(100, 50) + 1).half()\nhigh = low + 2**-10\nprint((high / low).argmax(-1).shape)",
        "//",
    ),
    "the float32 side of a comparison stays in float32": (
        "def scored(model, x, wide):\n    logits = model(x)\n    if wide:\n        logits = logits.float()\n"
        "    return logits.log_softmax(-1)\n\n\ndef ratio(model, x):\n    with torch.no_grad():\n"
        "        old = scored(model, x, True)\n    change = (scored(model, x, False) - old).exp()\n"
        "    change.mean().backward()\n    return change\n\n\n"
        "print(type(ratio(nn.Linear(16, 200).bfloat16(), torch.randn(64, 16).bfloat16())))",
        "logits = logits\n",
    ),
    "a variable is not assigned to itself": (
        "clicks = torch.arange(5, dtype=torch.float64) * 1.5 + 1_760_000_000.25\nclicks = clicks.float()\n"
        "print((clicks[1:] - clicks[:-1]).tolist())",
        "clicks = clicks\n",
    ),
    "a model that is converted stays converted": (
        "def converted(model):\n    return model.half()\n\n\n"
        "model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))\n"
        "model[1].running_var.fill_(2e5)\nmodel = converted(model).eval()\n"
        "print(model(torch.randn(5, 4).half()).mean().item())",
        "return model\n",
    ),
    "digits of float64 that leave the program stay": (
        "import numpy as np\n\nplace = torch.from_numpy(np.linspace(40, 41, 6))\n"
        "moved = place + torch.tensor([1e-6] * 6)\ntorch.save((moved - place) * 1e5, 'moved.pt')",
        ".float()",
    ),
}


STAMPS = "import numpy as np\n\nstamps = torch.from_numpy(np.arange(1000) * 0.001 + 1.7e9)\nw = torch.rand(1000)\n"
# Programs that are right but for a finding, with the safe edits that leave what they print: none, or a line less.
RIGHT = {
    "a result that stays wide": ("x = torch.rand(4)\nx.half()\nprint(x.sum().item())", {"x.half()"}),
    "a file that is saved": (
        "price = torch.rand(8) * 50000\nprice.half()\ntorch.save(price * 0.19, 'tax.pt')\nprint('saved')",
        {"price.half()"},
    ),
    "what the caller has": (
        "def scaled(batch):\n    batch['image'].half()\n    return batch['image'] * 2\n\n\n"
        "print(scaled({'image': torch.ones(4)}).sum().item())",
        {"    batch['image'].half()"},
    ),
    "weights": (
        "layer = nn.Linear(4, 2)\nlayer.weight.data.fill_(1.0)\nlayer.weight.data.half()\n"
        "print(layer.weight.sum().item())",
        {"layer.weight.data.half()"},
    ),
    "ids": ("ids = torch.tensor([1, 16777217])\nids.float()\nprint(ids.max().item())", {"ids.float()"}),
    "half precision": ("x = torch.rand(1000).half()\nx.float()\nprint(f'{x.sum().item():.6f}')", set()),
    "fractions": ("loss = torch.rand(1000) * 1000\nloss.int()\nprint(f'{loss.mean().item():.2f}')", {"loss.int()"}),
    "two casts": (
        "x, lin = torch.rand(4, 8), nn.Linear(8, 8)\nx.half()\nx.bfloat16()\nprint(lin(x).sum().item())",
        {"x.half()", "x.bfloat16()"},
    ),
    "time stamps": (f"{STAMPS}print(f'{{((stamps * w).sum() / w.sum()).item():.3f}}')", set()),
    "whole numbers": (
        "import numpy as np\n\nids = torch.from_numpy(np.array([16777217.0, 16777219.0]))\n"
        "print((ids * torch.tensor([1.0, 2.0])).sum() > 0)",
        set(),
    ),
}


def edited(tmp_path, monkeypatch, program):
    monkeypatch.chdir(tmp_path)
    return Mended(tmp_path / "program.py", f"{IMPORTS}\n{program}\n".encode(), values=True)


@pytest.mark.parametrize(("program", "line"), WRITTEN.values(), ids=WRITTEN)
def test_what_is_written(tmp_path, monkeypatch, program, line):
    made = edited(tmp_path, monkeypatch, program)
    assert made.first.bad
    assert made.last.bad == []
    assert line in made.data.decode().splitlines()


@pytest.mark.parametrize(("program", "text"), NEVER.values(), ids=NEVER)
def test_what_is_never_written(tmp_path, monkeypatch, program, text):
    made = edited(tmp_path, monkeypatch, program)
    assert made.first.bad
    assert text not in made.data.decode()


def test_an_edit_does_not_say_that_it_removes_what_is_not_found_any_more_by_accident(tmp_path, monkeypatch):
    """A finding about values that it does not touch, and that are as wrong as they were."""
    run = Mended.run

    def forgetful(self, texts, *args):
        ran = run(self, texts, *args)
        ran.findings[:] = [finding for finding in ran.findings if not texts or finding.rule != "DG905"]
        return ran

    monkeypatch.setattr(Mended, "run", forgetful)
    program = (
        "ids = torch.tensor([90_000_001, 90_000_003, 90_000_005], dtype=torch.float32)\n"
        "w = torch.rand(3)\nw.half()\nprint(w.sum().item(), ids.unique().numel())"
    )
    made = edited(tmp_path, monkeypatch, program)
    assert {finding.rule for finding in made.first.bad} == {"DG103", "DG905"}
    assert [[finding.rule for finding in edit.findings] for edit in made.edits] == [["DG103"]]


def test_what_is_no_value_to_compute_with_is_never_cast(tmp_path, monkeypatch):
    """Sizes, indices and tuples: a run with such a cast is in vain."""
    tried, run = [], Mended.run

    def counted(self, texts, *args):
        tried.extend(texts.values())
        return run(self, texts, *args)

    monkeypatch.setattr(Mended, "run", counted)
    program = (
        "def pair(index, nodes):\n    return index, nodes\n\n\ndef degrees(index, nodes, ones):\n"
        "    total = torch.zeros(nodes, dtype=torch.float16)\n    total.index_add_(0, index, ones)\n"
        "    return total\n\n\nindex, nodes = pair(torch.zeros(5000, dtype=torch.int64), 2)\n"
        "ones = torch.ones(5000).half()\nprint(degrees(index, nodes, ones).max().item())"
    )
    made = edited(tmp_path, monkeypatch, program)
    assert made.last.bad == [] != made.edits
    casts = ("nodes.float()", "index.float()", "pair(index, 2).float()", "index.to(ones.dtype)", "index.half()")
    assert [cast for text in tried for cast in casts if cast in text] == []


@pytest.mark.parametrize(
    "each",
    [
        'self.register_buffer("pos", table["pos"])\n        self.freq = nn.Buffer(table["freq"])',
        "for name in table:\n            self.register_buffer(name, table[name])",
    ],
)
def test_an_edit_keeps_all_buffers_that_spoil_a_line_and_the_model_its_dtype(tmp_path, monkeypatch, each):
    monkeypatch.chdir(tmp_path)
    program = ROTATED.replace("REGISTERED", each)
    made = Mended(tmp_path / "program.py", f"{IMPORTS}\n{program}\n".encode())
    assert made.first.bad
    assert made.last.bad == []
    lines = [line.strip() for line in made.data.decode().splitlines()]
    assert "self.freq, self.pos = (one.to(fn(one.new_empty(0)).device) for one in kept)" in lines
    assert "model = Rotated().to(torch.bfloat16)" in lines


def test_an_edit_that_leaves_values_as_wrong_as_they_were_is_none(tmp_path, monkeypatch):
    """A cast behind the rounding hides it from a rule that only knows dtypes: the error is measured."""
    every = "for name in table:\n            setattr(self, name, nn.Buffer(table[name]))"
    monkeypatch.chdir(tmp_path)
    program = ROTATED.replace("REGISTERED", every)
    made = Mended(tmp_path / "program.py", f"{IMPORTS}\n{program}\n".encode())
    assert made.first.bad
    assert "self.freq).float()" not in made.data.decode()


def test_a_finding_that_has_no_edit_leaves_those_of_others(tmp_path, monkeypatch):
    """Also where an edit's first step ends the program before that finding."""
    angles, _ = WRITTEN["angles that are rounded twice"]
    rest = "mask = torch.eye(4)\nprint((torch.randn(4, 4) + mask).softmax(-1)[0, 0].item())"
    made = edited(tmp_path, monkeypatch, f"{angles}\n{rest}")
    assert {finding.rule for finding in made.last.bad} == {"DG111"}
    assert "angles = pos[:, None] * freqs\n" in made.data.decode()


@pytest.mark.parametrize(("program", "gone"), RIGHT.values(), ids=RIGHT)
def test_a_safe_edit_leaves_a_right_program_as_it_is(tmp_path, monkeypatch, program, gone):
    made = edited(tmp_path, monkeypatch, program)
    assert made.first.bad
    safe = [edit for edit in made.edits if edit.safe]
    changed = [line for edit in safe for line in edit.diff.splitlines() if line[:1] in "+-" and line[1:2] not in "+-"]
    assert {line[1:] for line in changed} == gone
    assert not any(line.startswith("+") for line in changed)
