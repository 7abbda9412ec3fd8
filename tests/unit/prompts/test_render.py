"""What a model reads: golden texts, one pass over values, strict inputs."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_selfplay.base.errors import PromptError
from scope_selfplay.base.values import Gate
from scope_selfplay.prompts.pack import Pack
from scope_selfplay.prompts.roles import CONTRACTS, PromptRole
from tests.unit.prompts.packs import REPOSITORY, SAMPLES

GOLDEN = REPOSITORY / "tests" / "golden" / "prompts"


def samples_for(role: PromptRole) -> dict[str, str | int | bool]:
    return {name: SAMPLES[name] for name in CONTRACTS[role].inputs}


def rendered_prompts(pack: Pack) -> dict[str, str]:
    """Every role with every input, and once more with the optional ones left out or native thinking on."""
    prompts = {}
    for role, contract in ((role, CONTRACTS[role]) for role in pack.roles):
        values = samples_for(role)
        prompts[str(role)] = pack.render(role, **values)
        if "native_thinking" in contract.inputs:
            prompts[f"{role}.native_thinking"] = pack.render(role, **{**values, "native_thinking": True})
        for name in {"rubric", "reference", "tools", "budget", "results"} & set(contract.optional):
            prompts[f"{role}.no_{name}"] = pack.render(role, **{**values, name: None})
    return prompts


def test_rendered_prompts_equal_the_golden_files(pack: Pack) -> None:
    """Set SCOPE_UPDATE_GOLDEN=1 to write them anew, then read the difference."""
    prompts = rendered_prompts(pack)
    if os.environ.get("SCOPE_UPDATE_GOLDEN"):
        for path in GOLDEN.glob("*.txt"):
            path.unlink()
        for name, text in prompts.items():
            (GOLDEN / f"{name}.txt").write_text(text + "\n", encoding="utf-8")
    golden = {path.name[: -len(".txt")]: path.read_text(encoding="utf-8") for path in GOLDEN.glob("*.txt")}
    assert golden == {name: text + "\n" for name, text in prompts.items()}


@settings(max_examples=30)
@given(task=st.text(), answer=st.text(), criterion=st.text())
def test_a_rendering_is_the_template_with_the_values_put_in_once(
    pack: Pack, task: str, answer: str, criterion: str
) -> None:
    marks = {"task": "\ue000", "answer": "\ue001", "criterion": "\ue002"}
    expected = pack.render(PromptRole.GRADE, **marks)
    values = {"task": task, "answer": answer, "criterion": criterion}
    assert all(expected.count(mark) == 1 for mark in marks.values())
    pieces = {marks[name]: value for name, value in values.items()}
    assert pack.render(PromptRole.GRADE, **values) == "".join(pieces.get(c, c) for c in expected)


def test_an_input_that_is_lacking_or_outside_the_contract_and_a_role_that_a_pack_lacks_are_refused(
    pack: Pack,
) -> None:
    lacking = r"solver prompt: .* lacking inputs \['max_search_turns', 'result_syntax', 'search_syntax'\]"
    with pytest.raises(TypeError, match=lacking):
        pack.render(PromptRole.SOLVER, question="Why?")
    with pytest.raises(TypeError, match=r"foreign inputs \['document'\]"):
        pack.render(PromptRole.of_gate(Gate.ENTITY), task="Why?", document="hidden")
    with pytest.raises(PromptError, match=r"has no solver prompt; add solver\.md"):
        pack.model_copy(update={"prompts": ()}).render(PromptRole.SOLVER, question="Why?")
