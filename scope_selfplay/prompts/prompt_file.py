"""One role's Markdown file: front matter (role, inputs, output) and a Jinja body, against its contract."""

from collections.abc import Iterator
from typing import NamedTuple

from scope_selfplay.prompts.contracts import CONTRACTS, Contract, PromptRole
from scope_selfplay.prompts.problems import (
    PackProblem,
    YamlMapping,
    did_you_mean,
    listed,
    nearest,
    read_mapping,
)
from scope_selfplay.prompts.prompt_file import Checking, text_faults
from scope_selfplay.prompts.template import Anatomy, TemplateFault, dissect
from scope_selfplay.schemas import Value

FRONT_KEYS = ("role", "inputs", "output")
_FENCE = "---"


class Prompt(Value):
    """`text` is the whole file; `body` is what is rendered, which uses `uses` (sorted)."""

    role: PromptRole
    text: str
    body: str
    uses: tuple[str, ...]


class _Opened(NamedTuple):
    """A file cut in two. `body_line` is the line of the file on which `body` starts."""

    front: YamlMapping
    body: str
    body_line: int


def read_prompt(
    role: PromptRole, text: str, file: str, checking: Checking
) -> tuple[Prompt, list[PackProblem]]:
    """The prompt, and every mistake in it; a prompt with mistakes is not to be rendered."""
    opened = _open(role, text, file)
    if isinstance(opened, PackProblem):
        return Prompt(role=role, text=text, body="", uses=()), [opened]
    front, body, start = opened
    anatomy = dissect(body)
    problems = [*_front_problems(role, front)]
    faults = list(anatomy.faults)
    if anatomy.literal or anatomy.uses:
        problems += _input_problems(role, opened, anatomy, checking)
        faults += text_faults(role, body, anatomy, checking)
    elif not faults:
        faults.append(TemplateFault(1, "has no text below its front matter; write the prompt there"))
    problems += [PackProblem(file, start + fault.line - 1, fault.message) for fault in faults]
    return Prompt(role=role, text=text, body=body, uses=tuple(sorted(anatomy.uses))), problems


def claimed_role(text: str) -> PromptRole | None:
    """The role that a file's front matter names, if any."""
    lines = text.split("\n")[:20]
    said = next((line.removeprefix("role:").strip() for line in lines if line.startswith("role:")), "")
    return PromptRole(said) if lines[0].rstrip() == _FENCE and said in list(PromptRole) else None


def _open(role: PromptRole, text: str, file: str) -> _Opened | PackProblem:
    contract = CONTRACTS[role]
    lines = text.split("\n")
    example = f"--- / role: {role} / inputs: [{listed(contract.required)}] / output: {contract.output} / ---"
    if lines[0].rstrip() != _FENCE:
        return PackProblem(file, 1, f"does not begin with front matter; begin it with the lines {example}")
    end = next((number for number, line in enumerate(lines) if number and line.rstrip() == _FENCE), None)
    if end is None:
        return PackProblem(file, 1, f"has front matter that never ends; it should be the lines {example}")
    front = read_mapping("\n".join(lines[1:end]), file, first_line=2)
    if isinstance(front, PackProblem):
        return front
    blank = next((number for number, line in enumerate(lines[end + 1 :]) if line.strip()), 0)
    body_lines = lines[end + 1 + blank :]
    return _Opened(front, "\n".join(body_lines).rstrip(), end + 2 + blank)


def _front_problems(role: PromptRole, front: YamlMapping) -> Iterator[PackProblem]:
    for key in front.values:
        if key not in FRONT_KEYS:
            hint = did_you_mean(key, FRONT_KEYS)
            yield front.problem(
                f"has the unknown front matter key {key}; it may have {listed(FRONT_KEYS)}{hint}", key
            )
    expected = {"role": str(role), "output": str(CONTRACTS[role].output)}
    for key, value in expected.items():
        found = front.values.get(key)
        if found is None:
            yield front.problem(f"has no {key} in its front matter; add `{key}: {value}`")
        elif found != value:
            yield front.problem(f"says {key}: {found}, but {role.file_name} must say {key}: {value}", key)
    inputs = front.values.get("inputs")
    if not isinstance(inputs, list) or not all(isinstance(name, str) for name in inputs):
        example = f"inputs: [{', '.join(CONTRACTS[role].required)}]"
        yield front.problem(f"has no list of inputs in its front matter; add `{example}`", "inputs")


def _input_problems(
    role: PromptRole, opened: _Opened, anatomy: Anatomy, checking: Checking
) -> Iterator[PackProblem]:
    """Where contract, front matter and body disagree; one misspelling is told once, where it stands."""
    front, contract = opened.front, CONTRACTS[role]
    inputs = front.values.get("inputs")
    declared = [str(name) for name in inputs] if isinstance(inputs, list) else list(anatomy.uses)
    foreign = [name for name in (*anatomy.uses, *declared) if name not in contract.inputs]
    meant = {nearest(name, contract.inputs) for name in foreign}
    yield from _used_problems(role, opened, anatomy, declared)
    for index, name in enumerate(declared):
        if name not in contract.inputs and name not in anatomy.uses:
            yield front.problem(f"lists the input {name}; {_may_use(role, name)}", "inputs", index)
        elif name in declared[:index]:
            yield front.problem(f"lists the input {name} twice; keep one", "inputs", index)
        elif name not in anatomy.uses and name not in meant:
            advice = f"write {{{{ {name} }}}} into the text, or take {name} out of inputs"
            yield front.problem(f"lists the input {name} but never uses it; {advice}", "inputs", index)
    for name in _required(contract, checking):
        if name not in anatomy.uses and name not in meant and name not in declared:
            message = f"never uses {{{{ {name} }}}}, which a {role} prompt must show; write it into the text"
            yield front.problem(f"{message} and list it in inputs", "inputs")


def _used_problems(
    role: PromptRole, opened: _Opened, anatomy: Anatomy, declared: list[str]
) -> Iterator[PackProblem]:
    for name, line in sorted(anatomy.uses.items(), key=lambda use: use[1]):
        place = opened.body_line + line - 1
        if name not in CONTRACTS[role].inputs:
            yield PackProblem(opened.front.file, place, f"uses {{{{ {name} }}}}; {_may_use(role, name)}")
        elif name not in declared:
            advice = f"add {name} to inputs in the front matter"
            yield PackProblem(
                opened.front.file, place, f"uses {{{{ {name} }}}}, which its inputs do not list; {advice}"
            )


def _may_use(role: PromptRole, name: str) -> str:
    allowed = CONTRACTS[role].inputs
    return f"a {role} prompt may use {listed(allowed)}{did_you_mean(name, allowed)}"


def _required(contract: Contract, checking: Checking) -> tuple[str, ...]:
    if checking.taught:
        return (contract.subject,) if contract.subject else ()
    return contract.required
