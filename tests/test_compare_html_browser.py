"""The page of a comparison in a real browser: how it fits, what opens, both colour schemes, and that it asks nobody."""

import pytest
from browser import CONTRAST, FAINT, GROUNDS, OVERFLOW, THEMES, UNCLEAR, WIDTHS, Browser, chromium, needs_browser
from compare_page import big, comparison, sample

from dtypeguard._tools.compare.page import render

pytestmark = needs_browser
OPEN = "for (const e of document.querySelectorAll('details')) e.open = true"
# Text that is wider or higher than what it stands in.
CUT = """
const clipped = (e) => getComputedStyle(e).overflowX !== "visible";
return [...document.querySelectorAll("main *, header *")].filter((e) => e.checkVisibility() && clipped(e) &&
  !e.closest(".strip") && !(e instanceof SVGElement) && e.scrollWidth > e.clientWidth + 1)
  .map((e) => `${e.tagName}.${e.className}`);
"""
# Names on the strip that leave it: below, or past the ends of what it scrolls over.
LEFT = """
const strip = document.querySelector(".strip"), svg = strip.querySelector("svg").getBoundingClientRect();
return [...strip.querySelectorAll("text")].filter((e) => {
  const box = e.getBoundingClientRect();
  return box.left < svg.left - 1 || box.right > svg.right + 1 || box.bottom > svg.bottom + 1;
}).map((e) => e.textContent);
"""


@pytest.fixture(scope="module")
def driver():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    bare = sample() | {"explained": None, "linear": False, "parts": [], "lines": [], "parameters": {}}
    bare["layers"] = [row | {"share": None, "saves": None} for row in bare["layers"]]
    data = {"sample": sample(), "big": big(), "bare": bare, "empty": comparison(error=0.0, explained=None)}
    for name, one in data.items():
        (folder / f"{name}.html").write_text(render(one), encoding="utf-8")
    return folder


@pytest.fixture
def page(driver, pages):
    browser = Browser(driver, pages).open("sample")
    yield browser
    driver.execute_script("localStorage.clear()")
    assert browser.noise() == [], "the console stays silent"


# --- looks --------------------------------------------------------------------------------------------------------


@pytest.mark.thin(2)
@pytest.mark.parametrize("name", ["sample", "big", "bare", "empty"])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_page(page, width, name):
    page.open(name, "light", width)
    for opened in (False, True):
        if opened:
            page.ask(OPEN)
        beyond, wide = page.ask(OVERFLOW, ".strip")
        assert beyond <= 0
        assert wide == []
        assert page.ask(CUT) == []
        assert page.ask(UNCLEAR) == []


@pytest.mark.thin(2)
@pytest.mark.parametrize("name", ["sample", "big", "bare"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_strip_holds_its_names_and_scrolls_in_itself(page, width, name):
    page.open(name, "light", width)
    assert page.ask(LEFT) == []
    inside, shown = page.ask("const s = document.querySelector('.strip'); return [s.scrollWidth, s.clientWidth]")
    assert (inside > shown) is (name == "big" and width == 390)


@pytest.mark.thin(2)
@pytest.mark.parametrize("theme", THEMES)
def test_text_stands_out(page, theme):
    page.open("sample", theme)
    page.ask(OPEN)
    worst = page.ask(CONTRAST, ".badge, s, dt, a:not(svg a), code, p, button, .site, .share, .of, .verdict b, .key, li")
    assert page.ask(FAINT, GROUNDS[theme]) == []
    assert {"of above", "share takes", "badge keep"} <= set(worst)
    assert {name: round(ratio, 2) for name, ratio in worst.items() if ratio < 4.5} == {}


@pytest.mark.thin(2)
@pytest.mark.parametrize("theme", THEMES)
def test_the_toggle_changes_the_colours(page, theme):
    page.open("sample", theme)
    colours = """
const fill = (part) => getComputedStyle(document.querySelector(`.strip .${part}`)).fill;
return [getComputedStyle(document.body).backgroundColor, ...["e", "weights", "kept"].map(fill)];
"""
    before = page.ask(colours)
    page.click("#theme")
    after = page.ask(colours)
    assert [one == other for one, other in zip(before, after, strict=True)] == [False] * 4


# --- clicks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
def test_the_lines_of_a_layer_open_by_a_click(page, width):
    page.open("sample", "light", width)
    assert page.shown(".layer .code") == []
    page.click(".layer.kept > summary")
    (lines,) = page.shown(".layer .code")
    assert "model.py:" in lines
    page.click(".layer.kept > summary")
    assert page.shown(".layer .code") == []


def test_all_layers_open_by_a_click(page):
    page.open("big")
    assert len(page.shown(".layer")) == 12
    page.click("#layers .rest > summary")
    assert len(page.shown(".layer")) == 500


def test_a_module_on_the_strip_leads_to_its_row(page):
    page.open("big")
    link = page.all(".strip a")[250]
    row = page.ask("return arguments[0].getAttribute('href')", link)
    link.click()
    assert page.ask("return location.hash") == row
    page.ask("return new Promise((done) => setTimeout(done, 50))")
    assert page.shown(f"{row} .code") != [], "what was folded is open"
    top = page.ask("return document.querySelector(arguments[0]).getBoundingClientRect().top", row)
    assert 0 <= top < WIDTHS[1280]


def test_keys_are_enough(page):
    page.ask("document.querySelector('.layer > summary').focus()")
    page.ask("return document.activeElement").send_keys("\ue007")  # enter
    assert len(page.shown(".layer .inside")) == 1


# --- alone --------------------------------------------------------------------------------------------------------


def test_nobody_is_asked(page):
    page.asked()
    page.open("sample")
    page.ask(OPEN)
    page.click("#theme")
    urls = page.asked()
    assert [url for url in urls if not url.startswith(("file:", "data:", "about:"))] == []
    assert any(url.startswith("file:") for url in urls)


def test_without_javascript_a_click_opens(page):
    page.emulate("ScriptExecutionDisabled", value=True)
    try:
        page.open("sample")
        page.one(".layer.kept > summary").click()
        assert page.one(".layer.kept .code").text.startswith("15 %")
        assert not page.one("#theme").is_displayed()
    finally:
        page.emulate("ScriptExecutionDisabled", value=False)
