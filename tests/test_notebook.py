"""In a notebook: results show themselves, cells that run again are silent, and what takes long says how far it is."""

import re
import sys
import types
from pathlib import Path

import pytest
import torch
from browser import CONTRAST, FAINT, GROUNDS, OVERFLOW, UNCLEAR, Browser, chromium, needs_browser
from html_page import Page
from torch import nn

import dtypeguard
from dtypeguard._core.base import progress

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
NOTEBOOK = Path(__file__).parents[1] / "examples" / "notebook.ipynb"


def ran(cells):
    """The outputs of each cell, in a kernel of its own: texts by their kind."""
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    return outputs_of(made)


def outputs_of(notebook):
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    return [dict(_all_texts(cell)) for cell in notebook.cells if cell.cell_type == "code"]


def _all_texts(cell):
    return [text for output in cell.outputs for text in _texts(output)]


def _texts(output):
    if output.output_type == "stream":
        return [(output.name, output.text)]
    return list(output.get("data", {}).items())


def titles_of(outputs):
    """The first line of each result, without what depends on the machine."""
    shown = [Page(text["text/html"].replace("<br>", "")) for text in outputs if "text/html" in text]
    return [re.sub(r"[\d.]+ %|torch \S+", "N", page.said(page.all("p", "title")[0])) for page in shown]


def test_the_example_runs_and_shows_what_is_kept_with_it():
    notebook = nbformat.read(NOTEBOOK, 4)
    kept = [dict(_all_texts(cell)) for cell in notebook.cells if cell.cell_type == "code"]
    outputs = outputs_of(notebook)
    assert (
        titles_of(outputs)
        == titles_of(kept)
        == [
            "Classifier not guarded",
            "repairs: 1 cast at 1 place",
            "audit FAIL: 2 warnings, 2 lines to change",
            "Classifier: 8 cells, 6 run, 2 repaired; kernels of cpu, N",
            "Classifier, bfloat16 against float64: output error N, explained N",
            "modules that stay in float32",
        ]
    )
    assert sum("CastWarning" in shown.get("stderr", "") for shown in outputs) == 1


SET_UP = """
import torch, dtypeguard
model = dtypeguard.guard(torch.nn.Linear(3, 1))
def call(x):
    return model(x)
"""
USE = "x = torch.ones(2, 3, dtype=torch.float64)\ny = model(x)"
WITHIN = "y = call(torch.ones(2, 3, dtype=torch.float64))"


def test_a_cell_that_runs_again_does_not_warn_again_and_an_edited_one_does():
    cells = [
        (SET_UP, False),
        (USE, True),
        (USE, False),
        (USE.replace("(2, 3", "(5, 3"), True),  # another line of the cell is edited, and it is another cell
        (USE, False),
        (WITHIN, True),
        (WITHIN + "  # the line that calls the model is in another cell", False),
        (SET_UP, False),
        (WITHIN, False),
        ("print(len(dtypeguard.casts()), dtypeguard.casts()[0].site)", False),
    ]
    outputs = ran([cell for cell, _ in cells])
    assert ["CastWarning" in shown.get("stderr", "") for shown in outputs] == [warns for _, warns in cells]
    assert outputs[-1]["stdout"] == "3 In[2]:2, in <module>\n", "a cell is named as its reader knows it"


def test_the_number_of_a_terminal_s_cell_does_not_count():
    model = dtypeguard.guard(nn.Linear(3, 1))
    names = {"model": model, "torch": torch}
    for file, warns in (
        ("<ipython-input-1-abc>", True),
        ("<ipython-input-7-abc>", False),
        ("<ipython-input-8-d>", True),
    ):
        with pytest.warns(dtypeguard.CastWarning) if warns else _silent():
            exec(compile(USE, file, "exec"), names)


def _silent():
    import warnings

    return warnings.catch_warnings(action="error")


# --- what is shown ------------------------------------------------------------------------------------------------


class Sums(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(20)))

    def forward(self, x):
        x.to(torch.float64)
        return self.layers(x)


def results():
    model, x = Sums(), torch.ones(2, 4)
    with pytest.warns(dtypeguard.CastWarning):
        dtypeguard.guard(model)(x.double())
    repairs = dtypeguard.casts()
    dtypeguard.unguard(model)
    with dtypeguard.audit(model) as report:
        model(x)
    comparison = dtypeguard.compare(model, x, dtype=torch.bfloat16)
    kept = comparison.keep(error=0.5)
    table = dtypeguard.dryrun(model, x, dtype=["float32", "bfloat16"], region=[None])
    watch = dtypeguard.amp.watch(model, torch.optim.SGD(model.parameters(), lr=0.1))
    watch.remove()
    return {
        "casts": repairs, "no casts": type(repairs)(), "audit": report, "findings": report.findings,
        "compare": comparison, "kept": kept, "dryrun": table, "cell": table["bfloat16", "float32", None],
        "watch": watch, "describe": dtypeguard.describe(model, depth="all"),
    }  # fmt: skip


def test_what_is_shown_is_one_element_that_leaks_nothing_and_reads_without_its_style():
    for name, result in results().items():
        shown = result._repr_html_().replace("<br>", "")
        page = Page(shown)
        (outer,) = [e for e in page.elements if e["around"] is None]
        assert (outer["tag"], outer["class"]) == ("div", "dtypeguard"), name
        (style,) = page.all("style")
        rules = re.findall(r"([^{}]+)\{", page.said(style))
        leaks = [one for rule in rules for one in rule.split(",") if "div.dtypeguard.dtypeguard" not in one]
        assert leaks == [], name
        tags = {e["tag"] for e in page.elements}
        assert not tags & {"script", "iframe", "link", "s", "u"}, name  # `s` would strike through without the style
        assert not any(key.startswith("on") or key in ("style", "id") for e in page.elements for key in e), name


def test_every_result_prints():
    shown = results()
    assert re.fullmatch(r"1 x Sums\.forward `x`: float64 -> float32, 32 B, at \S+:\d+, in results", str(shown["casts"]))
    assert (str(shown["no casts"]), repr(shown["no casts"]), shown["no casts"]) == ("no repairs", "[]", [])
    page = Page(shown["audit"]._repr_html_().replace("<br>", ""))
    assert "FAIL: 1 warning, 1 line to change" in page.text
    assert "help: keep the result: `x = x.to(torch.float64)`" in page.text


def test_what_the_program_holds_is_no_markup():
    nasty = "<script>alert('x')</script>"
    module = type(nasty, (nn.Module,), {"forward": lambda self, x: x})()
    for shown in (dtypeguard.describe(module)._repr_html_(), dtypeguard.describe(nn.Sequential(module))._repr_html_()):
        assert "<script" not in shown
    assert "&lt;script&gt;" in dtypeguard.describe(module)._repr_html_()


# --- progress -----------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    seconds = iter(range(10_000))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(seconds))


@pytest.fixture
def kernel(monkeypatch):
    """A notebook's kernel, as far as it shows outputs."""
    shown = []

    def display(data, raw, display_id):
        shown.append(data["text/plain"])
        return types.SimpleNamespace(update=lambda data, raw: shown.append(data["text/plain"]))

    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=None)
    ipython.display = types.SimpleNamespace(display=display)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    return shown


def audited():
    with dtypeguard.audit(values=True):
        x = torch.ones(3)
        for _ in range(30):
            x = x + 1


TASKS = {
    "compare": (lambda: dtypeguard.compare(Sums(), torch.ones(2, 4), dtype="bfloat16"), "compare(Sums): run"),
    "dryrun": (
        lambda: dtypeguard.dryrun(Sums(), torch.ones(2, 4), region=[None]),
        "dryrun(Sums): 2 of 16 cells in 3 s",
    ),
    "audit": (audited, "audit: "),
}


@pytest.mark.parametrize("name", TASKS)
def test_what_takes_long_says_so_below_the_cell_in_one_output(clock, kernel, name):
    task, text = TASKS[name]
    task()
    assert kernel[0].startswith(f"dtypeguard: {text}")
    assert kernel[-1] == "", "in the end nothing is left"


def test_an_audit_tells_a_terminal_in_lines_of_their_own(clock, monkeypatch):
    told = []
    monkeypatch.setattr(sys, "__stderr__", types.SimpleNamespace(isatty=lambda: True, write=told.append, flush=id))
    monkeypatch.setattr(sys.__stderr__, "flush", lambda: None)
    audited()
    assert re.match(r"dtypeguard: audit: \d+ operations in 11 s$", told[0])
    assert "\r" not in "".join(told)


# --- looks --------------------------------------------------------------------------------------------------------

# What JupyterLab says of tables, which ours must not take over.
AROUND = """<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<style>
.jp-RenderedHTMLCommon td { text-align: right }
.jp-RenderedHTMLCommon tbody tr:nth-child(odd) { background: #888 }
body { background: GROUND; color: TEXT }</style>
<body class="jp-RenderedHTMLCommon" data-jp-theme-light="LIGHT"><table id="other"><tr><td>1</td></tr></table>
"""


@needs_browser
def test_texts_stand_out_in_both_themes_and_nothing_around_changes(tmp_path):
    shown = "".join(result._repr_html_() for result in results().values())
    grounds = {"light": ("#fff", "#111", "true"), "dark": ("#111", "#eee", "false")}
    for theme, words in grounds.items():
        page = AROUND
        for name, word in zip(("GROUND", "TEXT", "LIGHT"), words, strict=True):
            page = page.replace(name, word)
        (tmp_path / f"{theme}.html").write_text(page + shown, encoding="utf-8")
    with chromium() as driver:
        reader = Browser(driver, tmp_path)
        for theme in grounds:
            reader.open(theme, {"light": "dark", "dark": "light"}[theme], 390)  # the notebook's theme, not the system's
            worst = reader.ask(CONTRAST, ".dtypeguard :is(p, td, th, code, b, span, pre, summary, a)")
            assert {kind: round(ratio, 2) for kind, ratio in worst.items() if ratio < 4.5} == {}
            assert reader.ask(UNCLEAR) == reader.ask(FAINT, GROUNDS[theme]) == []
            style = "const s = getComputedStyle(document.querySelector(arguments[0])); return [s.textAlign, s.fontSize]"
            assert reader.ask(style, "#other td") == ["right", "16px"]
            assert reader.ask(style, ".dtypeguard td:not(.number)")[0] == "left"
            assert reader.ask(OVERFLOW, ".dtypeguard")[0] <= 0
            reader.ask("for (const e of document.querySelectorAll('details')) e.open = true")
            assert reader.ask(OVERFLOW, ".dtypeguard")[0] <= 0
        assert reader.noise() == []


if __name__ == "__main__":
    example = nbformat.read(NOTEBOOK, 4)
    outputs_of(example)
    for one in example.cells:
        one.metadata = {}
    nbformat.write(example, NOTEBOOK)


def test_a_cell_is_audited_and_its_source_is_replaced_by_the_mended_one():
    cell = "%%dtypeguard --fix\nx = torch.ones(3)\nx.half()\nprint(x.sum().item())"
    made = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell(text)
            for text in ("%load_ext dtypeguard.integrations.notebook", "import torch", cell, "%%dtypeguard --fixx\n1")
        ]
    )
    replies = []
    client = nbclient.NotebookClient(
        made,
        timeout=120,
        kernel_name="python3",
        on_cell_executed=lambda execute_reply, **_: replies.append(execute_reply),
    )
    client.execute()
    outputs = [dict(_all_texts(one)) for one in made.cells]
    assert (
        "keeps the result of the cast (safe, not proven: a cell does not run again by itself)" in outputs[2]["stdout"]
    )
    assert "1 warning" in outputs[2]["text/plain"]
    ((payload),) = [one for one in replies[2]["content"]["payload"] if one["source"] == "set_next_input"]
    assert payload["replace"]
    assert "unrecognized arguments: --fixx (did you mean '--fix'?)" in outputs[3]["stdout"]
    assert payload["text"] == cell.replace("x.half()", "x = x.half()") + "\n"
