"""Manifests: what the file says, what counts as a difference, and what does not."""

import copy
import json
import pickle
import re
import struct
import sys
import zipfile
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations, prune

import dtypeguard
from dtypeguard import StateError, manifest
from dtypeguard._core.state.patterns import fewest, folded, matcher, unfolded

GOLDEN = Path(__file__).parent / "golden"
BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.ModuleDict({"q": nn.Linear(4, 4, bias=False), "v": nn.Linear(4, 4, bias=False)})
        self.norm = nn.LayerNorm(4, dtype=F32)

    def forward(self, x):
        return x + self.attn["v"](self.norm(x.float()).to(x.dtype))


class Net(nn.Module):
    """A bfloat16 model with what such models keep in float32: norms, frequencies, a table."""

    def __init__(self, blocks=3):
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(4, 8, bias=False)
        self.to(BF16)
        for block in self.blocks:
            block.norm.float()
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("freqs", torch.ones(2), persistent=False)
        self.table = torch.ones(4)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


IDS = torch.tensor([[1, 2]])


def trained(model):
    optimizer = torch.optim.AdamW(model.parameters())
    model(IDS).float().sum().backward()
    optimizer.step()
    return optimizer


def told(found):
    """The rows of a difference: pattern, both sides."""
    return [(row.pattern, row.expected, row.actual) for row in found.rows]


# ---------------------------------------------------------------- the file


def test_the_file_is_read_by_people(tmp_path):
    model = Net()
    optimizer = trained(model)
    made = manifest(model, optimizer, IDS)
    made.save(tmp_path / "dtypes.lock")
    assert (tmp_path / "dtypes.lock").read_text() == (GOLDEN / "manifest.lock").read_text()
    assert str(made) == str(manifest.load(tmp_path / "dtypes.lock"))
    assert str(manifest(copy.deepcopy(model), optimizer=None, batch=None)) == str(manifest(Net()))


def test_shapes_and_devices_are_there_if_asked_for():
    made = manifest(nn.Linear(3, 2), shapes=True, devices=True)
    assert made.lines["tensors"] == [("bias", "float32 [2] on cpu"), ("*", "float32 [2,3] on cpu")]
    assert told(made.diff(nn.Linear(4, 2))) == [("weight", "float32 [2,3] on cpu", "float32 [2,4] on cpu")]
    assert not manifest(nn.Linear(3, 2)).diff(nn.Linear(5, 5))


COMMENTED = """\
dtypeguard manifest 1
# what we agreed on
model  Sequential

[tensors]
# norms stay wide
1.*  float32  # see issue 12
*    bfloat16

[names]
*.{bias,weight}
# the end
"""


def half_with_norm():
    return nn.Sequential(nn.Linear(2, 2, dtype=BF16), nn.LayerNorm(2))


def test_comments_survive_an_update(tmp_path):
    path = tmp_path / "dtypes.lock"
    path.write_text(COMMENTED)
    manifest(half_with_norm()).save(path)
    assert path.read_text() == COMMENTED
    manifest(nn.Sequential(nn.Linear(2, 2, dtype=F16), nn.LayerNorm(2))).save(path)
    assert path.read_text() == COMMENTED.replace("bfloat16", "float16")
    manifest(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))).save(path)
    assert [line for line in path.read_text().splitlines() if "#" in line] == [
        "# what we agreed on", "# norms stay wide", "# see issue 12", "# the end"
    ]  # fmt: skip


def test_lines_that_somebody_wrote_stay_while_they_are_right(tmp_path):
    path = tmp_path / "dtypes.lock"
    path.write_text(COMMENTED.replace("1.*  float32", "1.weight float32\n1.bias float32"))
    manifest(nn.Sequential(nn.Linear(2, 2, dtype=BF16), nn.LayerNorm(2), half_with_norm()[:1])).save(path)
    assert "1.bias    float32  # see issue 12\n" in path.read_text()


def test_a_hand_may_write_braces_and_misspell(tmp_path):
    text = COMMENTED.replace("1.*  float32", "1.{bias,weight}  float32\nl.norm.*  float32").replace("\n", "\r\n")
    (tmp_path / "dtypes.lock").write_bytes(text.encode())
    found = manifest.load(tmp_path / "dtypes.lock").diff(half_with_norm())
    assert not found
    assert found.unused == ["l.norm.*"]
    assert str(found).endswith("says (4 tensors)\n  l.norm.*  matches nothing")


def test_without_names_all_tensors_are_held_to_the_lines(tmp_path):
    (tmp_path / "dtypes.lock").write_text("dtypeguard manifest 1\n[tensors]\n* bfloat16\n")
    lock = manifest.load(tmp_path / "dtypes.lock")
    lock.check(nn.Linear(2, 2, dtype=BF16))
    assert told(lock.diff(half_with_norm())) == [("1.*", "bfloat16", "float32")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no manifest: its first line is not `dtypeguard manifest 1`"),
        ("[tensors]\n* float32\n", "is no manifest"),
        ("dtypeguard manifest 2\n", "has format 2, and this dtypeguard knows 1: update dtypeguard"),
        ("dtypeguard manifest 1\n[tensors]\nweight\n", "line 3: 'weight' stands alone"),
        ("dtypeguard manifest 1\n[tensors]\n* float33\n", "line 3: 'float33' is no dtype (did you mean 'float32'?)"),
        ("dtypeguard manifest 1\n[weights]\n* float32\n", "line 2: there is no section [weights], only tensors,"),
        ("\xff\xfe", "is no manifest"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_its_line(text, said, tmp_path):
    path = tmp_path / "dtypes.lock"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"dtypes\.lock") as caught:
        manifest.load(path)
    assert said in str(caught.value)
    with pytest.raises(ValueError, match=r"dtypes\.lock"):
        manifest(nn.Linear(1, 1)).save(path)
    assert path.read_bytes() == text.encode("latin-1")


NAMES = st.lists(st.sampled_from(["a", "b", "norm", "0", "1", "12", "x y", "*", "{q}"]), min_size=1, max_size=4)


@given(st.dictionaries(NAMES.map(".".join), st.sampled_from(["float32", "bfloat16", "int8"]), min_size=1, max_size=12))
def test_the_lines_give_each_name_its_value_in_any_order(values):
    from dtypeguard._core.state.patterns import quoted

    values = {quoted(name): value for name, value in values.items()}
    lines = fewest(values)
    assert {name: next(value for pattern, value in lines if matcher(pattern)(name)) for name in values} == values
    assert fewest(dict(reversed(values.items()))) == lines
    assert set(unfolded(folded(values))) == set(values)


@pytest.mark.parametrize(
    ("wide", "lines"),
    [
        (lambda name: "norm" in name, ["model.layers.*.norm.*"]),
        (lambda name: "layers.0." in name or "layers.11." in name, ["model.layers.0.*", "model.layers.11.*"]),
        (lambda name: name.endswith("bias"), ["*.bias"]),
        (lambda name: name.startswith("model.embed"), ["model.embed.weight"]),
        (lambda name: name == "model.layers.3.mlp.up.weight", ["model.layers.3.mlp.up.weight"]),
    ],
)
def test_exceptions_are_few_lines(wide, lines):
    modules = [f"layers.{n}.{inner}" for n in range(12) for inner in ("norm", "mlp.up", "mlp.down", "attn.q")]
    names = [f"model.{path}.{leaf}" for path in ("embed", *modules) for leaf in ("weight", "bias")]
    names.remove("model.embed.bias")
    found = fewest({name: "float32" if wide(name) else "bfloat16" for name in names})
    assert found == [*((line, "float32") for line in lines), ("*", "bfloat16")]


# ---------------------------------------------------------------- what counts


def narrow_all(model):
    model.to(BF16)


def persist(model):
    model._non_persistent_buffers_set.clear()


def untie(model):
    model.head.weight = nn.Parameter(model.embed.weight.detach().clone())


def drop(model):
    del model.blocks[0].norm
    del model.blocks[1].norm
    del model.blocks[2].norm


def replace(model):
    model.table = model.table.half()


def widen_first(model):
    model.blocks[0].attn.float()


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        (narrow_all, [("blocks.*.norm.*", "float32", "bfloat16"), ("freqs", "float32", "bfloat16")]),
        (widen_first, [("blocks.0.attn.*", "bfloat16", "float32")]),
        (persist, [("freqs", "not saved", "saved")]),
        (untie, [("head.weight", "tied to embed.weight", "a tensor of its own")]),
        (drop, [("blocks.*.norm.bias", "float32", ""), ("blocks.*.norm.weight", "float32", "")]),
        (replace, [("table", "float32", "float16")]),
    ],
)
def test_a_change_is_one_line(change, rows, tmp_path):
    manifest(Net()).save(tmp_path / "dtypes.lock")
    model = Net()
    change(model)
    for lock in (manifest(Net()), manifest.load(tmp_path / "dtypes.lock")):
        assert told(lock.diff(model)) == rows
        with pytest.raises(StateError) as caught:
            lock.check(model)
        assert len(caught.value.violations) == len(rows)
    assert told(manifest(Net()).diff(manifest(model))) == rows


@pytest.mark.parametrize(
    ("options", "anew"),
    [
        ({}, ""),
        ({"batch": IDS, "shapes": True}, ", batch=batch, shapes=True"),
        ({"optimizer": trained, "devices": True}, ", optimizer, devices=True"),
    ],
)
def test_the_advice_makes_a_manifest_that_holds_as_much(options, anew, tmp_path):
    model = Net()
    lock = manifest(model, **{**options, "optimizer": trained(model) if "optimizer" in options else None})
    lock.save(file := str(tmp_path / "dtypes.lock"))
    model.half()
    for one, save in ((lock, ""), (manifest.load(file), f".save({file!r})")):
        with pytest.raises(StateError) as caught:
            one.check(model)
        assert caught.value.fix.endswith(f"make it anew: dtypeguard.manifest(model{anew}){save}")


def test_what_is_new_is_no_fault():
    """A cache that appears at the first call, a head, an adapter, gradients, the optimizer's state."""
    lock, model = manifest(Net()), Net()
    model.cache = torch.zeros(2, dtype=F16)
    model.blocks[0].adapter = nn.Linear(4, 4)
    found = lock.diff(model, trained(model))
    assert not found
    assert found.new == [
        ("blocks.*.adapter.{bias,weight}", "float32"), ("cache", "float16, attribute")
    ]  # fmt: skip
    assert manifest(model).diff(Net()).rows  # but what the manifest knows must be there
    lock = manifest(model, trained(model))
    del model.cache
    model.zero_grad()
    lock.check(model)  # attributes, gradients and state may not be there yet


def test_another_number_of_layers_is_the_same_model():
    manifest(Net(2)).check(Net(5))


def test_another_model_is_told_in_one_line():
    with pytest.raises(StateError) as caught:
        manifest(Net()).check(nn.TransformerEncoderLayer(4, 2))
    head = "TransformerEncoderLayer is another model than that of the manifest: it has 0 of its 7 names, and no "
    assert str(caught.value).splitlines()[0] == f"{head}`blocks.*.attn.q.weight`"


def test_a_manifest_counts_its_lines():
    assert repr(manifest(nn.Linear(2, 2))) == "<manifest of Linear: 1 line>"


class Variant(Net):
    """Another model with the same names."""


def test_another_class_of_which_most_differs_is_told_in_one_line():
    lock, other = manifest(Net()), Variant()
    assert not lock.diff(other)
    other.blocks[0].norm.half()
    assert lock.diff(other).rows
    other.half()
    found = lock.diff(other)
    head = (
        r"Variant is another model than that of the manifest: it is no Net, and \d+ of \d+ tensors differ, as .+float16"
    )
    assert re.match(head, str(found))
    assert (found.rows, len(str(found).splitlines())) == ([], 1)
    assert lock.diff(Net().half()).rows


def test_gradients_and_state_of_the_optimizer_count():
    model = Net()
    optimizer = trained(model)
    lock = manifest(model, optimizer)
    for state in optimizer.state.values():
        state["exp_avg"] = state["exp_avg"].to(F16)
    found = lock.diff(model, optimizer)
    rows, states = found.rows, sum(len(state) for state in optimizer.state.values())
    assert f"in {len(optimizer.state)} of {states} tensors" in str(found)
    assert {(row.section, row.expected, row.actual) for row in rows} == {
        ("optimizer", "bfloat16", "float16"), ("optimizer", "float32", "float16")
    }  # fmt: skip
    assert all(name.endswith(".exp_avg") for row in rows for name in row.names)
    model.blocks[0].norm.weight.grad = None
    lock.check(model)


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}, {"foreach": False}], ids=str)
def test_the_kinds_of_one_optimizer_hold_the_same(options):
    made = []
    for chosen in ({}, options):
        model = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters(), **chosen)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        made.append(str(manifest(model, optimizer)))
    assert made[0] == made[1]


def test_a_batch_tells_in_which_dtypes_modules_compute():
    model = Net()
    lock = manifest(model, batch=IDS)
    assert ("blocks.*.norm", "float32") in lock.lines["computes"] or ("*.norm", "float32") in lock.lines["computes"]
    model.blocks.forward = None
    lock.check(model, batch=IDS)
    for block in model.blocks:
        block.norm.forward = lambda x, norm=block.norm: nn.functional.layer_norm(x.to(BF16), (4,))
    assert [row.section for row in lock.diff(model, batch=IDS).rows] == ["computes"]


def test_reading_changes_nothing_and_draws_nothing():
    model = Net()
    optimizer = trained(model)
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict())), torch.get_rng_state()
    versions = [p._version for p in model.parameters()]
    manifest(model, optimizer, IDS, shapes=True).check(model, optimizer, batch=IDS)
    assert [p._version for p in model.parameters()] == versions
    assert torch.equal(torch.get_rng_state(), before[1])
    assert str(before[0]) == str((model.state_dict(), optimizer.state_dict()))


# ---------------------------------------------------------------- names


def weight_normed(model, how):
    for block in model.blocks:
        how(block.attn["q"])


def on_meta():
    with torch.device("meta"):
        return Net()


FORMS = {
    "a copy": copy.deepcopy,
    "a pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "compiled inside": lambda model: model.blocks.__setitem__(0, torch.compile(model.blocks[0])) or model,
    "on meta": lambda model: on_meta(),
    "data parallel": nn.DataParallel,
    "an average": torch.optim.swa_utils.AveragedModel,
    "weight norm": lambda model: weight_normed(model, parametrizations.weight_norm) or model,
    "orthogonal": lambda model: weight_normed(model.float(), parametrizations.orthogonal) or (model.to(BF16) and model),
    "pruned": lambda model: weight_normed(model, lambda m: prune.identity(m, "weight")) or model,
    "in a model": lambda model: nn.ModuleDict({"inner": model}),
    "guarded": dtypeguard.guard,
    "its state": lambda model: model.state_dict(),
    "a checkpoint": lambda model: {"epoch": 3, "module": model.state_dict(), "ema": {"m": model.state_dict()}},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_wrapper_is_no_difference(form):
    torch.manual_seed(0)
    lock = manifest(Net())
    model = Net()
    other = FORMS[form](model)
    if form == "orthogonal":
        for block in model.blocks:
            block.norm.float()
        model.freqs = torch.ones(2)
    assert not lock.diff(other), lock.diff(other)


def test_an_average_in_a_checkpoint_is_compared_too():
    model = Net()
    narrow = {name: value.half() if value.is_floating_point() else value for name, value in model.state_dict().items()}
    del narrow["steps"]  # an average of parameters alone
    found = manifest(model).diff({"model": model.state_dict(), "ema": narrow})
    assert {name.partition(".")[0] for row in found.rows for name in row.names} == {"ema"}
    assert {row.actual for row in found.rows} == {"float16"}


# ---------------------------------------------------------------- checkpoints


def safetensors(path, state):
    """What `safetensors.torch.save_file` writes, by its format."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in state.items():
        raw = bytes(tensor.detach().contiguous().view(torch.uint8).flatten().tolist()) if tensor.numel() else b""
        code = {BF16: "BF16", F32: "F32", torch.int64: "I64", F16: "F16"}[tensor.dtype]
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": code, "shape": list(tensor.shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def flat(model):
    return {name: tensor.reshape(-1) for name, tensor in model.state_dict().items()}


def shards(path, state):
    path.mkdir()
    files = {name: f"model-{n % 2}.safetensors" for n, name in enumerate(state)}
    for file in set(files.values()):
        safetensors(path / file, {name: tensor for name, tensor in state.items() if files[name] == file})
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))


def saved_by_dcp(path, state):
    dcp.save({"model": state}, checkpoint_id=path, no_dist=True)


WRITERS = {
    "model.safetensors": safetensors,
    "shards": shards,
    "weights.pt": lambda path, state: torch.save(state, path),
    "last.ckpt": lambda path, state: torch.save({"state_dict": {f"net.{n}": t for n, t in state.items()}}, path),
    "dcp": saved_by_dcp,
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:TypedStorage is deprecated")  # dcp.save
def test_a_checkpoint_is_compared_by_its_headers(name, tmp_path, monkeypatch):
    model = Net()
    WRITERS[name](tmp_path / name, flat(model))
    WRITERS[name](tmp_path / f"narrow.{name}", flat(copy.deepcopy(model).to(BF16)))
    lock = manifest(model)
    assert lock.diff(tmp_path / name).compared == 15
    lock.check(str(tmp_path / name))
    assert told(lock.diff(tmp_path / f"narrow.{name}")) == [("blocks.*.norm.*", "float32", "bfloat16")]
    pattern, dtype = manifest(tmp_path / name).lines["tensors"][0]
    assert (pattern[-15:], dtype) == ("blocks.*.norm.*", "float32")


def test_a_gguf_file_is_read_by_its_header():
    lock = manifest(GOLDEN / "tiny.gguf", shapes=True)
    assert lock.lines["tensors"] == [
        ("blk.*.attn_q.weight", "float16 [4,32]"),
        ("blk.1.ffn.weight", "bfloat16 [4,32]"),
        ("output_norm.weight", "float32 [32]"),
        ("*", "Q8_0 [4,32]"),
    ]


def test_a_large_checkpoint_is_read_without_its_weights(tmp_path):
    """The file has a header, and a hole of 100 GB."""
    header = {f"layers.{n}.weight": {"dtype": "BF16", "shape": [5, 10**8], "data_offsets": [n * 10**9, (n + 1) * 10**9]}
              for n in range(100)}  # fmt: skip
    text = json.dumps(header).encode()
    with (tmp_path / "large.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + 10**11)
    assert manifest(tmp_path / "large.safetensors").lines == {"tensors": [("*", "bfloat16")]}


class Bomb:
    """A pickle that would write a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def cut(path, kept=0.6):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept)])


def damaged(tmp_path):
    """Files that are no checkpoint, and what is said of them."""
    state = flat(Net())
    files = {}

    def file(name, said, content=b""):
        files[tmp_path / name] = said
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    file("empty.pt", "is empty")
    file("text.txt", "is no checkpoint", b"hello world, what is this")
    file("raw.pkl", "is a pickle, which can run code", pickle.dumps(state))
    safetensors(file("cut.safetensors", "is cut or damaged"), state)
    cut(tmp_path / "cut.safetensors")
    safetensors(file("head.safetensors", "is cut or damaged"), state)
    cut(tmp_path / "head.safetensors", 0.1)
    file(
        "huge.safetensors",
        "its header says that it has 9,999,999,999,999 bytes",
        struct.pack("<Q", 9999999999999) + b"{",
    )
    file("json.safetensors", "its header is no JSON", struct.pack("<Q", 4) + b"{{{{")
    file("list.safetensors", "is cut or damaged", struct.pack("<Q", 2) + b"[]")
    file("row.safetensors", "is damaged", struct.pack("<Q", 9) + b'{"a": 12}')
    torch.save(state, file("cut.pt", "is cut or damaged"))
    cut(tmp_path / "cut.pt")
    torch.save({"model": Bomb(tmp_path / "ran")}, file("bomb.pt", "reading it would run its code"))
    torch.save(Net(), file("model.pt", "reading it would run its code: save the state_dict (test_manifest.Net"))
    torch.save([1, 2], file("list.pt", "holds a list"))
    torch.save({"epoch": 2}, file("none.pt", "has no tensors"))
    with zipfile.ZipFile(file("other.zip", "none of torch.save"), "w") as archive:
        archive.writestr("a.txt", "a")
    file("outside/model.safetensors.index.json", "which is no file beside it", json.dumps(
        {"weight_map": {"a": "../cut.safetensors"}}).encode())  # fmt: skip
    file("missing/model.safetensors.index.json", "which is not there", json.dumps(
        {"weight_map": {"a": "b.safetensors"}}).encode())  # fmt: skip
    file("nomap/model.safetensors.index.json", "has no weight_map", b"{}")
    file("dcp/.metadata", "it would import pathlib.Path.touch" if sys.version_info >= (3, 13) else "is no metadata of",
         pickle.dumps(Bomb(tmp_path / "ran")))  # fmt: skip
    file("dcp2/.metadata", "is no metadata of", b"\x80\x04.")
    gguf = (GOLDEN / "tiny.gguf").read_bytes()
    file("cut.gguf", "is cut or damaged", gguf[:200])
    file("data.gguf", "is cut or damaged", gguf[: len(gguf) // 2])
    file("version.gguf", "has version 9 of GGUF", b"GGUF" + struct.pack("<I", 9) + gguf[8:])
    file("count.gguf", "is cut or damaged", gguf[:8] + struct.pack("<Q", 2**60) + gguf[16:])
    return files


def test_a_damaged_or_malicious_file_is_a_sentence(tmp_path):
    lock = manifest(Net())
    for path, said in damaged(tmp_path).items():
        with pytest.raises(ValueError, match=re.escape(str(path))) as caught:
            lock.diff(path)
        assert said in str(caught.value), path
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match="has no checkpoint"):
        lock.diff(tmp_path / "folder")
    with pytest.raises(FileNotFoundError):
        lock.diff(tmp_path / "nothing.pt")
    assert not (tmp_path / "ran").exists()


def test_a_folder_has_one_checkpoint(tmp_path):
    """`model.fp16.safetensors` beside `model.safetensors` is loaded where it is asked for."""
    model = nn.Linear(2, 2)
    state = {name: value.detach() for name, value in model.state_dict().items()}
    safetensors(tmp_path / "model.safetensors", state)
    safetensors(tmp_path / "model.fp16.safetensors", {name: value.half() for name, value in state.items()})
    assert not manifest(model).diff(tmp_path)
    (tmp_path / "model.fp16.safetensors").rename(tmp_path / "half.safetensors")
    with pytest.raises(ValueError, match=r"has two checkpoints: half.safetensors has .* in float16"):
        manifest(tmp_path)


@pytest.mark.parametrize("value", [3, None, torch.ones(2), "float32\n"])
def test_what_is_no_model_is_refused(value):
    with pytest.raises((TypeError, OSError)):
        manifest(value)
    with pytest.raises((TypeError, OSError)):
        manifest(nn.Linear(1, 1)).check(value)
    with pytest.raises(TypeError, match="optimizer is"):
        manifest(nn.Linear(1, 1), optimizer=torch.ones(2))


def test_a_dtype_is_one_word_or_says_what_a_subclass_keeps(tmp_path):
    path = tmp_path / "dtypes.lock"
    path.write_text("dtypeguard manifest 1\nmodel Net\n\n[tensors]\nweight  float32 or so\n")
    with pytest.raises(ValueError, match=r"line 5: 'float32 or so' is no dtype"):
        dtypeguard.manifest.load(path)


def test_a_manifest_beside_its_file_counts_names(tmp_path):
    lock = dtypeguard.manifest(nn.Sequential(*(nn.Linear(2, 2) for _ in range(6))))
    lock.save(tmp_path / "dtypes.lock")
    assert str(lock.diff(tmp_path / "dtypes.lock")).endswith("as the manifest says (2 names)")
