"""The registry of rules, and the pages that are made from it."""

import json
import re
import runpy
import string
import subprocess
import sys
from pathlib import Path

import pytest

from dtypeguard._core.base.pages import entries
from dtypeguard._engine.watch import events
from dtypeguard._engine.watch.rule import RULES, Severity, select
from dtypeguard._show.report.causes import causes_of

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_the_pages_are_the_registry_s():
    # in a process of its own, where no watch is left that tells an audit of a scaler
    code = "import json, rules; print(json.dumps({str(path): text for path, text in rules.pages().items()}))"
    made = subprocess.run([sys.executable, "-c", code], cwd=DOCS, capture_output=True, check=True, text=True).stdout
    pages = {Path(path): text for path, text in json.loads(made.splitlines()[-1]).items()}  # torch 2.9 prints, too
    files = [*DOCS.glob("rules/*.md"), DOCS / "errors" / "index.md", DOCS / "amp.md"]
    written = {path: path.read_text() for path in files}
    # torch < 2.13: its messages name `at::Half`; goes with that floor
    pages = {path: text.replace("at::Half", "c10::Half") for path, text in pages.items()}
    assert written == pages, "run `python docs/rules.py`"


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rule_says_what_is_wrong_what_to_write_and_where_that_comes_from(rule):
    assert re.fullmatch(r"DG[1-9]\d\d", rule.id)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", rule.name)
    assert rule.severity in Severity
    assert rule.summary.endswith(".")
    assert len(rule.summary.split()) <= 10
    assert rule.why.endswith(".")
    assert all(source.startswith("https://") for source in rule.sources)
    assert not rule.says.endswith(".")
    assert not rule.fix.endswith(".")
    assert rule.docs.endswith(f"docs/rules/{rule.id}.md")
    assert all(name is None or name.isidentifier() for _, name, *_ in string.Formatter().parse(rule.says + rule.fix))


_NOW_AND_THEN = frozenset(["look", "held", "averaged", "alone", "computed", "driven"])  # events of some steps


def test_a_count_of_what_is_not_looked_for_each_time_is_not_told():
    rarely = {rule for kind in _NOW_AND_THEN for _, rules, _ in events._HANDLERS[kind] for rule in rules}
    assert rarely <= {rule.id for rule in RULES.values() if rule.sampled}
    finding = RULES["DG303"].finding(Severity.WARNING, "train.py:3, in train", {"device": "cpu"}, (), count=4)
    other = RULES["DG312"].finding(Severity.ERROR, None, dict.fromkeys(["optimizer", "stage"], ""), (), count=4)
    assert [cause.often for cause in causes_of([finding, other])] == ["4 times", ""]


def test_names_are_distinct():
    names = [*(rule.name for rule in RULES.values()), *(one.name for one in entries() if one.id not in RULES)]
    assert len(names) == len(entries()) == len({*names})


@pytest.mark.parametrize(
    ("name", "meant"),
    [("discarded-casts", "discarded-cast"), ("thrown-away-cast", "discarded-cast"), ("nonsense", None)],
)
def test_a_rule_is_suggested_by_its_name_or_by_the_words_of_its_summary(name, meant):
    with pytest.raises(ValueError, match="is no rule") as error:
        select([name])
    assert f"ignore={name!r} is no rule" + (f" (did you mean {meant!r}?): use" if meant else ": use") in str(
        error.value
    )


def test_rules_are_selected_by_id_and_by_family():
    assert select("DG301") == select("scaler-float16-parameters") == {"DG301"}
    assert select(["DG301", "DG4"]) == {"DG301", *(rule for rule in RULES if rule.startswith("DG4"))}
    assert select(()) == set()


@pytest.mark.parametrize("name", ["DG999", "DG", "D", "", "dg301", "DG30"])
def test_an_unknown_rule_is_an_error_that_lists_the_families(name):
    with pytest.raises(ValueError, match=re.escape(f"ignore={name!r}") + ".* DG3, DG4"):
        select([name])


def test_what_is_no_name_is_a_type_error():
    with pytest.raises(TypeError, match="ignore takes rule ids such as 'DG301', not 301"):
        select(301)


def test_the_figures_are_drawn_anew():
    figures = runpy.run_path(str(DOCS / "figures.py"))["FIGURES"]
    for name, draw in figures.items():
        assert (DOCS / "images" / name).read_text() == draw(), "run `python docs/figures.py`"


def test_the_figure_of_scaled_steps_names_rules_of_the_registry():
    assert {rule for *_, rule, _ in runpy.run_path(str(DOCS / "figures.py"))["WRONG"]} <= set(RULES)


def test_an_article_before_a_vowel_is_an():
    folder = Path(__file__).parent
    texts = [*(folder / "golden").glob("*.txt"), *(folder / "rules").glob("*/bad_*.py"), *DOCS.glob("errors/DG*.md")]
    wrong = re.compile(r"\b[Aa] (?!one|once|eu|un?i|us)[aeiou]\w*|\b[Aa]n [bcdgjkpqtvwyz][a-z]+")
    assert {path.name: found for path in texts if (found := wrong.findall(path.read_text()))} == {}
