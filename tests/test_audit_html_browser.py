"""The page of a report in a real browser: what is shown, filtered, sorted, how it fits, and that it asks nobody."""

import itertools
import statistics

import pytest
from audit_page import big, repeated, report, sample
from browser import CONTRAST, OVERFLOW, THEMES, WIDTHS, Browser, chromium, needs_browser

from dtypeguard._show.report.html import render

pytestmark = needs_browser
TIMES = "\N{MULTIPLICATION SIGN}"
# From the key to the frame that shows what it found.
SEARCH = """
const [words, done] = arguments, box = document.getElementById("search");
box.value = words;
box.dispatchEvent(new Event("input"));
document.documentElement.scrollHeight;
requestAnimationFrame(() => setTimeout(done));
"""


PAGES = {
    "sample": sample(), "big": big(), "longer": big(40, 20, 260), "clean": report(), "repeated": repeated(),
}  # fmt: skip


@pytest.fixture(scope="module")
def driver():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for name, data in PAGES.items():
        (folder / f"{name}.html").write_text(render(data), encoding="utf-8")
    return folder


class Reader(Browser):
    """The reader of an audit's page."""

    def open(self, name="sample", theme="light", width=1280, hash=""):
        return super().open(name, theme, width, hash)

    def search(self, words):
        box = self.one("#search")
        box.send_keys("\ue009", "a")  # control and a: everything
        box.send_keys(words or "\ue003")  # backspace

    def counts(self):
        return self.one("#shown").text.split("\n")


@pytest.fixture
def page(driver, pages):
    reader = Reader(driver, pages).open()
    yield reader
    driver.execute_script("localStorage.clear()")
    assert reader.noise() == [], "the console stays silent"


# --- looks --------------------------------------------------------------------------------------------------------


@pytest.mark.thin(4)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theme", THEMES)
def test_nothing_is_wider_than_the_page(page, width, theme):
    for name in ("sample", "clean", "repeated"):
        page.open(name, theme, width)
        page.ask("for (const e of document.querySelectorAll('details')) e.open = true")
        beyond, wide = page.ask(OVERFLOW)
        assert beyond <= 0
        assert wide == []


@pytest.mark.thin(2)
@pytest.mark.parametrize("theme", THEMES)
def test_text_stands_out(page, theme):
    page.open(theme=theme)
    worst = page.ask(CONTRAST, ".t, .badge, .totals li, s, dt, a, code, p, th, button, .site, .rule, u, label")
    assert {"t f32", "t bf16", "t f64", "t f8", "t x", "badge error", "badge warning", "badge info"} <= set(worst)
    assert {name: round(ratio, 2) for name, ratio in worst.items() if ratio < 4.5} == {}


@pytest.mark.thin(2)
@pytest.mark.parametrize("theme", THEMES)
def test_the_toggle_changes_the_colours_and_is_remembered(page, theme):
    page.open(theme=theme)
    ground = "return getComputedStyle(document.body).backgroundColor"
    chip = "return getComputedStyle(document.querySelector('.t')).backgroundColor"
    before = page.ask(ground), page.ask(chip)
    assert page.one("#theme").text == {"light": "Dark", "dark": "Light"}[theme]
    for _ in range(8):
        page.click("#theme")
        after = page.ask(ground), page.ask(chip)
        assert before[0] != after[0]
        assert before[1] != after[1]
        page.reload()
        if page.ask("return localStorage.length"):  # else Chromium has lost it, as of one in ten pages from files
            break
    assert (page.ask(ground), page.ask(chip)) == after
    page.click("#theme")
    assert (page.ask(ground), page.ask(chip)) == before
    assert page.ask("return localStorage.length") == 0, "what the system says needs no memory"


# --- search and filters -------------------------------------------------------------------------------------------


def test_search_narrows_all_three(page):
    assert page.counts() == ["5 findings", "23 modules", "7 casts"]
    page.search("ROPE")
    assert page.counts() == ["2 of 5 findings", "3 of 23 modules", "1 of 7 casts"]
    assert all("rope" in text for text in page.shown(".finding") + page.shown("#casts tbody tr"))
    names = page.shown(".module > summary .name b")
    assert names == ["Net", "blocks", "0", "rope", "1", "rope", "2", "rope"], "what is around a hit stays, and is open"
    assert page.shown("#m3 > dl") == [], "of what is around, only the row"
    assert "promotion" in page.shown("#m7 > dl")[0], "a few hits are open"
    page.search("rope Promotion")  # every word, wherever it stands
    assert page.counts() == ["1 of 5 findings", "1 of 23 modules", "1 of 7 casts"]
    page.search("norm")
    assert page.shown(".module > summary .name b") == ["Net", "norm"]
    page.search("")
    assert page.counts() == ["5 findings", "23 modules", "7 casts"]


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("words", "counts"),
    [
        ("bfloat16", ["4 of 5 findings", "21 of 23 modules", "3 of 7 casts"]),  # by its full name
        ("f8e4m3fn", ["0 of 5 findings", "3 of 23 modules", "1 of 7 casts"]),
        ("<script>alert", ["1 of 5 findings", "1 of 23 modules", "1 of 7 casts"]),
        ("/home/ana/run/data.py", ["0 of 5 findings", "0 of 23 modules", "1 of 7 casts"]),
        ("running_mean", ["0 of 5 findings", "1 of 23 modules", "0 of 7 casts"]),
    ],
)
def test_search_reads_everything(page, words, counts):
    page.search(words)
    assert page.counts() == counts


def test_search_that_finds_nothing_says_so_and_is_undone(page):
    opened = "return [...document.querySelectorAll('.module')].map((e) => e.open)"
    before = page.ask(opened)
    page.search("no such thing")
    assert page.counts() == ["0 of 5 findings", "0 of 23 modules", "0 of 7 casts"]
    assert page.shown(".nothing") == ["No finding matches.", "No module matches.", "No cast matches."]
    page.one("#search").send_keys("\ue00c")  # escape
    assert page.counts() == ["5 findings", "23 modules", "7 casts"]
    assert page.shown(".nothing") == []
    assert page.ask(opened) == before


def test_findings_are_filtered_by_severity_and_rule(page):
    from selenium.webdriver.support.select import Select

    page.click("[value=info]")
    page.click("[value=error]")
    assert set(page.shown(".finding .badge")) == {"warning"}
    rule = Select(page.one("#rule"))
    assert [option.text for option in rule.options][:2] == ["all rules", "DG101 float64-creep (1)"]
    rule.select_by_value("DG501")
    assert page.counts() == ["1 of 5 findings", "23 modules", "7 casts"]
    page.search("overflow")
    assert page.counts()[0] == "0 of 5 findings"


def test_keys_are_enough(page):
    from selenium.webdriver.common.action_chains import ActionChains

    focus = "return document.activeElement.id || document.activeElement.tagName"
    page.one("body").send_keys("/")
    assert page.ask(focus) == "search"
    ActionChains(page.driver).send_keys("rope/", "\ue004", " ", "\ue004").perform()  # tab, and space on a box
    assert page.ask("return document.getElementById('search').value") == "rope/"
    assert page.ask("return document.querySelector('[value=error]').checked") is False
    page.search("")
    page.ask("document.querySelector('#m1 > summary').focus()")
    was = page.ask("return document.getElementById('m1').open")
    ActionChains(page.driver).send_keys("\ue007").perform()  # enter
    assert page.ask("return document.getElementById('m1').open") is not was


# --- causes -------------------------------------------------------------------------------------------------------


def test_the_first_edit_leads_to_its_cause_and_one_cause_is_one(page):
    page.open("repeated")
    assert page.shown("#edits h2, .verdict") == ["FAIL: 510 warnings, 2 lines to change", "Start here"]
    assert len(page.shown(".finding")) == 2, "those of a cause of several are folded"
    page.click(".edits a")
    assert page.driver.current_url.endswith("#k0")
    (head,) = page.shown("#k0 > .message")
    assert "thrown away" in head
    page.click("#k0 > .members > summary")
    assert len(page.shown("#k0 .finding")) == 508
    page.search("blocks.77")
    assert page.counts()[0] == "1 of 510 places"
    assert page.shown(".cause > .message") == [head], "the cause of a finding stays with it"
    page.search("born")
    assert page.shown(".cause") == []
    page.open("repeated", hash="#f300")
    assert len(page.shown("#f300")) == 1, "a link opens what it is folded in"


@pytest.mark.thin(2)
@pytest.mark.parametrize("theme", THEMES)
def test_verdict_and_edits_stand_out(page, theme):
    for name in ("repeated", "clean"):
        page.open(name, theme=theme)
        worst = page.ask(CONTRAST, ".verdict b, .edits a, .edits s, .edits span, mark, time, h1, h2, h3, summary")
        assert {kind: round(ratio, 2) for kind, ratio in worst.items() if ratio < 4.5} == {}


def test_headings_are_in_order(page):
    levels = page.ask("return [...document.querySelectorAll('h1, h2, h3')].map((e) => +e.tagName[1])")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


# --- tree, casts, links -------------------------------------------------------------------------------------------


def test_the_tree_opens_and_closes(page):
    page.click("#collapse")
    assert page.shown(".module > summary .name b") == ["Net", "Loss", "outside of modules"]
    page.click("#m0 > summary")
    assert page.shown("#m0 > .module > summary .name b") == ["embed", "blocks", "experts", "norm", "head", "<i>"]
    page.click("#expand")
    assert len(page.shown(".module > summary")) == 24
    assert page.shown("#m4 .k")[0].split() == f"f32autocastbf16 8.0 KiB · {TIMES}4 model.py:60, in forward".split()


def test_casts_are_sorted_by_a_press(page):
    heads = {head.text.split()[0]: head for head in page.all("th button")}
    assert list(heads) == ["bytes", "count", "site"]

    def column(selector):
        return [text.split(",")[0] for text in page.shown(f"#casts tbody {selector}")]

    heads["count"].click()
    assert column("td:nth-child(2)") == [f"{TIMES}{count}" for count in (64, 4, 4, 4, 3, 1, 1)]
    heads["site"].click()
    sites = ["<b>.py:1", "data.py:17", "model.py:9", "model.py:60", "model.py:88", "train.py:40", "train.py:42"]
    assert column(".site") == sites
    heads["site"].click()
    assert column(".site") == sites[::-1]
    heads["bytes"].click()
    assert column("td:nth-child(1)")[0] == "12.0 MiB"
    assert [head.get_attribute("aria-sort") for head in page.all("th")] == ["descending", *[None] * 5]


def test_a_link_shows_what_is_folded_or_filtered_away(page):
    page.click("#collapse")
    page.click("#f1 dd > a")
    assert page.driver.current_url.endswith("#m7")
    assert "rope" in page.shown("#m7 > summary")[0]
    page.search("rope")
    page.click("#m7 .k a[href='#f1']")
    assert page.counts()[0] == "2 of 5 findings", "the target is shown, so the search stays"
    page.search("embed")
    page.ask("location.hash = '#c0'")
    page.ask("return new Promise((done) => setTimeout(done, 50))")
    assert page.counts() == ["5 findings", "23 modules", "7 casts"]
    page.search("rope")
    page.ask("location.hash = '#m3'")
    page.ask("return new Promise((done) => setTimeout(done, 50))")
    assert page.shown("#m3 > dl") != []
    page.open(hash="#m9")
    assert page.shown("#m9 > summary") != []


# --- alone --------------------------------------------------------------------------------------------------------


def test_nobody_is_asked(page):
    page.asked()
    page.open()
    page.search("rope")
    page.click("#theme")
    assert page.ask("return performance.getEntriesByType('resource').map((e) => e.name)") == []
    urls = page.asked()
    assert [url for url in urls if not url.startswith(("file:", "data:", "about:"))] == []
    assert any(url.startswith("file:") for url in urls)


def test_without_javascript_everything_is_there(page):
    page.emulate("ScriptExecutionDisabled", value=True)
    try:
        page.open()
        root = page.driver.execute_cdp_cmd("DOM.getDocument", {"depth": -1})["root"]["nodeId"]

        def box(selector):
            node = page.driver.execute_cdp_cmd("DOM.querySelector", {"nodeId": root, "selector": selector})["nodeId"]
            styles = page.driver.execute_cdp_cmd("CSS.getComputedStyleForNode", {"nodeId": node})["computedStyle"]
            return {style["name"]: style["value"] for style in styles}["display"]

        page.driver.execute_cdp_cmd("DOM.enable", {})
        page.driver.execute_cdp_cmd("CSS.enable", {})
        assert [box(s) for s in ("#bar", "#theme", ".tools", "#more")] == ["none"] * 4
        assert [box(s) for s in (".finding", "#m0", "#c6", ".totals")] == ["block", "block", "table-row", "flex"]
    finally:
        page.emulate("ScriptExecutionDisabled", value=False)


# --- large --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_large_report_is_searched_at_once(page):
    page.open("big")
    page.driver.execute_async_script("requestIdleCallback(() => setTimeout(arguments[0]), { timeout: 5000 })")
    words = ("p", "part", "part17", "attention number 4", "bfloat16", "zzz", "layers.9", "")
    page.driver.execute_cdp_cmd(
        "Performance.enable", {"timeDomain": "threadTicks"}
    )  # of work, however busy the machine

    def worked():
        metrics = page.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")

    times = {}
    for word in words:
        before = worked()
        page.driver.execute_async_script(SEARCH, word)
        times[word] = worked() - before
    assert page.counts() == ["500 findings", "2,000 modules", "2,000 casts"]
    assert statistics.median(times.values()) < 0.2, times  # 0.06 is usual
    assert max(times.values()) < 0.4, times


@pytest.mark.slow
def test_a_large_table_shows_its_rest_when_asked(page):
    page.open("longer", width=390)
    rows = "return [...document.querySelectorAll('#casts tbody tr')].filter((e) => !e.hidden).length"
    assert page.ask(rows) == 200
    assert page.shown("#more") == ["Show 60 more"]
    page.click("#more")
    assert page.ask(rows) == 260
    assert page.shown("#more") == []
    page.search("project_17")
    assert page.counts()[2] == "11 of 260 casts"
    assert page.ask(rows) == 11
