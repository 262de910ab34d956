"""What holds the house up: floors, exports, imports, size."""

import ast
import graphlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import dtypeguard

SOURCE = Path(dtypeguard.__file__).parent
CONTRIBUTING = SOURCE.parents[1] / "CONTRIBUTING.md"
ROOMS = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SOURCE.rglob("*.py")
    if path.relative_to(SOURCE).as_posix() not in ("_core/__init__.py", "_tools/__init__.py")  # that only hold folders
}
# The folders and modules in the order of the table "Where things live": each stands on those above it.
STORY = re.findall(r"^\| `([\w.]+)` \|", CONTRIBUTING.read_text(), re.MULTILINE)


def _folder(room):
    """The part of the house that a room belongs to."""
    parts = room.split(".")
    inner = ".".join(parts[:2])
    return inner if inner in STORY or parts[0] in ("_core", "_tools") else parts[0]


def _imports(room):
    """The rooms of this house that a room imports from, at the top or inside a function."""
    package = room.split(".") if ROOMS[room].name == "__init__.py" else room.split(".")[:-1]
    package = [] if room == "__init__" else package
    for node in ast.walk(ast.parse(ROOMS[room].read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            yield from (".".join([*base, name]) for name in names)


def test_the_story_names_every_folder():
    assert sorted(STORY) == sorted({_folder(room) for room in ROOMS})


def test_imports_go_against_the_story_nowhere():
    for room in ROOMS:
        for imported in _imports(room):
            assert STORY.index(_folder(imported)) <= STORY.index(_folder(room)), f"{room} imports {imported}"


def test_no_two_rooms_import_each_other():
    """A circle of imports raises, and is told."""
    graphlib.TopologicalSorter({room: _imports(room) for room in ROOMS}).prepare()


def test_no_room_is_over_500_lines():
    assert {p.name: n for p in SOURCE.rglob("*.py") if (n := len(p.read_text().splitlines())) > 500} == {}


def test_all_is_the_namespace():
    public = {n for n, thing in vars(dtypeguard).items() if not n.startswith("_") and not isinstance(thing, ModuleType)}
    later = {*dtypeguard._HOME, *dtypeguard._MODULES} - {"testing"}  # which needs hypothesis
    assert public | later == set(dtypeguard.__all__)
    assert dtypeguard.__all__ == sorted(dtypeguard.__all__)


def test_a_star_import_gives_every_public_name():
    code = "import dtypeguard; from dtypeguard import *; print({*dtypeguard.__all__} - {*dir()})"
    assert _run(code).strip() == "set()"
    assert {*dtypeguard.__all__, "testing"} <= {*dir(dtypeguard)}
    assert not [name for name in dir(dtypeguard) if name[:1] == "_" != name[1:2]]


def test_init_defines_nothing():
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    assert not [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and not n.name.startswith("__")]


def test_public_classes_show_their_public_path():
    for home in (dtypeguard, dtypeguard.results):
        for name in home.__all__:
            thing = getattr(home, name)
            if isinstance(thing, type):
                assert thing.__module__ == home.__name__, name


def test_the_changelog_s_top_version_is_the_package_s():
    changelog = (SOURCE.parents[1] / "CHANGELOG.md").read_text()
    assert re.findall(r"^(?:## |Becomes )\[(\d+\.\d+\.\d+)\]", changelog, re.MULTILINE)[0] == dtypeguard.__version__


def _run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_loads_nothing_but_names():
    told = _run("import sys, dtypeguard; print(*[name for name in sys.modules if name[:5] in ('torch', 'dtype')])")
    assert told.split() == ["dtypeguard"]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["rules"], ["rules", "DG3", "DG001"]], ids=" ".join)
def test_what_the_command_line_says_of_itself_needs_no_torch(arguments):
    command = [sys.executable, "-X", "importtime", "-m", "dtypeguard", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout
    assert "| dtypeguard" in run.stderr  # the table of modules
    assert not re.search(r"\| +(torch|numpy|jaxtyping)\b", run.stderr)


def test_what_is_used_loads_nothing_that_is_optional_and_starts_no_accelerator():
    use = "import dtypeguard; dtypeguard.enforce, dtypeguard.guard"
    loaded = _run(f"import sys, torch; before = set(sys.modules); {use}; print(*set(sys.modules) - before)")
    roots = {name.split(".")[0] for name in loaded.split()}
    assert not roots & {"beartype", "hypothesis", "rich", "pytest", "transformers", "lightning", "pytorch_lightning"}
    assert "torch._dynamo" not in loaded.split()
    assert _run(f"{use}; import torch; print(torch.cuda.is_initialized())").strip() == "False"


def test_a_tensor_only_contract_never_loads_beartype():
    code = """
import sys, torch, dtypeguard
from jaxtyping import Float
@dtypeguard.enforce
def f(x: Float[torch.Tensor, "b"], n: int = 1) -> Float[torch.Tensor, "b"]: return x
f(torch.ones(2)); print("beartype" in sys.modules)
"""
    assert _run(code).strip() == "False"
