"""docs/real-model.md shows the tables of the results that the repository keeps, and the kept results are whole."""

from pathlib import Path

import pytest

from benchmarks.real_model.page import marks_around, sections

PAGE = Path(__file__).parents[2] / "docs" / "real-model.md"


@pytest.mark.parametrize(("section", "text"), sections().items())
def test_the_page_has_the_tables_of_what_is_kept(section: str, text: str) -> None:
    opening, closing = marks_around(section)
    shown = PAGE.read_text(encoding="utf-8").partition(opening)[2].partition(closing)[0]
    assert shown.strip() == text, "python -m benchmarks.real_model --parts --keep writes the page"
