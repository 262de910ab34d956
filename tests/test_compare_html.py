"""The page of a comparison: every fact is on it, what takes away too, and nothing else is needed to read it."""

import copy
import re

import pytest
import torch
from compare_page import NASTY, big, comparison, layer, part, sample
from compare_page import kept as what_is_kept
from html_page import Page, allowed
from torch import nn

from dtypeguard import compare
from dtypeguard._tools.compare.page import render

MINUS, ALMOST = "\N{MINUS SIGN}", "\N{ALMOST EQUAL TO}"


def rows(page, kind="layer"):
    """The rows of a list by what they are called, as text."""
    found = {}
    for element in page.all("details", kind):
        (name,) = [e for e in page.all("span", "name") if e["around"]["around"] is element]
        found[page.said(name).split()[0]] = page.said(element)
    return found


def words(text):
    return " ".join(text.split())


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


@pytest.fixture(scope="module")
def result():
    torch.manual_seed(0)
    return compare(Small(), torch.randn(8, 16), dtype=torch.bfloat16)


# --- a comparison -------------------------------------------------------------------------------------------------


def test_the_page_is_returned_and_written(result, tmp_path):
    page = result.to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text("utf-8") == page == result.to_html()
    assert allowed(page) == {"script", "style"}
    assert "<title>Small in bfloat16 · dtypeguard compare</title>" in page


def test_the_page_of_a_comparison_names_its_layers_and_lines(result):
    page = Page(result.to_html())
    names = {layer.name or "(the" for layer in result.layers}
    assert set(rows(page)) == names
    assert "return self.last(torch.relu(self.first(x)))" in rows(page)["last"]
    assert "last.weight" in rows(page)["last"]
    (line,) = rows(page, "line").values()
    assert "return self.last(torch.relu(self.first(x)))" in line


def test_what_is_kept_is_on_the_page():
    torch.manual_seed(0)
    result = compare(Small(), torch.randn(8, 16), dtype=torch.bfloat16)
    assert Page(result.to_html()).all("span", "badge") == []
    kept = result.keep(error=1e-6)
    page = Page(result.to_html())
    assert len(page.all("span", "keep")) > 1
    assert f"verified by {kept.runs} run" in page.text


def test_values_that_are_lost_are_named():
    class Overflows(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.b(self.a(x) * 1e8)

    torch.manual_seed(0)
    page = Page(compare(Overflows(), torch.randn(4, 8), dtype=torch.float16).to_html())
    assert "output error not finite values are lost" in words(page.text)
    assert "first above 1 % b its output is not finite" in words(page.text)
    assert "Values become infinite or NaN" in page.text
    assert "self.a(x) * 1e8" in page.text
    assert "not finite" in rows(page)["b"]
    assert page.all("rect", "lost") != []


def test_a_model_without_gradients_has_the_error_over_depth():
    class Picks(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x):
            return self.fc(x).argmax(-1)

    torch.manual_seed(0)
    page = Page(compare(Picks(), torch.randn(4, 8), dtype=torch.bfloat16).to_html())
    assert "integers that differ" in page.text
    assert re.search("explained . no shares", words(page.text))
    assert page.all("svg", "bar") == []
    assert "%" in rows(page)["fc"]
    assert len(page.all("rect", "e")) == 1


# --- facts --------------------------------------------------------------------------------------------------------


def test_the_verdict_is_on_top():
    page = Page(render(sample()))
    (head,) = page.all("header")
    text = words(page.said(head))
    for fact in (
        "Net in float16 autocast", "against float64", "9 modules", "9 forward runs", "output error 1.8 %",
        "explained 102 % is the sum of the shares", "first above 1 % blocks.0.fc 1.4 % in its output",
        "with 2 modules in float32 0.07 % verified by 2 runs", "x + residual: 3 of 32 values become infinite",
        "14 choices come out otherwise",
    ):  # fmt: skip
        assert fact in text


def test_shares_that_do_not_explain_the_error_are_not_called_its_sum():
    data = comparison([layer("a", "Linear", weights=0.6, error=0.1)], bisected=4)
    text = words(Page(render(data)).text)
    assert "explained 60 % not linear: measured by 4 runs" in text


def test_every_fact_of_a_layer_is_in_its_row():
    page = Page(render(sample()))
    text = words(rows(page)["blocks.0.fc"])
    for fact in (
        "20 %", "blocks.0.fc Linear", "1.4 %", "31 %", "weights 30 %", f"arithmetic {MINUS}10 %", "model.py:21",
        "x = self.fc(x)", "blocks.0.fc.weight stored in float16: 29 %", "blocks.0.fc.bias stored in float16: 1 %",
    ):  # fmt: skip
        assert fact in text
    assert f"{MINUS}15 %" in rows(page)["blocks.1.norm"]
    assert f"{ALMOST}0 %" in rows(page)["head"]
    assert "The rounding of the batch to float16." in rows(page)["(inputs)"]


def test_every_line_of_a_layer_has_its_share():
    page = Page(render(sample()))
    (row,) = [e for e in page.all("details", "layer") if "blocks.0 Block" in words(page.said(e))]
    (lines,) = [e for e in page.all("ul", "code") if row["id"] in page.within(e)]
    said = [words(page.said(e)) for e in page.all("li") if e["around"] is lines]
    assert [(text.split(" %")[0], text.split(":")[1].split()[0]) for text in said] == [("15", "21"), ("10", "22")]


def test_a_line_names_its_layers_with_the_largest_share_first():
    page = Page(render(sample()))
    (text,) = [words(text) for text in rows(page, "line").values() if "model.py:21" in text]
    assert text.startswith("45 % ")
    assert text.endswith("20 % blocks.0.fc 15 % blocks.0 10 % blocks.1.fc")


def test_bars_show_what_adds_and_what_takes_away():
    data = comparison(
        [
            layer("a", "Linear", weights=0.6, arithmetic=0.2, error=0.1),
            layer("b", "Linear", weights=0.3, arithmetic=-0.1, error=0.1),
            layer("c", "Linear", arithmetic=-0.2, error=0.1),
        ]
    )
    page = Page(render(data))

    def bar(name):
        (row,) = [e for e in page.all("details", "layer") if words(page.said(e)).split(" % ")[1].startswith(name)]
        (svg,) = [e for e in page.all("svg", "bar") if row["id"] in page.within(e)]
        inside = [e for e in page.elements if e["around"] is svg]
        pieces = {e["class"]: (float(e["x"][:-1]), float(e["width"][:-1])) for e in inside if e["tag"] == "rect"}
        return pieces, {e["class"]: float(e["x1"][:-1]) for e in inside if e["tag"] == "line"}

    # From -0.2 to 0.8: zero is at 20 %.
    assert bar("a") == ({"weights": (20.0, 60.0), "arithmetic": (80.0, 20.0)}, {"zero": 20.0})
    assert bar("b") == ({"weights": (20.0, 30.0), "arithmetic": (10.0, 10.0)}, {"zero": 20.0, "net": 40.0})
    assert bar("c") == ({"arithmetic": (0.0, 20.0)}, {"zero": 20.0})


# --- from input to output -----------------------------------------------------------------------------------------


def test_the_strip_has_the_modules_in_the_order_in_which_they_return():
    data = sample()
    page = Page(render(data))
    titles = [page.said(e).splitlines() for e in page.all("title") if e["around"].get("class") == "over"]
    names = [lines[0].split(" (")[0].strip() for lines in titles]
    order = [step["name"] or "(the model itself)" for step in data["depth"]]
    assert names == ["(inputs)", *(name.split(" (")[0] for name in order)]
    facts = dict(zip(names, titles, strict=True))
    assert facts["blocks.0.fc"][1:] == [
        "error of its output: 1.4 %", f"share: 20 %: weights 30 %, arithmetic {MINUS}10 %", "stays in float32",
    ]  # fmt: skip


def test_the_strip_is_logarithmic_and_red_above_one_percent():
    errors = {"a": 1e-4, "b": 1e-3, "c": 0.1}
    data = comparison([layer(name, "Linear", weights=0.3, error=error) for name, error in errors.items()])
    data["depth"] = [{"name": name, "error": error} for name, error in errors.items()]
    page = Page(render(data))
    bottom = {float(e["y"]) + float(e["height"]) for e in page.all("rect", "e")}
    assert len(bottom) == 1
    tops = [float(e["y"]) for e in page.all("rect", "e")]
    (over,) = page.all("rect", "above")
    (line,) = page.all("line", "large")
    assert tops[2] == float(line["y1"]), "what is above 1 % stands on the line"
    steps = [tops[0] - tops[1], tops[1] - tops[2], tops[2] - float(over["y"])]
    assert max(steps) - min(steps) < 0.3, "one step for each power of ten"
    assert "first at c" in page.text


def test_an_error_that_stays_small_has_no_mark():
    data = comparison([layer("a", "Linear", arithmetic=1.0, error=3e-7)], error=3e-7)
    data["curve"] = [(0.0, 3e-7), (0.5, 1e-3)]
    page = Page(render(data))
    assert "nowhere among the modules" in words(page.text)
    assert "output error 3e-05 %" in words(page.text)
    assert [page.said(e) for e in page.all("text") if "axis" in e["around"]["class"]][:2] == ["1e-05 %", "0.0001 %"]
    drawn = [page.said(e) for e in page.all("text") if "picture" in e["around"].get("class", "")]
    assert {"output error (%)", "1e-05", "0.0001", "0.1"} <= {*drawn}, "one unit on an axis"
    assert page.all("line", "large") == page.all("path", "first") == page.all("rect", "above") == []


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (["blocks.0"], {"blocks.0.norm", "blocks.0.fc", "blocks.0"}),
        (["embed"], {"embed"}),
        ([""], {row["name"] or "(the" for row in sample()["layers"]} - {"(inputs)"}),
        ([], set()),
    ],
)
def test_what_stays_in_float32_stands_out_with_all_that_is_in_it(names, kept):
    data = sample() | {"kept": what_is_kept(*names, error=0.001, runs=1)}
    page = Page(render(data))
    marked = [page.said(e) for e in page.all("details", "kept")]
    assert {name for name, text in rows(page).items() if text in marked} == kept
    assert len(page.all("rect", "kept")) == len(kept)


# --- safety -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [sample(), big(40), comparison()], ids=["sample", "big", "empty"])
def test_only_the_two_parts_of_the_page_may_run(data):
    assert allowed(render(data)) == {"script", "style"}


def test_what_the_program_holds_is_never_markup():
    page = Page(render(sample()))
    assert len(page.all("script")) == 1
    assert page.text.count(NASTY) > 3
    assert [e for e in page.elements if any(name.startswith("on") or name == "style" for name in e)] == []


def test_nothing_is_fetched():
    page = Page(render(sample()))
    assert [e for e in page.elements if "src" in e or "srcset" in e] == []
    assert all(e["href"].startswith("#") or e["href"] == "data:," for e in page.elements if "href" in e)
    (style,), (script,) = page.all("style"), page.all("script")
    assert not re.search(r"url\(|@import|@font-face", page.said(style))
    assert not re.search(r"fetch|XMLHttp|import\(|WebSocket|https?:|innerHTML|eval", page.said(script))


@pytest.mark.parametrize("data", [sample(), big(60)], ids=["sample", "big"])
def test_links_go_somewhere_and_ids_are_one_of_a_kind(data):
    page = Page(render(data))
    ids = [e["id"] for e in page.elements if "id" in e]
    assert len(ids) == len(set(ids))
    assert {e["href"][1:] for e in page.all("a") if e["href"].startswith("#")} <= set(ids)


def test_what_no_file_could_hold_is_written_otherwise():
    text = render(comparison([layer("a", "Linear", weights=1.0)], [part("a", 1, 1.0, source="x\udcff\x1b[31m")]))
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", text.encode("utf-8").decode("utf-8"))


def test_nothing_of_the_comparison_is_changed():
    data = sample()
    before = copy.deepcopy(data)
    assert render(data) == render(data)
    assert data == before


# --- small and large ----------------------------------------------------------------------------------------------


def test_a_comparison_without_modules_says_so():
    page = Page(render(comparison(error=0.0, explained=None, linear=False)))
    assert "No module ran." in page.text
    assert "None" not in page.text
    assert {e.get("id") for e in page.all("section")} == {"layers", "words"}


def test_a_large_model_shows_the_largest_shares_and_folds_the_rest():
    data = big()
    text = render(data)
    page = Page(text)
    assert len(text.encode()) < 1_500_000
    assert len(page.all("details", "layer")) == 500
    folds = page.all("details", "rest")
    assert [words(page.said(e)).split(" together")[0] for e in folds] == ["488 other layers", "28 other lines"]
    assert all("open" not in e for e in page.all("details"))

    def folded(element):
        while element := element["around"]:
            if "rest" in element.get("class", ""):
                return True
        return False

    shown = [e for e in page.all("details", "layer") if not folded(e)]
    assert [e["id"] for e in shown] == [f"l{n}" for n in range(12)]
    sums = sum(row["share"] for n, row in enumerate(data["layers"]) if f"l{n}" not in {e["id"] for e in shown})
    assert f"488 other layers together {100 * sums:.0f} %".replace("-", MINUS) in words(page.text)
    assert len([e for e in page.all("title") if e["around"].get("class") == "over"]) == 500


@pytest.mark.parametrize("count", [1, 12, 15, 16])
def test_a_few_layers_more_are_not_folded(count):
    page = Page(render(comparison([layer(f"a{n}", "Linear", weights=0.05, error=0.1) for n in range(count)])))
    assert len(page.all("details", "layer")) == count
    assert len(page.all("details", "rest")) == (count > 15)
