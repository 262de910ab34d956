"""The page of a report: every fact is on it, whatever the program printed, and nothing else is needed to read it."""

import copy
import re

import pytest
from audit_page import DOCS, NASTY, big, cast, finding, module, repeated, report, sample, tensor
from html_page import Page, allowed

from dtypeguard._core.base.dtypes import TABLE
from dtypeguard._engine.watch.rule import RULES
from dtypeguard._show.chips import COLOURS, short
from dtypeguard._show.report.html import render
from dtypeguard._show.text import human

TIMES = "\N{MULTIPLICATION SIGN}"
HERE = ("train.py", 42, "step", "loss = f(x)")


def plain(text):
    return text.replace("`", "").strip()


# --- facts --------------------------------------------------------------------------------------------------------


def test_the_head_tells_of_the_program():
    data = sample()
    page = Page(render(data))
    for fact in ("train.py", "torch 2.13.0+cpu", "dtypeguard 0.1.0", "12,345 operations", "1.23 s", data["error"]):
        assert fact in page.text
    (totals,) = page.all("ul", "totals")
    assert page.said(totals).split() == ["1", "error", "3", "warnings", "1", "info"]


def test_every_fact_of_a_finding_is_with_it():
    data = sample()
    page = Page(render(data))
    shown = {page.said(e): e for e in page.all("li", "finding")}
    for found in data["findings"]:
        facts = [found[key] for key in ("severity", "rule", "name", "site", "module_path", "op")]
        facts += [found["source"].strip(), plain(found["message"]), plain(found["fix"])]
        facts += [f"{TIMES}{found['count']}"] * (not RULES[found["rule"]].sampled)
        facts += [short(found["from_dtype"]), *found["parameters"]]
        facts += [short(found["to_dtype"])] * RULES[found["rule"]].converts
        facts += [human(found["bytes"])] if found["bytes"] else []
        facts += [part for line in found["origin"] for part in re.sub(r": (float\d\d)$", "", line).split(" at ")]
        (text,) = [text for text in shown if plain(found["message"]) in text and found["rule"] in text]
        assert [fact for fact in facts if fact not in text] == []
        assert (shown[text]["data-severity"], shown[text]["data-rule"]) == (found["severity"], found["rule"])


@pytest.mark.parametrize(
    ("rule", "dtypes", "shown"),
    [
        ("DG105", ("float32", "float16"), "f32 → f16"),
        ("DG109", ("uint8", "uint8"), "u8"),  # a sum that wraps around is no cast
        ("DG901", ("float16", "float32"), "f16"),  # float32 is where the value would fit in
        ("DG106", (None, "int64"), "i64"),
        ("DG401", (None, None), None),
    ],
)
def test_two_dtypes_are_shown_where_the_program_converts(rule, dtypes, shown):
    data = sample()
    found = data["findings"][0] | {"rule": rule, "from_dtype": dtypes[0], "to_dtype": dtypes[1]}
    alone = {"findings": [found], "causes": [data["causes"][0] | {"findings": [0]}], "edits": [], "casts": []}
    page = Page(render(data | alone))
    assert [page.said(e) for e in page.all("span", "flow")] == [shown] * (shown is not None)


def test_the_head_says_what_to_do_first():
    page = Page(render(repeated()))
    (verdict,) = page.all("p", "verdict")
    assert page.said(verdict) == "FAIL: 510 warnings, 2 lines to change"
    edits = [page.said(e).strip() for e in page.all("li") if e["around"].get("class") == "edits"]
    assert edits == [
        "model.py:14 keep the result removes 508 warnings",
        "train.py:29 convert it where it is born removes 1 warning",
    ]
    for fact in ("python -m dtypeguard audit train.py", "2026-11-23 01:46"):
        assert fact in page.text


def test_findings_of_one_cause_stand_together():
    page = Page(render(repeated()))
    inside = [e for e in page.all("li", "finding") if "k0" in page.within(e)]
    assert len(inside) == 508
    text = page.said(page.one("k0")).partition("508 places, one line")[0]
    assert ("hidden.to(torch.bfloat16)" in text, "Net.* (508 modules)" in text) == (True, True)
    marks = [page.said(e) for e in page.all("mark")]
    assert set(marks) == {"hidden.to(torch.bfloat16)", "mse(output, target)", "target = torch.from_numpy(rows)"}
    other = page.said(page.one("f508"))
    assert "/home/ana/run/data.py:7 convert it where it is born" in other


def test_a_count_of_what_is_looked_for_at_times_only_is_left_out():
    data = sample()
    found = data["findings"][0] | {"count": 6}
    alone = {"causes": [data["causes"][0] | {"findings": [0]}], "edits": [], "casts": []}
    said = {}
    for rule in ("DG306", "DG101"):
        page = Page(render(data | alone | {"findings": [found | {"rule": rule}]}))
        said[rule] = page.said(page.one("f0"))
    assert f"{TIMES}6" not in said["DG306"]
    assert f"{TIMES}6" in said["DG101"]


def test_every_fact_of_a_cast_is_in_its_row_by_bytes():
    data = sample()
    page = Page(render(data))
    rows = [e for e in page.all("tr") if "data-bytes" in e]
    assert [int(row["data-bytes"]) for row in rows] == sorted((c["bytes"] for c in data["casts"]), reverse=True)
    for one in data["casts"]:
        facts = [one["kind"], one["op"], short(one["from_dtype"]), short(one["to_dtype"]), human(one["bytes"])]
        facts += [f"{TIMES}{one['count']}", one["site"], one["source"].strip(), one["module_path"] or ""]
        facts += [f"{one['from_device']} → {one['to_device']}"] if one["from_device"] != one["to_device"] else []
        assert any(all(fact in page.said(row) for fact in facts) for row in rows), one


def test_every_fact_of_a_module_is_in_the_tree():
    data = sample()
    page = Page(render(data))
    ids = page.nodes()
    for one in data["modules"]:
        text = page.said(page.one(ids[one["path"]]))
        facts = [one["class"], f"{TIMES}{one['calls']}"]
        for held_one in one["parameters"]:
            facts += [held_one["name"], short(held_one["dtype"]), str(held_one["shape"]), human(held_one["bytes"])]
            facts += ["buffer"] if held_one["kind"] == "buffer" else []
            facts += [held_one["device"]] if held_one["device"] != "cpu" else []
        for passed in (*one["inputs"], *one["outputs"]):
            facts += [passed["name"], short(passed["dtype"]), str(passed["shape"])]
        assert [fact for fact in facts if fact not in text] == []


def test_modules_stand_inside_their_parents():
    data = sample()
    page = Page(render(data))
    ids = page.nodes()
    for one in data["modules"]:
        around = page.within(page.one(ids[one["path"]]))
        assert around[-1] == (ids[one["parent"]] if one["parent"] else "modules")


def test_casts_and_findings_stand_in_their_module_and_link_to_their_row():
    data = report(
        [finding("DG102", "warning", "mixed", HERE, "Net.fc", "mul", ("bfloat16", "float64"))],
        [
            cast("autocast", "linear", "float32", "bfloat16", HERE, "Net.fc", 4, 8192),
            cast("explicit", "to", "float64", "float32", HERE, "Net.fc.inner.unseen", 1, 64),
            cast("device", "to", "float32", "float32", HERE, None, 1, 32, ("cpu", "cuda:0")),
            cast("explicit", "to", "float32", "int8", HERE, "Elsewhere", 1, 16),
        ],
        [module("Net", "Net"), module("Net.fc", "Linear")],
    )
    page = Page(render(data))
    links = {e["href"]: page.within(e) for e in page.all("a") if e["href"][1:2] in ("c", "f")}
    assert links["#f0"][-1] == "m1"
    assert links["#c0"] == links["#c1"] == ["modules", "m0", "m1"]  # the nearest module that is known
    assert links["#c2"] == links["#c3"] == ["modules", "outside"]
    assert f"f32autocastbf16 8.0 KiB · {TIMES}4 train.py:42, in step" in page.said(page.one("m1"))
    assert f"f32devicef32 cpu → cuda:0 · 32 B · {TIMES}1" in page.said(page.one("outside"))
    assert "1 warn" in page.said(page.one("m0")), "a parent tells of what is found below it"


def test_links_go_somewhere_and_ids_are_one_of_a_kind():
    page = Page(render(sample()))
    ids = [e["id"] for e in page.elements if "id" in e]
    assert len(ids) == len(set(ids))
    assert {e["href"][1:] for e in page.all("a") if e["href"].startswith("#")} <= set(ids)


def test_the_legend_tells_of_every_dtype():
    page = Page(render(sample()))
    text = page.said(page.one("legend"))
    for fact in (
        "bfloat16",
        "8 significant bits, up to 3.39e38",
        "11 significant bits, up to 65504",
        "true or false",
    ):
        assert fact in text
    for fact in ("0 to 255", "-2^63 to 2^63 - 1", "two parts of 24 significant bits", "<dtype>", "KiB in modules"):
        assert fact in text


def test_rules_say_why():
    data = sample()
    page = Page(render(data))
    text = page.said(page.one("rules"))
    for rule, row in data["rules"].items():
        assert rule in text
        assert plain(row["why"]) in text


def test_a_clean_report_says_so():
    page = Page(render(report(program=None)))
    for line in ("No findings.", "No module ran.", "No casts."):
        assert line in page.text
    assert {e.get("id") for e in page.all("section")} == {"findings", "modules", "casts"}


def test_nothing_of_the_report_is_changed():
    data = sample()
    before = copy.deepcopy(data)
    assert render(data) == render(data)
    assert data == before


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("from_numpy at data.py:17, in load: float64", ("from_numpy", "data.py:17, in load", "f64")),
        ("cat at a at b.py:1, in f: odd", ("cat at a", "b.py:1, in f", "odd")),
        ("unknown", ("unknown",)),
        ("", ("",)),
    ],
)
def test_steps_of_an_origin(line, parts):
    page = Page(render(report([finding("DG101", "info", "m", HERE, origin=[line])])))
    (step,) = [e for e in page.all("li") if e["around"].get("class") == "steps"]
    (what,) = [e for e in page.all("code") if e["around"] is step]
    assert page.said(what) == parts[0]
    assert page.said(step) == " ".join(parts)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (4096, "4.0 KiB"), (1_048_524, "1.0 MiB"),
        (1_048_576, "1.0 MiB"), (3 * 2**30, "3.0 GiB"), (5 * 2**40, "5.0 TiB"), (5 * 2**60, "5242880.0 TiB"),
    ],
)  # fmt: skip
def test_bytes_read_well(size, text):
    assert human(size) == text


def test_every_dtype_has_a_short_name_of_its_own_and_a_colour():
    names = [info.name for info in TABLE.values()]
    assert len({short(name) for name in names}) == len(names)
    assert [name for name in names if len(short(name)) > 13] == []
    starts = [start for start, *_ in COLOURS[:-1]]
    assert [name for name in names if not name.startswith(tuple(starts))] == []
    names = ("bfloat16", "float8_e4m3fn", "uint8", "complex64", "bool", "qint8")
    assert [short(name) for name in names] == ["bf16", "f8e4m3fn", "u8", "c64", "bool", "qint8"]


# --- safety -------------------------------------------------------------------------------------------------------


def test_what_the_program_holds_is_never_markup():
    page = Page(render(sample()))
    assert len(page.all("script")) == 1
    assert page.text.count(NASTY) > 5
    assert [e for e in page.elements if any(name.startswith("on") or name == "style" for name in e)] == []
    assert {e["tag"] for e in page.elements} <= set(
        """html head meta title link style script body header h1 h2 h3 p b s i u a code mark time span div button input
        select option fieldset legend label ul ol li dl dt dd main section details summary table thead tbody tr th
        td svg text line rect""".split()
    )


def test_only_the_two_parts_of_the_page_may_run():
    assert allowed(render(sample())) == {"script", "style"}


def test_nothing_is_fetched():
    page = Page(render(sample()))
    assert [e for e in page.elements if "src" in e or "srcset" in e] == []
    hrefs = {e["href"] for e in page.elements if "href" in e}
    assert all(href.startswith((f"{DOCS}/DG", "#")) or href == "data:," for href in hrefs)
    (style,), (script,) = page.all("style"), page.all("script")
    assert not re.search(r"url\(|@import|@font-face", page.said(style))
    assert not re.search(r"fetch|XMLHttp|import\(|WebSocket|https?:|innerHTML|eval", page.said(script))


def test_a_link_is_http_or_none():
    found = finding("DG101", "error", "m", HERE, docs="javascript:alert(1)")
    data = report([found])
    data["rules"]["DG101"]["docs"] = None
    page = Page(render(data))
    assert {e["href"] for e in page.elements if "href" in e} == {"data:,", "#f0"}
    assert "float64-creep" in page.text


@pytest.mark.parametrize("odd", ["\udcff\udc80", "\x00\x1b[31m\x7f", "\u202egnp.exe", "\r\n"])
def test_what_no_file_could_hold_is_written_otherwise(odd):
    page = render(report([finding("DG101", "error", f"before {odd} after", HERE)]))
    text = page.encode("utf-8").decode("utf-8")
    assert re.search(r"before .* after", text, re.DOTALL)
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", text)


# --- odd shapes, and large ----------------------------------------------------------------------------------------


def test_findings_without_a_place():
    nowhere = dict.fromkeys(("site", "file", "line", "function", "source"))
    found = finding("DG101", "error", "no line is to blame", HERE) | nowhere
    moved = cast("explicit", "to", "float32", "float16", HERE) | nowhere
    page = Page(render(report([found], [moved], [module("Net", "Net")])))
    assert "no line is to blame" in page.text
    assert "None" not in page.text


def test_modules_whose_parents_are_not_known():
    tree = [module("a.b", "B", parent="a"), module("c", "C", parent="c"), module("", "Root", parent=None)]
    page = Page(render(report(modules=tree)))
    assert [page.said(e) for e in page.all("b") if "title" in e] == ["a.b", "c", "(root)"]


def test_a_tree_deeper_than_the_stack():
    paths = ["n" + ".n" * depth for depth in range(2000)]
    page = Page(render(report(modules=[module(path, "N", (), [tensor("x", "int8", [])]) for path in paths])))
    assert len(page.all("details", "module")) == 2000
    assert page.within(page.one("m1999"))[-1] == "m1998"


@pytest.mark.slow
def test_a_large_report_stays_small():
    page = render(big())
    assert len(page.encode()) < 5_000_000
    parsed = Page(page)
    assert len(parsed.all("details", "module")) == 2000
    assert len(parsed.all("li", "finding")) == 500
    assert len([e for e in parsed.all("tr") if "data-bytes" in e]) == 2000
