"""Every rule of `amp.watch` has programs that must trigger it, and programs near them that must not.

The tables are in the other test_amp_rules files; here are the registry and three messages, word for word.
"""

import re
from pathlib import Path

import pytest
import test_amp_rules_autocast as autocast
import test_amp_rules_clipping as clipping
import test_amp_rules_optimizer as optimizer
import test_amp_rules_scaler as scaler
import test_amp_rules_updates as updates
from amp_programs import FIXES, SEVERITIES, run

from dtypeguard._watch.rule import RULES

FAMILIES = (autocast, scaler, clipping, optimizer, updates)
BUGS = {rule: cases for family in FAMILIES for rule, cases in family.BUGS.items()}
HEALTHY = {rule: cases for family in FAMILIES for rule, cases in family.HEALTHY.items()}


def test_every_rule_has_programs_that_must_and_must_not_trigger_it():
    assert {*BUGS, "DG304"} == {*HEALTHY, "DG304"} == {rule for rule in RULES if rule.startswith(("DG3", "DG4"))}
    assert all(len(cases) >= 3 for table in (BUGS, HEALTHY) for cases in table.values())
    assert min(len(autocast.LISTED_ONLY), len(autocast.NOT_LISTED)) >= 3


def test_every_rule_has_its_severity_and_a_fix():
    rules = {rule.id: rule.severity.value for rule in RULES.values() if rule.id.startswith(("DG3", "DG4"))}
    assert rules == SEVERITIES
    assert set(FIXES) == set(rules)


GOLDEN = Path(__file__).parent / "golden" / "amp_messages.txt"
MESSAGES = {
    "a scaler with float16 parameters": BUGS["DG301"]["one layer in half precision, in the second group"].program,
    "clipped before unscale_": BUGS["DG309"]["to norm 0.37"].program,
    "a replaced head": BUGS["DG401"]["the head replaced after the optimizer was built"].program,
}


def message_of(name):
    """The text in both modes, without the place."""
    texts = [str(run(MESSAGES[name], "strict", 9).error), str(run(MESSAGES[name], "lenient", 9).told[0].message)]
    strict, lenient = (re.sub(r"\S+\.py:\d+, in ", "FILE:LINE, in ", text) for text in texts)
    assert strict == lenient
    return strict


def write_golden():
    """`python tests/test_amp_rules.py` writes the file anew; read the difference before you commit it."""
    GOLDEN.write_text("\n".join(f"== {name}\n{message_of(name)}\n" for name in MESSAGES))


@pytest.mark.parametrize("name", MESSAGES)
def test_message(name):
    parts = re.split(r"^== (.*)$", GOLDEN.read_text(), flags=re.MULTILINE)[1:]
    golden = {title: text.strip("\n") for title, text in zip(parts[::2], parts[1::2], strict=True)}
    assert list(golden) == list(MESSAGES)
    assert message_of(name) == golden[name]


if __name__ == "__main__":
    write_golden()
