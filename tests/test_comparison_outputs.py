"""The outputs in docs/explanation/comparison.md are what the tools print, in the versions that the page names."""

import pytest
from comparison import PAGE, split
from comparison_outputs import NAME, NET, TOOLS, output, sections, versions

WRITTEN = split(PAGE.read_text(), NAME)[1]
SECTIONS = sections(PAGE.read_text())


def test_the_page_has_the_program_and_all_tools():
    assert NET in WRITTEN
    assert [*SECTIONS] == [tool.name for tool in TOOLS]


@pytest.mark.parametrize(
    "tool", [pytest.param(t, id=t.name, marks=[pytest.mark.slow] if t.packages else []) for t in TOOLS]
)
def test_a_tool_prints_what_the_page_says(tool):
    section = SECTIONS[tool.name]
    for package, here in versions(tool).items():
        if f"{package} {here}" not in section.partition("```")[0]:
            pytest.skip(
                f"not installed: {package}" if here is None else f"the page is about another {package} than {here}"
            )
    assert tool.program in section
    assert section.rpartition("```text\n")[2].strip() == f"{output(tool)}\n```", (
        "run `python tests/comparison_outputs.py`"
    )
