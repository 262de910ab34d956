"""Five small architectures with switches: each switch is a difference that ports have had."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float = 1e-6, half: bool = False, one: bool = False) -> None:
        super().__init__()
        self.weight, self.eps, self.half, self.one = nn.Parameter(torch.rand(size) + 0.5), eps, half, one

    def forward(self, x: Tensor) -> Tensor:
        h = x if self.half else x.float()
        h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps)
        return h.to(x.dtype) * (1 + self.weight if self.one else self.weight)


class Rotary(nn.Module):
    def __init__(self, size: int, base: float = 10000.0, half: bool = False) -> None:
        super().__init__()
        self.half = half
        self.register_buffer("inv_freq", 1.0 / base ** (torch.arange(0, size, 2).float() / size), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(x.shape[1])
        freq = (
            places.to(x.dtype)[:, None] * self.inv_freq.to(x.dtype)
            if self.half
            else places[:, None] * self.inv_freq.float()
        )
        angles = torch.cat([freq, freq], -1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    if interleaved:
        turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    else:
        a, b = x.chunk(2, -1)
        turned = torch.cat([-b, a], -1)
    return x * cos + turned * sin


class LlamaAttention(nn.Module):
    def __init__(self, size: int, heads: int, kv: int, o: dict[str, Any]) -> None:
        super().__init__()
        self.heads, self.kv, self.o = heads, kv, o
        head = size // heads
        self.q_proj, self.k_proj = nn.Linear(size, size, bias=False), nn.Linear(size, kv * head, bias=False)
        self.v_proj, self.o_proj = nn.Linear(size, kv * head, bias=False), nn.Linear(size, size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        o, (b, t, d) = self.o, x.shape
        q, k, v = (
            p(x).view(b, t, -1, d // self.heads).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = (rotate(y, cos, sin, o.get("interleaved", False)) for y in (q, k))
        groups = self.heads // self.kv
        k, v = ((y.repeat(1, groups, 1, 1) if o.get("tiled") else y.repeat_interleave(groups, 1)) for y in (k, v))
        scale = o.get("scale", q.shape[-1] ** -0.5)
        if o.get("sdpa"):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        elif o.get("chunked"):
            out = torch.cat([self._attend(q[:, :, s : s + 4], k, v, scale, s) for s in range(0, t, 4)], 2)
        else:
            out = self._attend(q, k, v, scale, 0)
        return self.o_proj(out.transpose(1, 2).reshape(b, t, d))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, start: int) -> Tensor:
        o = self.o
        scores = q @ k.mT * scale
        if "softcap" in o:
            scores = o["softcap"] * torch.tanh(scores / o["softcap"])
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(start + o.get("off", 0))
        if "window" in o:
            mask &= torch.ones_like(mask).triu(start - o["window"])
        scores = scores.masked_fill(~mask, o.get("fill", -math.inf))
        return scores.float().softmax(-1).to(q.dtype) @ v


class LlamaMLP(nn.Module):
    def __init__(self, size: int, act: str) -> None:
        super().__init__()
        self.act = act
        self.gate, self.up, self.down = (nn.Linear(size, size, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x)
        return self.down((F.silu(gate) if self.act == "silu" else F.gelu(gate)) * self.up(x))


class LlamaBlock(nn.Module):
    def __init__(self, size: int, o: dict[str, Any]) -> None:
        super().__init__()
        self.o = o
        norm = {k: o[k] for k in ("eps", "half", "one") if k in o}
        self.norm1, self.norm2 = RMSNorm(size, **norm), RMSNorm(size)
        self.attn, self.mlp = LlamaAttention(size, 4, 2, o), LlamaMLP(size, o.get("act", "silu"))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if self.o.get("parallel"):
            return x + self.attn(self.norm1(x), cos, sin) + self.mlp(self.norm2(x))
        post = self.o.get("post")
        x = self.norm1(x + self.attn(x, cos, sin)) if post else x + self.attn(self.norm1(x), cos, sin)
        return x + self.o.get("residual", 1.0) * self.mlp(self.norm2(x))


class Llama(nn.Module):
    """A decoder: RMS norms, rotary positions, grouped heads, a gated MLP, a tied head."""

    def __init__(self, size: int = 32, layers: int = 3, at: int = 1, **o: Any) -> None:
        super().__init__()
        self.o = o
        self.embed = nn.Embedding(50, size)
        self.rotary = Rotary(size // 4, o.get("base", 10000.0), o.get("rope_half", False))
        self.layers = nn.ModuleList(LlamaBlock(size, o if n == at else {}) for n in range(layers))
        self.norm, self.head = RMSNorm(size), nn.Linear(size, 50, bias=False)
        if not o.get("untied"):
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) * self.o.get("embed_scale", 1.0)
        cos, sin = self.rotary(x)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


class GPTAttention(nn.Module):
    def __init__(self, size: int, o: dict[str, Any]) -> None:
        super().__init__()
        self.o = o
        self.c_attn, self.c_proj, self.drop = nn.Linear(size, 3 * size), nn.Linear(size, size), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        parts = self.c_attn(x).split(d, -1)
        q, k, v = (parts[n].view(b, t, 4, -1).transpose(1, 2) for n in self.o.get("order", (0, 1, 2)))
        if self.o.get("sdpa"):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mask = torch.ones(t, t, dtype=torch.bool).tril()
            out = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, torch.finfo(q.dtype).min).softmax(-1) @ v
        if self.o.get("merged"):  # the transpose before the heads are joined is forgotten
            return self.drop(self.c_proj(out.reshape(b, t, d)))
        return self.drop(self.c_proj(out.transpose(1, 2).reshape(b, t, d)))


class GPTBlock(nn.Module):
    def __init__(self, size: int, o: dict[str, Any]) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = (
            nn.LayerNorm(size, o.get("eps", 1e-5)),
            GPTAttention(size, o),
            nn.LayerNorm(size),
        )
        self.fc, self.act = nn.Linear(size, 4 * size), nn.GELU(o.get("gelu", "tanh"))
        self.proj, self.drop = nn.Linear(4 * size, size), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.drop(self.proj(self.act(self.fc(self.ln_2(x)))))


class GPT(nn.Module):
    """A decoder: layer norms, learned positions, one projection for queries, keys and values."""

    def __init__(self, size: int = 32, at: int = 1, **o: Any) -> None:
        super().__init__()
        self.o = o
        self.wte, self.wpe = nn.Embedding(50, size), nn.Embedding(64, size)
        self.h = nn.ModuleList(GPTBlock(size, o if n == at else {}) for n in range(3))
        self.ln_f, self.head = nn.LayerNorm(size), nn.Linear(size, 50, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1]) + self.o.get("shift", 0)
        x = self.wte(ids) + self.wpe(places)
        for block in self.h:
            x = block(x)
        return self.head(x if self.o.get("bare") else self.ln_f(x))


class SplitAttention(nn.Module):
    """The same with three projections, fused attention, and other names."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(size, size) for _ in range(3))
        self.out = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (p(x).view(b, t, 4, -1).transpose(1, 2) for p in (self.query, self.key, self.value))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))


class PortBlock(nn.Module):
    def __init__(self, size: int, o: dict[str, Any]) -> None:
        super().__init__()
        self.before, self.attention, self.after = nn.LayerNorm(size), SplitAttention(size), nn.LayerNorm(size)
        self.up, self.down, self.o = nn.Linear(size, 4 * size), nn.Linear(4 * size, size), o

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        return x + self.down(F.gelu(self.up(self.after(x)), approximate=self.o.get("gelu", "tanh")))


class Port(nn.Module):
    """A port of `GPT`, with weights of one."""

    def __init__(self, gpt: GPT, at: int = 1, **o: Any) -> None:
        super().__init__()
        size = gpt.wte.embedding_dim
        self.tokens, self.places = nn.Embedding(50, size), nn.Embedding(64, size)
        self.blocks = nn.Sequential(*(PortBlock(size, o if n == at else {}) for n in range(len(gpt.h))))
        self.last, self.unembed = nn.LayerNorm(size), nn.Linear(size, 50, bias=False)
        pairs = [(self.tokens, gpt.wte), (self.places, gpt.wpe), (self.last, gpt.ln_f), (self.unembed, gpt.head)]
        for mine, its in zip(self.blocks, gpt.h, strict=True):
            pairs += [(mine.before, its.ln_1), (mine.after, its.ln_2), (mine.up, its.fc), (mine.down, its.proj)]
            pairs.append((mine.attention.out, its.attn.c_proj))
            names = o.get("swap", ("query", "key", "value"))
            for name, weight, bias in zip(
                names, its.attn.c_attn.weight.chunk(3), its.attn.c_attn.bias.chunk(3), strict=True
            ):
                getattr(mine.attention, name).load_state_dict({"weight": weight, "bias": bias})
        for module, source in pairs:
            module.load_state_dict(source.state_dict())

    def forward(self, ids: Tensor) -> Tensor:
        return self.unembed(self.last(self.blocks(self.tokens(ids) + self.places(torch.arange(ids.shape[1])))))


class ResBlock(nn.Module):
    def __init__(self, size: int, o: dict[str, Any]) -> None:
        super().__init__()
        self.o = o
        self.conv1, self.bn1 = (
            nn.Conv2d(size, size, 3, padding=1, padding_mode=o.get("padding", "zeros")),
            nn.BatchNorm2d(size),
        )
        self.conv2, self.bn2 = nn.Conv2d(size, size, 3, padding=1), nn.BatchNorm2d(size, eps=o.get("eps", 1e-5))
        self.relu = nn.LeakyReLU(1e-3) if o.get("leaky") else nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.o.get("early"):
            return x + self.relu(h)
        return self.relu(x + h)


class ResNet(nn.Module):
    """Convolutions, batch norms and a pool; one ReLU is called twice and writes in place."""

    def __init__(self, size: int = 16, at: int = 1, **o: Any) -> None:
        super().__init__()
        self.o = o
        self.stem = nn.Conv2d(3, size, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(ResBlock(size, o if n == at else {}) for n in range(3))
        self.fc = nn.Linear(size, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.o.get("pixels", 1.0)
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        pooled = x.amax((2, 3)) if self.o.get("max") else x.mean((2, 3))
        return self.fc(pooled)


class Cross(nn.Module):
    """An encoder and a decoder of nn.MultiheadAttention, with padding; returns a dict."""

    def __init__(self, size: int = 32, **o: Any) -> None:
        super().__init__()
        self.o = o
        self.source, self.target = nn.Linear(8, size), nn.Linear(8, size)
        self.encoder = nn.TransformerEncoderLayer(size, 4, 64, batch_first=True, norm_first=o.get("first", True))
        self.attend, self.norm = nn.MultiheadAttention(size, 4, batch_first=True), nn.LayerNorm(size)
        self.out = nn.Linear(size, 4)

    def forward(self, source: Tensor, target: Tensor, pad: Tensor) -> dict[str, Tensor]:
        if self.o.get("left"):
            pad = pad.flip(1)
        memory = self.encoder(self.source(source), src_key_padding_mask=pad)
        x = self.target(target)
        key = None if self.o.get("unmasked") else pad
        x = self.norm(x + self.attend(x, memory, memory, key_padding_mask=key, need_weights=False)[0])
        out = self.out(x)
        return {"logits": out / self.o.get("temperature", 1.0), "memory": memory}


class Recurrent(nn.Module):
    """A scan by hand, and an LSTM."""

    def __init__(self, size: int = 24, **o: Any) -> None:
        super().__init__()
        self.o = o
        self.inner = nn.Linear(6, size)
        self.scan, self.lstm = Scan(size, o), nn.LSTM(size, size, batch_first=True)
        self.out = nn.Linear(size, 3)

    def forward(self, x: Tensor) -> Tensor:
        h, (last, _) = self.lstm(self.scan(self.inner(x)))
        return self.out(last[-1] if self.o.get("last", True) else h.mean(1))


class Scan(nn.Module):
    def __init__(self, size: int, o: dict[str, Any]) -> None:
        super().__init__()
        self.o = o
        self.decay, self.gate = nn.Parameter(torch.rand(size) - 5), nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x))
        decay = self.decay if self.o.get("half") else self.decay.float()
        decay = torch.exp(-(decay.exp() if self.o.get("decay") else F.softplus(decay)))
        state, states = torch.zeros_like(x[:, 0], dtype=x.dtype if self.o.get("half") else torch.float32), []
        for step in range(x.shape[1]):
            now = x[:, step] * gate[:, step]
            state = state * decay + (now if self.o.get("half") else now.float())
            states.append(state if not self.o.get("late") else state - now)
        return torch.stack(states, 1).to(x.dtype)
