"""Checkpoints by their headers: names, dtypes and shapes; no weight is read, and no code in a file is run."""

import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ..._core.base.options import kind_of
from ..._core.base.quiet import quiet
from ..._core.state.patterns import quoted
from ..._core.state.reading import Held, Reading, author_name, read

_LARGEST = 100_000_000  # bytes of a header; what safetensors allows
# https://huggingface.co/docs/safetensors: names that are not those of torch in small letters.
_SAFETENSORS = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F4": "float4_e2m1fn_x2", "C64": "complex64", "BOOL": "bool",
    **{f"{short}{bits}": f"{long}{bits}" for short, long in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)},
}  # fmt: skip
# https://github.com/ggml-org/ggml/blob/master/docs/gguf.md: the types of tensors, by number.
_GGML = dict(enumerate(
    "float32 float16 Q4_0 Q4_1 Q4_2 Q4_3 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS "
    "IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS int8 int16 int32 int64 float64 IQ1_M bfloat16 Q4_0_4_4 Q4_0_4_8 Q4_0_8_8 TQ1_0 "
    "TQ2_0 IQ4_NL_4_4 IQ4_NL_4_8 IQ4_NL_8_8 MXFP4 NVFP4 Q1_0".split()
))  # fmt: skip
_SCALARS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}  # the types of metadata that have one size
_TEXT, _ARRAY = 8, 9


class Unreadable(ValueError):
    """A file is no checkpoint, or is damaged, or cannot be read without running code in it."""


def checkpoint(path: str | os.PathLike[str], shapes: bool = False) -> Reading:
    """What a checkpoint holds.

    Args:
        path: a file of safetensors, `torch.save` or GGUF; an index of shards; a folder with such files, or one that
            `torch.distributed.checkpoint` wrote.
        shapes: whether to have the shapes too.

    Raises:
        OSError: it cannot be opened.
        Unreadable: says why.
    """
    file = Path(path)
    try:
        found = _folder(file) if file.is_dir() else _reader(file)(file)
        reading = Reading(str(path), saved=True)
        reading.sections["tensors"] = {
            quoted(author_name(name)): held if shapes else held._replace(shape=None) for name, held in found.items()
        }
    except Unreadable:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError, OverflowError) as error:
        raise Unreadable(f"{path} is damaged: {_first(error)}") from error
    if not reading.sections["tensors"]:
        raise Unreadable(f"{path} has no tensors")
    return reading


def _first(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__


def _reader(file: Path) -> Callable[[Path], dict[str, Held]]:
    """How a file is read, by its first bytes."""
    with file.open("rb") as opened:
        start = opened.read(9)
    if not start:
        raise Unreadable(f"{file} is empty")
    if file.name == ".metadata":
        return _distributed
    if file.name.endswith(".index.json"):
        return _index
    if start.startswith(b"GGUF"):
        return _gguf
    if start.startswith(b"PK"):
        return _torch
    if start[8:] == b"{":
        return _safetensors
    if file.suffix == ".safetensors":
        raise Unreadable(f"{file} is cut or damaged: it has no header of safetensors")
    if start.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04")):
        raise Unreadable(f"{file} is a pickle, which can run code and has no header: write it anew with torch.save")
    raise Unreadable(f"{file} is no checkpoint: neither safetensors nor torch.save nor GGUF")


def _folder(folder: Path) -> dict[str, Held]:
    """The checkpoint in a folder: that of DCP, else an index, else the files of the first kind that is there."""
    if (folder / ".metadata").is_file():
        return _distributed(folder / ".metadata")
    for pattern in ("*.safetensors.index.json", "*.bin.index.json"):
        indexes = sorted(folder.glob(pattern))
        if indexes:
            return {name: held for index in indexes for name, held in _index(index).items()}
    for pattern in ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf"):
        files = sorted(folder.glob(pattern))
        if files:
            return _together([file for file in files if not _is_variant(file)])
    inside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    models = [path for path in inside if any(path.glob("*.safetensors*")) or any(path.glob("*.bin"))]
    if models:  # a pipeline of diffusers: a folder for each model
        return {f"{path.name}.{name}": held for path in models for name, held in _folder(path).items()}
    raise Unreadable(f"{folder} has no checkpoint: no .safetensors, .bin, .pt, .gguf, and no .metadata of DCP")


def _is_variant(file: Path) -> bool:
    """Whether it is a copy in another dtype, which libraries load if they are asked: `model.fp16.safetensors`."""
    return file.with_name(f"{file.stem.rpartition('.')[0]}{file.suffix}").is_file() and "." in file.stem


def _together(files: Iterable[Path]) -> dict[str, Held]:
    """The tensors of several files, of which no two hold the same one otherwise."""
    found: dict[str, Held] = {}
    where: dict[str, Path] = {}
    for file in files:
        for name, held in _reader(file)(file).items():
            if found.setdefault(name, held) != held:
                both = f"{where[name].name} has {name} in {found[name]}, {file.name} in {held}"
                raise Unreadable(f"{file.parent} has two checkpoints: {both}: name one of these files")
            where.setdefault(name, file)
    return found


def _index(file: Path) -> dict[str, Held]:
    data = _json(file.read_bytes(), file)
    names = data.get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise Unreadable(f"{file} is damaged: it has no weight_map")
    found: dict[str, Held] = {}
    for name in sorted(set(names.values())):
        if Path(name).name != name or name in ("", ".", "..") or "\\" in name:
            raise Unreadable(f"{file} names {name!r}, which is no file beside it")
        shard = file.with_name(name)
        if not shard.is_file():
            raise Unreadable(f"{file} names {name}, which is not there")
        found |= _reader(shard)(shard)
    missing = names.keys() - found.keys()
    if missing:
        raise Unreadable(f"{file} names {min(missing)!r}, which {names[min(missing)]} does not have")
    return found


def _json(text: bytes, file: Path) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise Unreadable(f"{file} is damaged: its header is no JSON ({_first(error)})") from error
    if not isinstance(data, dict):
        raise Unreadable(f"{file} is damaged: its header is no table")
    return data


def _safetensors(file: Path) -> dict[str, Held]:
    size = file.stat().st_size
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        if length > min(_LARGEST, size - 8):
            raise Unreadable(f"{file} is cut or damaged: its header says that it has {length:,} bytes")
        data = _json(opened.read(length), file)
    found: dict[str, Held] = {}
    end = 0
    for name, row in data.items():
        if name != "__metadata__":
            found[name] = Held(_SAFETENSORS.get(row["dtype"], str(row["dtype"])), shape=_shape(row["shape"]))
            end = max(end, int(row["data_offsets"][1]))
    if 8 + length + end != size:
        raise Unreadable(f"{file} is cut or damaged: it has {size:,} bytes, and its header says {8 + length + end:,}")
    return found


def _shape(sizes: Any) -> str:
    return f"[{','.join(str(int(size)) for size in sizes)}]"


def _torch(file: Path) -> dict[str, Held]:
    """A file of `torch.save`: fake tensors have no storage, and `weights_only` runs no code."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        with zipfile.ZipFile(file) as archive:
            largest = max((one.file_size for one in archive.infolist() if one.filename.endswith(".pkl")), default=-1)
        if largest < 0:
            raise Unreadable(f"{file} is a zip file, and none of torch.save")
        if largest > _LARGEST:
            raise Unreadable(f"{file} is damaged: its data.pkl has {largest:,} bytes")
        with quiet(), FakeTensorMode():
            data = torch.load(file, map_location="cpu", weights_only=True)
    except zipfile.BadZipFile as error:
        raise Unreadable(f"{file} is cut or damaged: {_first(error)}") from error
    except pickle.UnpicklingError as error:
        raise Unreadable(
            f"{file} holds more than tensors, and reading it would run its code: save the state_dict ({_global(error)})"
        ) from error
    except RuntimeError as error:
        raise Unreadable(f"{file} is cut or damaged: {_first(error)}") from error
    if not isinstance(data, Mapping | Tensor):
        raise Unreadable(f"{file} holds {kind_of(data)}, and no state_dict")
    found = read(data if isinstance(data, Mapping) else {"tensor": data}, shapes=True)
    return found.sections["tensors"]


def _global(error: BaseException) -> str:
    """What `torch.load` did not want to import."""
    words = str(error).split("GLOBAL ")
    return words[1].split()[0] if len(words) > 1 else _first(error)


# ---------------------------------------------------------------- torch.distributed.checkpoint


def _distributed(file: Path) -> dict[str, Held]:
    from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

    if file.stat().st_size > _LARGEST:
        raise Unreadable(f"{file} is damaged: it has more than {_LARGEST:,} bytes")
    with file.open("rb") as opened:
        try:
            data = _Metadata(opened).load()
        except (pickle.UnpicklingError, EOFError, IndexError, ImportError, MemoryError) as error:
            raise Unreadable(f"{file} is no metadata of torch.distributed.checkpoint: {_first(error)}") from error
    if not isinstance(data, Metadata):
        raise Unreadable(f"{file} is no metadata of torch.distributed.checkpoint")
    parts = {str(place.relative_path) for place in (data.storage_data or {}).values()}
    gone = sorted(part for part in parts if not (file.parent / part).is_file())
    if gone:
        raise Unreadable(f"{file} names {gone[0]}, which is not there")
    found: dict[str, Held] = {}
    for name, row in data.state_dict_metadata.items():
        if isinstance(row, TensorStorageMetadata):
            found[name] = Held(str(row.properties.dtype).removeprefix("torch."), shape=_shape(row.size))
    return found


class _Metadata(pickle.Unpickler):
    """Makes what DCP writes, and imports nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        known = module in ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
        plain = {("torch", "Size"), ("torch.serialization", "_get_layout"), ("collections", "OrderedDict")}
        if module.startswith("pathlib") and name in ("PosixPath", "WindowsPath", "Path", "PurePosixPath"):
            return os.path.join  # its parts, as text
        if known and (name[0] != "_" or name in ("_MEM_FORMAT_ENCODING", "_StorageInfo")):
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__ == module:
                return found
        constant = getattr(torch, name, None) if module == "torch" else None
        if (module, name) in plain or isinstance(constant, torch.dtype | torch.layout | torch.memory_format):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it would import {module}.{name}")


# ---------------------------------------------------------------- GGUF


def _gguf(file: Path) -> dict[str, Held]:
    size = file.stat().st_size
    with file.open("rb") as opened:
        header = _Gguf(opened, min(size, _LARGEST), file)
        version = header.number("I")
        if version not in (2, 3):
            raise Unreadable(f"{file} has version {version} of GGUF, and 2 and 3 are known")
        tensors, rows = header.number("Q"), header.number("Q")
        for _ in range(rows):
            header.text()
            header.skip(header.number("I"))
        found = dict(header.tensor() for _ in range(tensors))
        if opened.tell() + header.last > size:
            raise Unreadable(f"{file} is cut or damaged: its last tensor begins after its end")
        return found


class _Gguf:
    """The header of a GGUF file, read from its start."""

    def __init__(self, opened: BinaryIO, size: int, file: Path) -> None:
        self.opened, self.left, self.file, self.last = opened, size, file, 0
        self.take(4)

    def take(self, count: int) -> bytes:
        self.left -= count
        found = self.opened.read(count) if self.left >= 0 else b""
        if len(found) != count:
            raise Unreadable(f"{self.file} is cut or damaged: its header does not end")
        return found

    def number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def text(self) -> str:
        return self.take(self.number("Q")).decode("utf-8")

    def skip(self, kind: int, depth: int = 0) -> None:
        """One value of the metadata."""
        if kind in _SCALARS:
            self.take(struct.calcsize(f"<{_SCALARS[kind]}"))
        elif kind == _TEXT:
            self.text()
        elif kind == _ARRAY and depth < 4:
            inner, count = self.number("I"), self.number("Q")
            if inner in _SCALARS:
                self.take(count * struct.calcsize(f"<{_SCALARS[inner]}"))
            else:
                for _ in range(count):
                    self.skip(inner, depth + 1)
        else:
            raise Unreadable(f"{self.file} is damaged: there is no type {kind}")

    def tensor(self) -> tuple[str, Held]:
        name = self.text()
        sizes = [self.number("Q") for _ in range(min(self.number("I"), 8))]
        kind = self.number("I")
        self.last = max(self.last, self.number("Q"))  # where the data of a tensor begin
        return name, Held(_GGML.get(kind, f"ggml type {kind}"), shape=_shape(reversed(sizes)))
