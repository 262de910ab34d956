"""Pictures as SVG: what is drawn of data, as a file and in a page, and how it looks in a browser."""

import math
import re
import xml.dom.minidom
from pathlib import Path

import pytest
from browser import FAINT, GROUNDS, THEMES, UNCLEAR, WIDTHS, Browser, chromium, needs_browser

from dtypeguard._show.document import markup
from dtypeguard._show.fragment import framed
from dtypeguard._show.svg import (
    Axis,
    Bars,
    Cell,
    Chart,
    Limit,
    Mark,
    Matrix,
    Row,
    Series,
    Stack,
    alone,
    colours,
    inline,
)

LONG = "encoder.layers.{}.attention.self.query_projection.weight"
CELLS = [Cell("good", "runs", "f32"), Cell("warn", "repaired", "f64,f32"), Cell("bad", "refused"), Cell("unknown", "?")]


def percent(value):
    return f"{100 * value:g} %"


PICTURES = {
    "curve": Chart(
        "Net in bfloat16: error against the share of parameters that are kept in float32",
        Axis("parameters in float32", said=percent),
        Axis("error", log=10, said=percent),
        [
            Series([(0, 0.1), (0.02, 0.03), (0.1, 0.02), (0.6, 0.002), (1, 0.0004)], "expected", shape="steps"),
            Series([(0, 0.2), (0.5, 0.02), (1, 0.001)], "measured", "f1"),
        ],
        [Mark(0.1, 0.02, "chosen: 2 %"), Mark(0.6, 0.002, "knee", hollow=True), Mark(0.11, 0.018, "mxfp8", "f1")],
        [Limit(0.01, "1 %"), Limit(0.5, "half of all", "edge", "x")],
    ),
    "ranges": Bars(
        "Range of values by layer",
        [
            Row(LONG.format(n), [(2.0 ** -(30 + n), 8.0, "f6"), (0.0625, 1.0, "f0")], "2^-30 to 2^3", depth=n)
            for n in range(4)
        ],
        Axis("absolute value", log=2),
        [
            Limit(2.0**-24, "float16 smallest", axis="x"),
            Limit(65504.0, "float16 largest", axis="x"),
            Limit(448.0, "e4m3 largest", "edge", axis="x"),
        ],
        [("f6", "all values"), ("f0", "half of them")],
    ),
    "matrix": Matrix(
        "Net: in which dtypes does it run?",
        ["float32", "float64", "float16", "bfloat16"],
        [("float32", "", CELLS), ("bfloat16", "in float16", CELLS)],
        "inputs",
        "parameters",
        [("good", "runs"), ("warn", "repaired by a guard"), ("bad", "refused"), ("unknown", "unknown")],
    ),
    "histogram": Chart(
        "Exponents",
        Axis("exponent"),
        Axis("values"),
        [Series([(-20, 1), (-19, 40), (-18, 500), (-17, 80), (-16, 0)], shape="bars")],
        limits=[Limit(-18, "normal in e5m2", axis="x")],
    ),
    "nothing": Chart("nothing", Axis("x"), Axis("y", log=10), [Series([(0, 0.0), (1, math.inf), (2, math.nan)])]),
    "empty": Bars("empty", []),
    "float64": Bars("float64", [Row("a", [(0.0, math.inf, "f0")])], Axis(log=2), [Limit(5e-324), Limit(1.7e308)]),
}


PICTURES["stack"] = Stack("a run", [PICTURES["histogram"], PICTURES["curve"]])

FILE = Path(__file__).parent / "golden" / "picture.svg"
GOLDEN = Chart(
    "error against bits", Axis("bits"), Axis("error", log=10), [Series([(4, 0.1), (8, 0.01)])],
    [Mark(6, 0.04, "chosen")], [Limit(0.02, "at most")],
)  # fmt: skip


@pytest.mark.parametrize("name", PICTURES)
def test_a_file_is_xml_that_needs_nothing_else(name):
    text = alone(PICTURES[name])
    root = xml.dom.minidom.parseString(text).documentElement
    assert (root.getAttribute("role"), root.getAttribute("aria-label")) == ("img", PICTURES[name].title)
    assert root.getElementsByTagName("title")[0].firstChild.data == PICTURES[name].title
    assert not re.search(r"var\(|url\(|<script|nan|inf\b", text)


def test_what_the_program_holds_is_text():
    nasty = '</text><script>"&\x1b\udcff'
    pictures = (
        Bars(nasty, [Row(nasty, [], nasty, told=nasty)], Axis(nasty), [Limit(1, nasty, axis="x")], [("f0", nasty)]),
        Chart(nasty, Axis(), Axis(), [Series([(0, 1)], nasty)], [Mark(0, 1, nasty)], [Limit(1, nasty)]),
        Matrix(nasty, [nasty], [(nasty, nasty, [Cell("bad", nasty, nasty)])], nasty),
    )
    for text in (f(picture) for f in (alone, inline) for picture in pictures):
        assert xml.dom.minidom.parseString(text.encode("utf-8")).getElementsByTagName("script") == []


def test_a_file_is_as_it_was():
    """After a change that is meant: `python tests/test_pictures.py`."""
    assert alone(GOLDEN) == FILE.read_text("utf-8")


def test_a_small_picture():
    """Across in percent, from 16 to 97; down in px: the limit is in the middle of two decades."""
    chart = Chart("t", Axis("x"), Axis("y", log=10), [Series([(0, 0.1), (4, 10.0)])], limits=[Limit(1.0, "one")])
    text = inline(chart)
    assert re.findall(r'<polyline points="(.*?)"', text) == ["16.0,218.0 97.0,28.0"]
    assert re.findall(r'<line x1="16.0%" x2="97.0%" y1="([^"]*)" y2="[^"]*" stroke="var\(--above\)"', text) == ["123.0"]
    assert re.findall(r">([^<>]+)</text>", text) == ["y", "0.1", "1", "10", "0", "1", "2", "3", "4", "x", "one"]


def test_light_colours_tell_dark_ones():
    """A file finds the dark colour by the light one."""
    light = [one for one, _ in colours().values()]
    assert len(set(light)) == len(light)


# --- in a browser -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def driver():
    with chromium() as browser:
        yield browser


@needs_browser
@pytest.mark.thin(2)
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_texts_are_legible_and_apart(driver, tmp_path, width, theme):
    pictures = framed("pictures", "all", *(markup(inline(picture)) for picture in PICTURES.values()))
    (tmp_path / "pictures.html").write_text(pictures, "utf-8")
    page = Browser(driver, tmp_path).open("pictures", theme, width)
    assert page.ask(UNCLEAR) == []
    assert page.ask(FAINT, GROUNDS[theme]) == []
    assert page.noise() == []
    for picture in PICTURES.values():
        (tmp_path / "file.svg").write_text(alone(picture), "utf-8")
        page.emulate("DeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        driver.get((tmp_path / "file.svg").as_uri())
        assert page.ask(UNCLEAR) == []
        assert page.ask(FAINT, GROUNDS[theme]) == []


if __name__ == "__main__":
    FILE.write_text(alone(GOLDEN), "utf-8")
