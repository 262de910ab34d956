"""What the page of a comparison has for formats: bars by layer, error against bits, gradients, and what stays."""

import itertools
import math
import re

import pytest
import torch
from browser import CONTRAST, FAINT, GROUNDS, OVERFLOW, THEMES, UNCLEAR, WIDTHS, Browser, chromium, needs_browser
from compare_page import NASTY, comparison, layer
from html_page import Page, allowed
from torch import nn

from dtypeguard import compare
from dtypeguard._show.fragment import body, drawn, framed
from dtypeguard._show.svg import inline
from dtypeguard._tools.compare.formats_page import parts_of_formats, parts_of_placed
from dtypeguard._tools.compare.page import parts_of, render
from dtypeguard._tools.compare.pictures import knee, of_formats, of_placed

CURVE = [[4.5, 0.2], [5.0, 0.02], [6.5, 0.01], [8.25, 0.002], [32.0, 0.0]]


def placed(**rest):
    return {
        "names": ["head", "fc"], "formats": {"a": "nvfp4", "b": "mxfp8"}, "error": 0.011, "runs": 2, "bits": 6.5,
        "gradient": 0.03, "attention": None, "stays": {"head": "10 outputs"}, "curve": CURVE, "notes": [],
        "wide": "float32", **rest,
    }  # fmt: skip


def one(title, alone, stays=None, **rest):
    """A comparison in one format, of layers that alone make these errors."""
    layers = [layer(name, "Linear", arithmetic=0.5, error=0.1) | {"alone": error} for name, error in alone.items()]
    found = {"format": title, "arithmetic": "activations", "attention": False, "by_format": {}, "placed": None}
    return comparison(layers, **found, stays=stays or {}, gradient=None, gradients=None, **rest)


def sample(**rest):
    data = one("nvfp4", {"a": 0.02, "b": 0.08, "fc": 0.001, "head": None}, {"head": "10 outputs"})
    other = one("mxfp8", {"a": 0.004, "b": 0.01, "fc": None, "head": 0.001})
    gradients = {f"model.layers.{n}.self_attn.q_proj.weight": 0.5 - n / 100 for n in range(20)}
    data |= {"gradient": 0.25, "gradients": gradients}
    return data | {"by_format": {"mxfp8": other | {"gradient": 0.125, "gradients": gradients}}} | rest


def bars(page):
    """For each layer and format the length of its bar, or what stands there."""
    found = {}
    for row in page.all("div", "alone"):
        inside = [e for e in page.elements if row["from"] <= e["from"] and e.get("to", e["from"]) <= row["to"]]
        name = next(page.said(e) for e in inside if e["tag"] in ("a", "b"))
        for line in (e for e in inside if e["tag"] == "li"):
            rect = [e for e in page.all("rect") if e["around"]["around"] is line]
            said = page.said(line)
            title = page.said(next(e for e in inside if e["around"] is line))
            found[name, title] = (float(rect[0]["width"][:-1]) if rect else 0.0, said[len(title) :])
    return found


def test_each_layer_has_a_bar_for_each_format_on_one_scale():
    found = bars(Page(render(sample())))
    assert {key: width for key, (width, _) in found.items() if width} == {
        ("b", "nvfp4"): 100, ("a", "nvfp4"): 25, ("b", "mxfp8"): 12.5, ("a", "mxfp8"): 5, ("fc", "nvfp4"): 1.25,
        ("head", "mxfp8"): 1.25,
    }  # fmt: skip
    assert next(name for name, title in found if title == "nvfp4") == "b", "the largest error comes first"
    assert found["a", "nvfp4"][1] == "2 %"
    assert found["fc", "mxfp8"] == (0, "0 %")
    assert found["head", "nvfp4"] == (0, "stays: 10 outputs")


def test_a_format_has_one_colour_everywhere():
    page = Page(render(sample(placed=placed())))
    colours = {}
    for key in page.all("span", "key"):
        hues = [kind for kind in key["class"].split() if re.fullmatch(r"f\d", kind)]
        colours.setdefault(page.said(key), set()).update(hues)
    assert {name: colours[name] for name in ("nvfp4", "mxfp8")} == {"nvfp4": {"f0"}, "mxfp8": {"f1"}}


def test_what_was_chosen_stands_by_the_layer():
    page = Page(render(sample(placed=placed())))
    chosen = [(e, page.said(e)) for e in page.all("span", "badge")]
    rows = [(page.said(e), [said for badge, said in chosen if e is badge["around"]]) for e in page.all("p", "name")]
    assert [(name.split()[0], said) for name, said in rows] == [
        ("b", ["mxfp8"]), ("a", ["nvfp4"]), ("fc", ["float32"]), ("head", ["float32"]),
    ]  # fmt: skip
    assert "1.1 % 6.5 bits a weight; verified by 2 runs; gradients 3 %" in " ".join(page.text.split())


@pytest.mark.parametrize(
    ("points", "found"),
    [
        ([(4.0, 1.0), (6.0, 0.01), (14.0, 1e-5)], (6.0, 0.01)),  # the line passes 0.1 there
        ([(4.0, 1.0), (5.0, 0.5), (6.0, 0.01), (14.0, 1e-5)], (6.0, 0.01)),
        ([(4.0, 1.0), (8.0, 0.1), (12.0, 0.01)], None),  # straight
        ([(4.0, 1.0), (8.0, 0.5), (12.0, 0.01)], None),  # it bends away
        ([(4.0, 1.0), (4.0, 0.5)], None),
        ([(4.0, 1.0)], None),
    ],
)
def test_the_knee_is_farthest_below_the_line_between_the_ends(points, found):
    assert knee(points) == found


def test_the_curve_leaves_out_zero_and_tells_the_knee_and_what_was_chosen():
    page = Page(inline(of_placed(placed())))
    (line,) = page.all("polyline")
    assert len(line["points"].split()) == len(CURVE) - 1
    assert {"chosen: 6.5 bits, 1.1 %", "knee: 5 bits, 2 %"} <= {page.said(e) for e in page.all("text")}
    heights = [float(point.split(",")[1]) for point in line["points"].split()]
    steps = [low - high for high, low in itertools.pairwise(heights)]
    assert steps[1] / steps[0] == pytest.approx(math.log10(2), abs=0.01), "one step for each power of ten"


@pytest.mark.parametrize(
    "rest",
    [
        {"curve": []},
        {"curve": [[32.0, 0.0]]},
        {"curve": [[4.5, "inf"], [32.0, 0.0]], "error": "inf", "gradient": "nan"},
        {"curve": [[8.0, 0.1], [8.0, 0.1]], "error": 0.0, "bits": 32.0},
        {"curve": [[8.0, 0.1], [16.0, "nan"], [20.0, 1e-300]], "error": "nan"},
    ],
)
def test_errors_that_no_scale_holds_break_nothing(rest):
    data = sample(placed=placed(**rest), gradient="nan", gradients={"a.weight": "nan", "b.weight": "inf"})
    page = Page(render(data))
    assert not re.search(r"\b(nan|inf)\b", page.text)
    Page(body(*parts_of(data, "nvfp4"), *parts_of_formats(data)))
    Page(body(*parts_of_placed(data["placed"])))
    for picture in (of_formats(data), of_placed(data["placed"])):
        assert not re.search(r"\b(nan|inf)\b", inline(picture))


def test_bars_that_no_scale_holds():
    page = Page(render(one("fp8", {"a": "nan", "b": "inf", "c": 0.0, "d": 0.1})))
    found = bars(page)
    assert found["a", "fp8"] == found["b", "fp8"] == (100, "not finite")
    assert found["c", "fp8"] == (0, "0 %")
    assert found["d", "fp8"] == (100, "10 %")
    data = one("fp8", dict.fromkeys("ab"), {"b": "a router"}, explained=None)
    data["layers"] = [row | {"share": None, "saves": None} for row in data["layers"]]
    assert bars(Page(render(data)))["b", "fp8"] == (0, "stays: a router")


def test_gradients_are_a_table_that_folds_after_twelve():
    page = Page(render(sample()))
    (section,) = [e for e in page.all("section") if e["id"] == "gradients"]
    text = page.said(section)
    assert text.split()[:4] == ["Gradients", "25", "%", "in"]
    (fold,) = [e for e in page.all("details") if "gradients" in page.within(e)]
    assert "8 more parameters" in page.said(fold)
    assert "layers.11." not in page.said(fold)
    assert all(e["id"] != "gradients" for e in Page(render(one("fp8", {"a": 0.1}))).all("section"))


def test_activations_are_called_so():
    page = Page(render(sample()))
    (main,) = page.all("main")
    for text in (page.said(main), Page(body(*parts_of(sample(), "nvfp4"))).text):
        assert "activations" in text
        assert "arithmetic" not in text


def test_names_are_never_markup_and_nothing_is_fetched():
    data = one("nvfp4", {NASTY: 0.1, "b": 0.2}, {"<b>bold": NASTY})
    data |= {"gradients": {NASTY: 0.1}, "gradient": 0.1}
    data |= {"placed": placed(formats={NASTY: "nvfp4"}, names=["<i>"], stays={"<i>": NASTY}, notes=[NASTY])}
    text = render(data)
    cells = body(*parts_of(data, "nvfp4"), *parts_of_formats(data)), body(*parts_of_placed(data["placed"]))
    assert allowed(text) == {"script", "style"}
    for page in (Page(text), *map(Page, cells)):
        assert NASTY in page.text
        assert len(page.all("script")) <= 1
        assert page.all("i") == []
        assert [e for e in page.elements if any(name.startswith("on") or name == "style" for name in e)] == []
        assert [e for e in page.elements if "src" in e or not e.get("href", "#").startswith(("#", "data:"))] == []
    page = Page(text)
    ids = [e["id"] for e in page.elements if "id" in e]
    assert len(ids) == len(set(ids))


@pytest.fixture(scope="module")
def result():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10))
    return compare(model, torch.randn(8, 64), format=("nvfp4", "mxfp8"), loss=lambda out: out.square().mean())


def test_a_comparison_in_formats_shows_all_of_it(result):
    before = Page(result.to_html())
    assert before.all("polyline") == []
    kept = result.keep(bits=12)
    page = Page(result.to_html())
    assert "Sequential in nvfp4" in page.text
    assert "stays: 10 outputs, not divisible by 16" in page.text
    assert {title for _, title in bars(page)} == {"nvfp4", "mxfp8"}
    assert {name for name, _ in bars(page)} == {"0", "2", "4"}
    assert len(page.all("polyline")) == 1
    cell = Page(result._repr_html_()).text
    for text in ("output error that a layer alone makes", "gradients: error", "12 bits a weight", "10 outputs"):
        assert text in cell.replace(f"{kept.bits:.3g} bits", "12 bits")
    assert len(Page(kept._repr_html_()).all("polyline")) == 1
    assert allowed(kept.to_html()) == {"script", "style"}


# --- in a browser -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def driver():
    with chromium() as browser:
        yield browser


@needs_browser
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_all_fits_and_can_be_read(driver, tmp_path, theme, width):
    data = sample(placed=placed(notes=["a note"], formats={NASTY: "mxfp8"}), format="nvfp4:sr:hadamard")
    (tmp_path / "page.html").write_text(render(data), encoding="utf-8")
    title, *parts = parts_of_placed(placed())
    kept = framed("dtypeguard formats", title, drawn(of_placed(placed())), *parts)
    (tmp_path / "kept.html").write_text(kept, encoding="utf-8")
    browser = Browser(driver, tmp_path)
    for name in ("page", "kept"):
        browser.open(name, theme, width)
        browser.ask("for (const e of document.querySelectorAll('details')) e.open = true")
        beyond, wide = browser.ask(OVERFLOW, ".strip")
        assert beyond <= 0
        assert wide == []
        assert browser.ask(UNCLEAR) == browser.ask(FAINT, GROUNDS[theme]) == []
        worst = browser.ask(CONTRAST, ".key, .says, .badge, td, th, .alone s, .alone a, .facts")
        assert {kind: round(ratio, 2) for kind, ratio in worst.items() if ratio < 4.5} == {}
        assert browser.noise() == []
