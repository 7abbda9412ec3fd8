"""Which folder a pack's name means: one rule, wherever a command runs."""

from pathlib import Path

import pytest

from scope_selfplay.base.errors import PromptError
from scope_selfplay.prompts.commands import new_pack
from scope_selfplay.prompts.folder import check_pack, load_pack, pack_path, shipped_prompts
from tests.unit.prompts.packs import PROMPTS, write_pack

EXTENDING = "title: Law\nextends: wikipedia\n"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs in an empty folder."""
    monkeypatch.chdir(tmp_path)


def test_a_bare_name_is_the_shipped_pack_even_where_a_folder_has_that_name() -> None:
    for folder in (Path("wikipedia"), Path("prompts/wikipedia")):
        write_pack(folder, domain="title: Mine\n")
    assert pack_path("wikipedia") == shipped_prompts() / "wikipedia" == PROMPTS / "wikipedia"


def test_a_bare_name_that_does_not_ship_is_looked_for_below_prompts_and_one_elsewhere_is_pointed_at() -> None:
    write_pack(Path("law"), domain=EXTENDING)
    with pytest.raises(PromptError, match=r"so write \./law$"):
        pack_path("law")
    write_pack(Path("prompts/law"), domain=EXTENDING)
    assert pack_path("law") == Path("prompts/law")


def test_a_name_with_a_slash_is_that_folder_and_nothing_else() -> None:
    write_pack(Path("wikipedia"), domain="title: Mine\n")
    assert pack_path("./wikipedia") == Path("wikipedia")
    assert pack_path("wikipedia/") == Path("wikipedia")
    assert pack_path(str(Path("wikipedia").resolve())) == Path("wikipedia").resolve()
    with pytest.raises(PromptError, match=r"prompts/wikipedia: no such folder"):
        pack_path("prompts/wikipedia")


def test_a_pack_extends_the_one_beside_it_before_a_shipped_one(tmp_path: Path) -> None:
    child = write_pack(Path("prompts/law"), domain=EXTENDING)
    assert load_pack(child).prompts == load_pack(PROMPTS / "wikipedia").prompts
    parent = write_pack(
        Path("prompts/wikipedia"),
        domain="title: Mine\njudge: lexical\ntask_types:\n  ask: {description: Ask.}\n",
    )
    assert {problem.where.rpartition(":")[0] for problem in check_pack(child)} == {
        f"prompts/law/{name}.md"
        for name in ("challenger", "challenger_next", "challenger_invalid", "challenger_final", "solver")
    }
    assert check_pack(parent)


def test_a_pack_may_have_the_name_of_a_shipped_one_further_up(tmp_path: Path) -> None:
    """Circles are recognised by folders, not by names."""
    write_pack(Path("mine/middle"), domain="title: M\nextends: wikipedia\n")
    child = write_pack(Path("mine/embedded"), domain="title: E\nextends: middle\n")
    assert load_pack(child).domain.title == "E"


def test_a_new_pack_may_not_take_a_shipped_name() -> None:
    with pytest.raises(PromptError, match="name of a pack that ships"):
        new_pack(Path("prompts"), "embedded")
    assert not Path("prompts").exists()
