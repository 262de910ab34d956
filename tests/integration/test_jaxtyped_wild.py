"""A package that checks with jaxtyping and beartype moves over by one line: the same results, and no violation less."""

import contextlib
import importlib
import importlib.util
import re
import shutil
import sys
from pathlib import Path

import jaxtyping
import pytest
import torch
from support import same

import dtypeguard

pytest.importorskip("transfusion_pytorch")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

LINE = re.compile(r"^typecheck = .*$", re.MULTILINE)
WAYS = {
    "none": "typecheck = identity",
    "theirs": "typecheck = jaxtyped(typechecker = beartype)",
    "ours": "import dtypeguard; typecheck = dtypeguard.enforce",
}


def _forget():
    for name in [name for name in sys.modules if name.partition(".")[0] == "transfusion_pytorch"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The package with each checker, and, hooked, with none of its own."""
    found, source = {}, Path(importlib.util.find_spec("transfusion_pytorch").origin).parent
    for way in (*WAYS, "hooked"):
        folder = tmp_path_factory.mktemp(way)
        shutil.copytree(source, folder / "transfusion_pytorch", ignore=shutil.ignore_patterns("__pycache__"))
        file = folder / "transfusion_pytorch" / "transfusion.py"
        text, count = LINE.subn(WAYS.get(way, WAYS["none"]), file.read_text())
        assert count == 1
        file.write_text(text)
        sys.path.insert(0, str(folder))
        hook = dtypeguard.install_import_hook("transfusion_pytorch") if way == "hooked" else contextlib.nullcontext()
        _forget()
        with hook:
            found[way] = importlib.import_module("transfusion_pytorch.transfusion")
        sys.path.remove(str(folder))
        assert found[way].__file__ == str(file)
    yield found
    _forget()


def _model(package, channels=3):
    torch.manual_seed(0)
    small = {"dim": 16, "depth": 1, "dim_head": 8, "heads": 2}
    options = {"channel_first_latent": True, "modality_default_shape": (2, 2), "transformer": small}
    return package.Transfusion(num_text_tokens=12, dim_latent=channels, **options)


def _step(package):
    model, found = _model(package), []
    torch.manual_seed(1)
    text = torch.randint(0, 12, (2, 8))
    for batch in (text, torch.randn(2, 3, 4, 4)):
        loss = model(batch)
        loss.backward()
        found.append(loss.detach())
    return found, [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("way", ["theirs", "ours", "hooked"])
def test_right_calls_give_the_same(packages, way):
    with dtypeguard.mode("strict"):
        assert same(_step(packages[way]), _step(packages["none"]))


def test_the_hook_also_reads_fields_of_a_named_tuple_which_beartype_does_not(packages):
    mixed = [[torch.randint(0, 12, (4,)), torch.randn(3, 2, 2)], [torch.randn(3, 2, 3), torch.randint(0, 12, (5,))]]
    with dtypeguard.mode("strict"):
        for way in ("theirs", "ours"):  # which decorate fewer functions
            _model(packages[way])(mixed)
        with pytest.raises(dtypeguard.DtypeError, match=r"parse_modality_item: `result\.tensor`"):
            _model(packages["hooked"])(mixed)


M = torch.tensor([[[0, 2, 3], [0, 8, 2]]])
WRONG = {  # jaxtyping and beartype find it, ours do
    "a float64 batch": (lambda p: _model(p)(torch.randn(2, 3, 4, 4).double()), False),
    "a float64 image in a list": (lambda p: _model(p)([[torch.randn(3, 2, 2).double()]]), False),
    "half times": (lambda p: _model(p).forward_modality(torch.randn(2, 3, 4, 4), times=torch.rand(2).half()), False),
    "times for another batch": (
        lambda p: _model(p).forward_modality(torch.randn(2, 3, 4, 4), times=torch.rand(3)),
        True,
    ),
    "floats for text": (lambda p: _model(p).forward_text(torch.rand(2, 8)), True),
    "two columns": (lambda p: p.order_modality_positions_by_seq_offset(M[..., :2]), True),
    "float positions": (lambda p: p.order_modality_positions_by_seq_offset(M.float()), True),
    "a str for an int": (lambda p: p.naive_attn_mask("5", M), True),
    # of the package itself: the annotation of a result does not know of the cache
    "its own cache": (lambda p: _model(p).generate_text_only(torch.randint(0, 12, (1, 1)), 3), True),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_jaxtyping_and_beartype_find_is_found(packages, name):
    call, theirs = WRONG[name]
    for way in ("ours", "hooked"):
        with dtypeguard.mode("strict"), pytest.raises(dtypeguard.DtypeGuardError):
            call(packages[way])
    with contextlib.suppress(RuntimeError):  # what PyTorch refuses later
        if theirs:
            with pytest.raises(jaxtyping.TypeCheckError):
                call(packages["theirs"])
        else:
            call(packages["theirs"])


def test_lenient_mode_repairs_where_beartype_could_only_refuse(packages):
    with pytest.warns(dtypeguard.CastWarning):
        loss = _model(packages["ours"])(torch.randn(2, 3, 4, 4).double())
    assert loss.dtype is torch.float32
