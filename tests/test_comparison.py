"""The tables in docs/explanation/comparison.md: a cell is what its program answers, with the page's versions."""

import copy

import comparison
import pytest
import torch
from comparison import OURS, PACKAGES, PAGE, TABLES, costs, split, version

AGAIN = "run `python tests/comparison.py`"


def read(name):
    """A table of the page: its rows, each with its title first."""
    lines = split(PAGE.read_text(), name)[1].strip().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:1] + lines[2:]]


WRITTEN = dict(zip(*read("versions"), strict=True))
CELLS = [
    pytest.param(
        table, row, tool, id=f"{tool.name}-{row.__name__}", marks=() if tool.name == OURS else pytest.mark.slow
    )
    for table in TABLES
    for row in table.rows
    for tool in table.tools
]


def test_the_page_has_these_rows_and_columns():
    assert tuple(WRITTEN) == PACKAGES
    for table in TABLES:
        head, *rows = read(table.name)
        figures = [line.split("|")[1].strip() for line in costs(table.tools)] if table.name == "contracts" else []
        assert head[1:] == [tool.name for tool in table.tools]
        assert [row[0] for row in rows] == [row.__doc__ for row in table.rows] + figures, (
            "run python tests/comparison.py"
        )


def test_the_costs_are_those_of_the_benchmarks():
    table = TABLES[0]
    measured = costs(table.tools)
    assert split(PAGE.read_text(), table.name)[1].strip().splitlines()[-len(measured) :] == measured
    assert all(figures.count("x |") >= 3 for figures in measured)


@pytest.mark.parametrize(("table", "row", "tool"), CELLS)
def test_a_cell_is_what_its_program_answers(table, row, tool):
    if tool.it is None:
        pytest.skip(f"{tool.name} is not installed")
    for package in (*tool.packages, "torch"):
        if tool.name != OURS and version(package) != WRITTEN[package]:
            pytest.skip(f"the page is about {package} {WRITTEN[package]}, not {version(package)}")
    head, *rows = read(table.name)
    (written,) = (cells[head.index(tool.name)] for cells in rows if cells[0] == row.__doc__)
    try:
        answer = table.cell(row, tool)
    except ModuleNotFoundError as missing:  # pydantic, which a tool brings
        pytest.skip(str(missing))
    assert answer == written, AGAIN


@pytest.mark.filterwarnings("ignore")
def test_torchtyping_checks_dtypes_and_refuses_right_sizes():
    torchtyping = pytest.importorskip("torchtyping")  # needs another typeguard than the rest: an environment of its own
    from typeguard import typechecked

    torchtyping.patch_typeguard()

    @typechecked
    def dtype(x: torchtyping.TensorType[torch.float32]):
        return x

    @typechecked
    def sizes(x: torchtyping.TensorType["n"]):
        return x

    dtype(torch.ones(2))
    with pytest.raises(TypeError, match="float32"):
        dtype(torch.ones(2, dtype=torch.float64))
    with pytest.raises(AttributeError, match="names"):
        sizes(torch.ones(2))


def test_the_numeric_suite_tells_how_far_the_output_of_each_layer_is_off():
    suite = pytest.importorskip("torch.ao.ns._numeric_suite_fx")
    from torch.ao.ns.fx.utils import compute_normalized_l2_error

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    low, x = copy.deepcopy(model).bfloat16(), torch.rand(16, 4)
    wide, narrow = suite.add_loggers("wide", model, "narrow", low, suite.OutputLogger)
    wide(x)
    narrow(x.bfloat16())
    found = suite.extract_logger_info(wide, narrow, suite.OutputLogger, "narrow")

    def error(one, other):
        return compute_normalized_l2_error(one, other.float())

    suite.extend_logger_results_with_comparison(found, "wide", "narrow", error, "error")
    errors = [layer["node_output"]["narrow"][0]["error"][0].item() for layer in found.values()]
    assert len(errors) == 2
    assert all(0 < error < 0.05 for error in errors)


def test_a_tool_that_is_missing_is_told_and_nothing_is_written(monkeypatch, capsys):
    gone = comparison.Tool("dltype", None)
    monkeypatch.setattr(comparison, "TABLES", (comparison.Table("contracts", (), (gone,)),))
    before = PAGE.read_text()
    assert comparison.main() == 1
    assert "not installed: dltype" in capsys.readouterr().err
    assert PAGE.read_text() == before
