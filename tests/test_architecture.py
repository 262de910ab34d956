"""What holds the house up: floors, exports, imports, size."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import dtypeguard

SOURCE = Path(dtypeguard.__file__).parent
FLOORS = {
    "_dtypes": 1, "_config": 1, "_errors": 1, "_rule": 1, "_rules_amp": 1, "_rules_audit": 1, "_rules": 1,
    "_dims": 2, "_hints": 2, "_spec": 2, "_anchor": 2, "_contract": 2, "_containers": 2, "_others": 2,
    "_verify": 2, "_records": 2, "_ledger": 2,
    "_axes": 3, "_scope": 3, "_check": 3, "_sides": 3, "_replay": 3, "_cast": 3, "_mend": 3,
    "_annotations": 4, "_scan": 4, "_emit": 4, "_run": 4, "_script": 4, "_codegen": 4,
    "_enforce": 5, "_forward": 5, "_guard": 5, "distributed": 5,
    "amp": 5, "amp._tensors": 5, "amp._names": 5, "amp._optimizer": 5, "amp._average": 5,
    "amp._probe": 5, "amp._clipping": 5, "amp._scaler": 5, "amp._scaling": 5, "amp._watch": 5,
    "_audit": 5, "_audit._apart": 5, "_audit._audit": 5, "_audit._autocast": 5, "_audit._averages": 5,
    "_audit._baseline": 5,
    "_audit._collectives": 5, "_audit._command": 5, "_audit._compiler": 5, "_audit._conversions": 5,
    "_audit._events": 5, "_audit._export": 5, "_audit._findings": 5, "_audit._html": 5, "_audit._integers": 5,
    "_audit._lineage": 5, "_audit._looks": 5, "_audit._mode": 5, "_audit._modules": 5, "_audit._operations": 5,
    "_audit._optimizers": 5, "_audit._overflow": 5, "_audit._patches": 5, "_audit._program": 5,
    "_audit._promotions": 5, "_audit._ranks": 5, "_audit._recorder": 5, "_audit._refusals": 5, "_audit._report": 5,
    "_audit._scalers": 5, "_audit._select": 5, "_audit._sites": 5, "_audit._state": 5, "_audit._steps": 5,
    "_audit._text": 5, "_audit._training": 5,
    "integrations": 5, "integrations._run": 5, "integrations.lightning": 5, "integrations.transformers": 5,
    "testing": 5, "testing._calls": 5, "testing._elements": 5, "testing._inputs": 5, "testing._layouts": 5,
    "testing._matrix": 5, "testing._module": 5, "testing._properties": 5, "testing._sizes": 5, "testing._trial": 5,
    "testing._values": 5, "testing._violations": 5,
    "__init__": 6, "__main__": 6,
}  # fmt: skip


ROOMS = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SOURCE.rglob("*.py")
}


def _imports(room):
    """The rooms of this house that a room imports from, at the top or inside a function."""
    package = room.split(".") if ROOMS[room].name == "__init__.py" else room.split(".")[:-1]
    package = [] if room == "__init__" else package
    for node in ast.walk(ast.parse(ROOMS[room].read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            yield from (".".join([*base, name]) for name in names)


def test_every_room_stands_on_a_floor():
    assert set(ROOMS) == set(FLOORS)


def test_no_room_imports_from_above():
    for room in ROOMS:
        for imported in _imports(room):
            assert FLOORS[imported] <= FLOORS[room], f"{room} imports {imported}"


def test_no_two_rooms_import_each_other():
    edges = {room: set(_imports(room)) for room in ROOMS}

    def reaches(start, goal, seen=()):
        return any(n == goal or (n not in seen and reaches(n, goal, (*seen, n))) for n in edges[start])

    assert [room for room in edges if reaches(room, room)] == []


def test_no_room_is_over_500_lines():
    assert {p.name: n for p in SOURCE.rglob("*.py") if (n := len(p.read_text().splitlines())) > 500} == {}


def test_all_is_the_namespace():
    public = {n for n, thing in vars(dtypeguard).items() if not n.startswith("_") and not isinstance(thing, ModuleType)}
    assert public == set(dtypeguard.__all__)
    assert dtypeguard.__all__ == sorted(dtypeguard.__all__)


def test_init_defines_nothing():
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    assert not [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and not n.name.startswith("__")]


def test_public_classes_show_their_public_path():
    for name in dtypeguard.__all__:
        thing = getattr(dtypeguard, name)
        if isinstance(thing, type):
            assert thing.__module__ == "dtypeguard", name


def test_the_changelog_s_top_version_is_the_package_s():
    changelog = (SOURCE.parents[1] / "CHANGELOG.md").read_text()
    assert re.findall(r"^## \[(\d+\.\d+\.\d+)\]", changelog, re.MULTILINE)[0] == dtypeguard.__version__


def _run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_loads_nothing_that_is_optional_and_starts_no_accelerator():
    loaded = _run("import sys, torch; before = set(sys.modules); import dtypeguard; print(*set(sys.modules) - before)")
    roots = {name.split(".")[0] for name in loaded.split()}
    assert not roots & {"beartype", "hypothesis", "rich", "pytest", "transformers", "lightning", "pytorch_lightning"}
    assert "torch._dynamo" not in loaded.split()
    assert _run("import torch, dtypeguard; print(torch.cuda.is_initialized())").strip() == "False"


def test_a_tensor_only_contract_never_loads_beartype():
    code = """
import sys, torch, dtypeguard
from jaxtyping import Float
@dtypeguard.enforce
def f(x: Float[torch.Tensor, "b"], n: int = 1) -> Float[torch.Tensor, "b"]: return x
f(torch.ones(2)); print("beartype" in sys.modules)
"""
    assert _run(code).strip() == "False"
