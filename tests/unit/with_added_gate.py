"""A program: the package as it is when `gates.py` has one more gate, `style`. Its argument is a folder to write to."""

import asyncio
import sys
import types
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MEMBER = '    SAFETY = "safety"\n'
ROW = "    Gate.SAFETY: "


def add_gate() -> None:
    source = (REPOSITORY / "scope_selfplay/base/gates.py").read_text(encoding="utf-8")
    assert MEMBER in source and ROW in source
    source = source.replace(MEMBER, f'{MEMBER}    STYLE = "style"\n')
    row = 'GateTerms(("document", "task"), 0.5, "tasks are clumsy")'
    source = source.replace(ROW, f"    Gate.STYLE: {row},\n{ROW}")
    module = types.ModuleType("scope_selfplay.base.gates")
    sys.modules[module.__name__] = module
    exec(compile(source, "base/gates.py", "exec"), module.__dict__)


def write_pack(folder: Path) -> Path:
    pack = folder / "styled"
    pack.mkdir()
    (pack / "domain.yaml").write_text("title: Styled\nextends: wikipedia\ngates: [style, entity]\n")
    text = (REPOSITORY / "prompts/wikipedia/gate_source.md").read_text(encoding="utf-8")
    (pack / "gate_style.md").write_text(text.replace("role: gate_source", "role: gate_style"))
    return pack


def main(folder: Path) -> None:
    from scope_selfplay.base.gates import Gate
    from scope_selfplay.judge.canaries import CanaryCase, canary_of
    from scope_selfplay.judge.protocol import GateQuestion
    from scope_selfplay.judge.rules import LexicalJudge
    from scope_selfplay.prompts.folder import check_pack, load_pack
    from scope_selfplay.report.signals import BOUNDS
    from scope_selfplay.store.columns import RecordKind, arrow_schema
    from scope_selfplay.testing.chat_server import FakeServer
    from tests.judges import DOCUMENT, TASK, always, judge_over_pack
    from tests.unit.test_pipeline import Bench, judged

    style = Gate("style")
    path = write_pack(folder)
    assert check_pack(path) == [], check_pack(path)
    (path / "gate_style.md").rename(folder / "gate_style.md")
    assert "gate_style.md:1: is missing: domain.yaml has the gate style in use" in str(check_pack(path)[0])
    (folder / "gate_style.md").rename(path / "gate_style.md")
    pack = load_pack(path)
    assert pack.domain.gates == (style, Gate.ENTITY)

    made, _ = asyncio.run(judged(Bench(style=False), gates=pack.domain.gates))
    assert (made.candidate.reason, made.candidate.gates[style].value) == ("gate_style", False)

    async def ask() -> None:
        fake = FakeServer(always("<score>1</score>"))
        async with judge_over_pack(pack, fake) as judge:
            assert (await judge.ask(GateQuestion(TASK, style, DOCUMENT))).value is True
        prompt = fake.requests[-1].prompt
        assert TASK.text in prompt and DOCUMENT.text in prompt
        lexical = LexicalJudge([DOCUMENT])
        assert (
            await lexical.ask(GateQuestion(TASK, style, DOCUMENT))
        ).value is False  # not about the embedded world

    asyncio.run(ask())
    case = CanaryCase(
        task=TASK.text, criterion="says it", right="It does.", wrong="It does not.", document=DOCUMENT
    )
    assert canary_of(GateQuestion(TASK, style, DOCUMENT), case, 1, ("canary",)) is None
    assert BOUNDS["gate_style"].meaning == "tasks are clumsy"
    assert "style" in str(arrow_schema(RecordKind.CANDIDATES.model).field("gates").type)
    print("added")


if __name__ == "__main__":
    add_gate()
    main(Path(sys.argv[1]))
