"""Small networks of real kinds: with weights drawn at random, and four that are trained here."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from sklearn.datasets import load_digits
from torch import Tensor, nn

WIDTH, LAYERS, HEADS, WORDS = 128, 4, 4, 512
SEED = 7
BATCHES = 4
_TEXT = {
    "vocab_size": WORDS, "hidden_size": WIDTH, "intermediate_size": 3 * WIDTH, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "use_cache": False,
}  # fmt: skip
_GROUPED = _TEXT | {"num_key_value_heads": 2}
_ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False}

Case = tuple[nn.Module, Any, Any]  # the model, a batch or several, what of its output is compared


def ids(*shape: int) -> Tensor:
    return torch.randint(3, WORDS, shape)


def logits(out: Any) -> Tensor:
    found: Tensor = out.logits
    return found


def hidden(out: Any) -> Tensor:
    found: Tensor = out.last_hidden_state
    return found


def _text(model: nn.Module, of: Any = logits) -> Case:
    return model, {"input_ids": ids(4, 32)}, of


def _translated(model: nn.Module) -> Case:
    return model, {"input_ids": ids(4, 32), "decoder_input_ids": ids(4, 24)}, logits


def _pictures(model: nn.Module, of: Any = logits) -> Case:
    return model, {"pixel_values": torch.randn(32, 3, 32, 32)}, of


# ---------------------------------------------------------------- of torch.nn


def encoder(layers: int = LAYERS, width: int = WIDTH) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, HEADS, 4 * width, dropout=0.0, batch_first=True)
    made = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    for parameter in made.parameters():  # the layers are copies of one
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
    return made


class Both(nn.Module):
    """`nn.Transformer` on vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Transformer(WIDTH, HEADS, 3, 3, 4 * WIDTH, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = self.net(x, y)
        return out


class Residual(nn.Module):
    """Two convolutions with batch norm beside a shortcut."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        stride = 1 if into == out else 2
        self.conv1, self.bn1 = nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.down = nn.Conv2d(into, out, 1, stride) if into != out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.down(x))


def residual() -> nn.Module:
    blocks = [Residual(32, 32), Residual(32, 64), Residual(64, 64), Residual(64, 128)]
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(128, 10),
    )  # fmt: skip


class Recurrent(nn.Module):
    """An LSTM over words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(WORDS, WIDTH), nn.LSTM(WIDTH, WIDTH, 2, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(self.words(x))[0])
        return out


class Mixed(nn.Module):
    """A block of MLP-Mixer."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(places, 2 * places), nn.GELU(), nn.Linear(2 * places, places))
        self.along = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norm1(x).mT).mT
        out: Tensor = x + self.along(self.norm2(x))
        return out


def mixer() -> nn.Module:
    return nn.Sequential(
        nn.Linear(48, WIDTH), *(Mixed(32, WIDTH) for _ in range(LAYERS)), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)
    )


def perceptron(depth: int = 5, width: int = WIDTH) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


# ---------------------------------------------------------------- of Hugging Face


def gpt2() -> Case:
    config = hf.GPT2Config(vocab_size=WORDS, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=64, **_ENDS)
    return _text(hf.GPT2LMHeadModel(config))


def mamba() -> Case:
    config = hf.MambaConfig(
        vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=LAYERS, state_size=8, **_ENDS
    )  # fmt: skip
    return _text(hf.MambaForCausalLM(config))


def mixtral() -> Case:
    return _text(hf.MixtralForCausalLM(hf.MixtralConfig(**_GROUPED, num_local_experts=4, num_experts_per_tok=2)))


def t5_config(**other: Any) -> Any:
    sizes = {"vocab_size": WORDS, "d_model": WIDTH, "d_kv": WIDTH // HEADS, "d_ff": 3 * WIDTH, "num_layers": 3}
    ends = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1, "use_cache": False, "dropout_rate": 0.0}
    return hf.T5Config(**(sizes | {"num_heads": HEADS, "feed_forward_proj": "gated-gelu"} | ends | other))


def bart() -> Case:
    config = hf.BartConfig(
        vocab_size=WORDS, d_model=WIDTH, encoder_layers=3, decoder_layers=3, encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS, encoder_ffn_dim=3 * WIDTH, decoder_ffn_dim=3 * WIDTH,
        max_position_embeddings=64, decoder_start_token_id=1, forced_eos_token_id=None, **_ENDS,
    )  # fmt: skip
    return _translated(hf.BartForConditionalGeneration(config))


def whisper() -> Case:
    config = hf.WhisperConfig(
        vocab_size=WORDS, d_model=WIDTH, encoder_layers=3, decoder_layers=3, encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS, encoder_ffn_dim=3 * WIDTH, decoder_ffn_dim=3 * WIDTH, num_mel_bins=16,
        max_source_positions=24, max_target_positions=48, decoder_start_token_id=1, suppress_tokens=None,
        begin_suppress_tokens=None, **_ENDS,
    )  # fmt: skip
    model = hf.WhisperForConditionalGeneration(config)
    return model, {"input_features": torch.randn(4, 16, 48), "decoder_input_ids": ids(4, 24)}, logits


def vit() -> Case:
    config = hf.ViTConfig(
        hidden_size=WIDTH, intermediate_size=3 * WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        image_size=32, patch_size=8, num_labels=10,
    )  # fmt: skip
    return _pictures(hf.ViTForImageClassification(config))


def convnext() -> Case:
    config = hf.ConvNextConfig(hidden_sizes=[64, 128], depths=[2, 2], num_stages=2, patch_size=4, num_labels=10)
    return _pictures(hf.ConvNextForImageClassification(config))


def swin() -> Case:
    config = hf.SwinConfig(
        image_size=32, patch_size=4, embed_dim=64, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=10
    )
    return _pictures(hf.SwinForImageClassification(config))


def wav2vec2() -> Case:
    config = hf.Wav2Vec2Config(
        vocab_size=64, hidden_size=WIDTH, intermediate_size=3 * WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, conv_dim=(64, 64), conv_stride=(5, 4), conv_kernel=(10, 4),
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, num_feat_extract_layers=2,
    )  # fmt: skip
    return hf.Wav2Vec2ForCTC(config), {"input_values": torch.randn(4, 1600)}, logits


RANDOM: dict[str, Callable[[], Case]] = {
    "TransformerEncoder": lambda: (encoder(), torch.randn(4, 32, WIDTH), None),
    "Transformer": lambda: (Both(), (torch.randn(4, 32, WIDTH), torch.randn(4, 24, WIDTH)), None),
    "residual net": lambda: (residual(), torch.randn(32, 3, 32, 32), None),
    "LSTM": lambda: (Recurrent(), ids(4, 32), None),
    "MLP-Mixer": lambda: (mixer(), torch.randn(8, 32, 48), None),
    "perceptron": lambda: (perceptron(), torch.randn(256, WIDTH), None),
    "GPT-2": gpt2,
    "Llama": lambda: _text(hf.LlamaForCausalLM(hf.LlamaConfig(**_GROUPED))),
    "Qwen3": lambda: _text(hf.Qwen3ForCausalLM(hf.Qwen3Config(**_GROUPED, head_dim=32))),
    "Gemma2": lambda: _text(hf.Gemma2ForCausalLM(hf.Gemma2Config(**_GROUPED, head_dim=32))),
    "Mixtral": mixtral,
    "Mamba": mamba,
    "BERT": lambda: _text(hf.BertForMaskedLM(hf.BertConfig(**_TEXT))),
    "T5": lambda: _translated(hf.T5ForConditionalGeneration(t5_config())),
    "BART": bart,
    "Whisper": whisper,
    "ViT": vit,
    "ConvNeXt": convnext,
    "Swin": swin,
    "Wav2Vec2": wav2vec2,
}


# ---------------------------------------------------------------- trained


class Classifier(nn.Module):
    """Convolutions over digits of 8 by 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


class Characters(nn.Module):
    """A causal transformer over characters."""

    def __init__(self, kinds: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(kinds, WIDTH), nn.Embedding(64, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, kinds)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        h = self.letters(x) + self.places(torch.arange(x.shape[1]))
        out: Tensor = self.head(self.norm(self.body(h, mask=mask)))
        return out


def _trained(model: nn.Module, steps: int, rate: float, loss_of: Callable[[], Tensor]) -> float:
    """Train a model, and give the loss at the end, over the last steps."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    last: list[float] = []
    for _ in range(steps):
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        last = [*last[-19:], float(loss)]
    model.eval()
    return sum(last) / len(last)


def _digits() -> tuple[Tensor, Tensor]:
    images, kinds = load_digits(return_X_y=True)
    order = torch.randperm(len(kinds), generator=torch.Generator().manual_seed(SEED))
    return torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(kinds)[order]


def _unseen(images: Tensor) -> list[Tensor]:
    """Batches of what is not trained on."""
    return [images[start : start + 64] for start in range(1500, 1500 + 64 * BATCHES, 64)]


def classifier() -> tuple[Case, str]:
    """Digits, of which the last 297 are not trained on."""
    images, kinds = _digits()
    images, model = images.view(-1, 1, 8, 8), Classifier()

    def loss() -> Tensor:
        chosen = torch.randint(0, 1500, (64,))
        return nn.functional.cross_entropy(model(images[chosen]), kinds[chosen])

    _trained(model, 400, 3e-3, loss)
    with torch.no_grad():
        right = float((model(images[1500:]).argmax(1) == kinds[1500:]).double().mean())
    return (model, _unseen(images), None), f"{100 * right:.1f} % right"


def characters() -> tuple[Case, str]:
    """The README of this project, character by character."""
    text = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
    letters = sorted(set(text))
    data = torch.tensor([letters.index(letter) for letter in text])
    model = Characters(len(letters))

    def batch(rows: int) -> tuple[Tensor, Tensor]:
        starts = torch.randint(0, len(data) - 65, (rows,))
        rows_of = torch.stack([data[s : s + 65] for s in starts])
        return rows_of[:, :-1], rows_of[:, 1:]

    def loss() -> Tensor:
        x, y = batch(16)
        return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())

    left = _trained(model, 500, 2e-3, loss)
    return (model, [batch(4)[0] for _ in range(BATCHES)], None), f"loss {left:.2f}"


def autoencoder() -> tuple[Case, str]:
    """Digits through eight numbers."""
    images, _ = _digits()
    sizes = (64, 256, 128, 8)
    inward = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.GELU())][:-1]
    back = sizes[::-1]
    outward = [part for a, b in itertools.pairwise(back) for part in (nn.Linear(a, b), nn.GELU())][:-1]
    model = nn.Sequential(nn.Sequential(*inward), nn.Sequential(*outward))

    def loss() -> Tensor:
        chosen = images[torch.randint(0, 1500, (64,))]
        return nn.functional.mse_loss(model(chosen), chosen)

    left = _trained(model, 2000, 3e-3, loss)
    return (model, _unseen(images), None), f"loss {left:.4f}"


def reverser() -> tuple[Case, str]:
    """T5 that learns to reverse a sequence."""
    model = hf.T5ForConditionalGeneration(t5_config(vocab_size=32, num_layers=2))

    def batch(rows: int) -> tuple[Tensor, Tensor]:
        x = torch.randint(3, 32, (rows, 8))
        return x, x.flip(1)

    def loss() -> Tensor:
        x, y = batch(32)
        found: Tensor = model(input_ids=x, labels=y).loss
        return found

    left = _trained(model, 700, 2e-3, loss)
    given = []
    for x, y in (batch(8) for _ in range(BATCHES)):
        shifted = torch.cat([torch.ones(8, 1, dtype=torch.int64), y[:, :-1]], 1)
        given.append({"input_ids": x, "decoder_input_ids": shifted})
    return (model, given, logits), f"loss {left:.3f}"


TRAINED: dict[str, Callable[[], tuple[Case, str]]] = {
    "digits classifier": classifier,
    "char transformer": characters,
    "autoencoder": autoencoder,
    "T5 that reverses": reverser,
}


def _again(batch: Any) -> Any:
    """Another batch of the same shapes."""
    if isinstance(batch, dict):
        return {name: _again(value) for name, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_again(value) for value in batch)
    return torch.randn_like(batch) if batch.is_floating_point() else ids(*batch.shape)


def drawn(name: str) -> Case:
    """A network with random weights and several batches, the same every time."""
    torch.manual_seed(SEED)
    model, batch, of = RANDOM[name]()
    return model.eval(), [batch, *(_again(batch) for _ in range(BATCHES - 1))], of


def trained(name: str) -> tuple[Case, str]:
    """A network that is trained now, with several batches, and how well it does."""
    torch.manual_seed(SEED)
    (model, batches, of), told = TRAINED[name]()
    return (model.eval(), batches, of), told
