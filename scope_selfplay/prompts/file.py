"""One role's Markdown file against its contract: front matter (role, inputs, output), a Jinja body, its own words.

Tokens are counted by a model's tokenizer where one is given, else estimated as a quarter of the UTF-8 bytes, so
that a check needs no model and says the same everywhere. Over the wikipedia pack the estimate is 4 % above what
a vocabulary of 30,000 word pieces counts, and within a sixth for every single prompt; scripts of two or three
bytes a character are counted as dearer, as they are.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from scope_selfplay.base.errors import Finding, did_you_mean, nearest
from scope_selfplay.base.values import Value
from scope_selfplay.prompts.roles import (
    CONTRACTS,
    GATE_EXAMPLES,
    GATE_ROLES,
    OUTPUTS,
    POLICY_ROLES,
    SHORT,
    Output,
    PromptRole,
    YamlMapping,
    listed,
    read_mapping,
)

if TYPE_CHECKING:
    import jinja2
    from jinja2 import nodes

FILTERS = ("capitalize", "lower", "replace", "title", "trim", "upper")
TESTS = ("none",)

_ALLOWED = frozenset({"Template", "Output", "TemplateData", "Name", "Const", "If", "CondExpr", "Filter"})
_ALLOWED |= {"Test", "Compare", "Operand", "Not", "And", "Or"}
_TAGS = {
    "FromImport": "from",
    "Assign": "set",
    "AssignBlock": "set",
    "FilterBlock": "filter",
    "CallBlock": "call",
}
"""Statements whose tag is not their class's name."""
_EXPRESSIONS = {"Call": "a call", "Getattr": "an attribute", "Getitem": "an index"}


@dataclass(frozen=True, order=True)
class TemplateFault:
    """A mistake in a template body; `line` counts from 1 at the body's first line."""

    line: int
    message: str


@dataclass(frozen=True)
class Anatomy:
    """`uses`: each variable with the line of its first use. `literal`: the text outside all tags."""

    uses: dict[str, int]
    literal: str
    faults: tuple[TemplateFault, ...]


_MOST_NESTED = 60
_TOO_DEEP = TemplateFault(
    1,
    "is not valid Jinja: nested too deeply; check that every {% if %} has its {% endif %} and every ( its )",
)


def dissect(body: str) -> Anatomy:
    """Read a body without rendering it; a body that does not parse has one fault and no variables."""
    import jinja2
    from jinja2 import nodes

    try:
        tree = _environment().parse(body)
    except jinja2.TemplateSyntaxError as error:
        advice = "check that every {{ has its }} and every {% if %} its {% endif %}"
        fault = TemplateFault(error.lineno, f"is not valid Jinja: {error.message}; {advice}")
        return Anatomy({}, "", (fault,))
    except RecursionError:
        return Anatomy({}, "", (_TOO_DEEP,))
    if _is_deep(tree):
        return Anatomy({}, "", (_TOO_DEEP,))
    uses: dict[str, int] = {}
    for name in tree.find_all(nodes.Name):
        if name.ctx != "load":
            continue  # what a forbidden {% set %} or {% for %} names; the tag itself is the fault
        uses[name.name] = min(name.lineno, uses.get(name.name, name.lineno))
    literal = "".join(data.data for data in tree.find_all(nodes.TemplateData))
    return Anatomy(uses, literal, tuple(_faults(tree)))


def _is_deep(tree: "nodes.Template") -> bool:
    """Whether Python could not compile it: it allows 100 blocks inside each other."""
    level: list[nodes.Node] = [tree]
    for _ in range(_MOST_NESTED):
        level = [child for node in level for child in node.iter_child_nodes()]
        if not level:
            return False
    return True


def _faults(tree: "nodes.Template") -> list[TemplateFault]:
    from jinja2 import nodes

    faults = []
    for node in tree.find_all(nodes.Node):
        kind = type(node).__name__
        if kind not in _ALLOWED:
            what = _EXPRESSIONS.get(kind, f"a Jinja {kind.lower()}")
            if isinstance(node, nodes.Stmt):
                what = f"{{% {_TAGS.get(kind, kind.lower())} %}}"
            advice = "a prompt may hold text, {{ variables }}, {% if %} and filters; write the text out"
            faults.append(TemplateFault(node.lineno, f"uses {what}, which prompts do not allow: {advice}"))
        elif isinstance(node, nodes.Filter) and node.name not in FILTERS:
            hint = did_you_mean(node.name, FILTERS)
            message = f"uses the filter {node.name}; prompts have {', '.join(FILTERS)}{hint}"
            faults.append(TemplateFault(node.lineno, message))
        elif isinstance(node, nodes.Test) and node.name not in TESTS:
            message = f"uses the test `is {node.name}`; prompts have `is none` only"
            faults.append(TemplateFault(node.lineno, message))
    return sorted(faults)


def render(body: str, values: Mapping[str, object]) -> str:
    """One pass. Raises jinja2.UndefinedError when the body uses a variable that `values` lacks."""
    return _compiled(body).render(values)


@lru_cache(maxsize=256)
def _compiled(body: str) -> "jinja2.Template":
    """Compiling costs milliseconds and a stage renders a prompt a hundred thousand times."""
    return _environment().from_string(body)


def _environment() -> "jinja2.Environment":
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        undefined=jinja2.StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.clear()
    environment.filters = {name: environment.filters[name] for name in FILTERS}
    environment.tests = {name: environment.tests[name] for name in TESTS}
    return environment


FRONT_KEYS = ("role", "inputs", "output")
_FENCE = "---"
_SPECIAL_TOKEN = re.compile(r"<\|[^<>|\s]{1,40}\|>|</?s>|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>")
_SEARCH_CALL = re.compile(r"</?(?:search|tool_call|function_calls)>")
_SINGLE_BRACES = re.compile(r"(?<!\{)\{ ?([a-z_]+) ?\}(?!\})")
# Joiners are left out: Persian, Indic scripts and emoji need them.
_INVISIBLE = re.compile(
    "[\u0000-\u0008\u000b-\u001f\u007f\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]"
)
_GROWING = ("task", "answer", "criterion")
"""From what changes least between calls to what changes most."""


def quarter_of_bytes(text: str) -> int:
    """Tokens of a text, estimated without a tokenizer."""
    return -(-len(text.encode()) // 4)


class Prompt(Value):
    """`text` is the whole file; `body` is what is rendered, which uses `uses` (sorted) and asks for the `output`."""

    role: PromptRole
    output: Output
    text: str
    body: str
    uses: tuple[str, ...]


@dataclass(frozen=True)
class _FileParts:
    """A file cut in two. `body_line` is the line of the file on which `body` starts."""

    front: YamlMapping
    body: str
    body_line: int


def read_prompt(role: PromptRole, text: str, file: str, *, taught: bool) -> tuple[Prompt, list[Finding]]:
    """The prompt, and every mistake in it; a prompt with mistakes is not to be rendered."""
    parts = _split_file(role, text, file)
    if isinstance(parts, Finding):
        return Prompt(role=role, output=CONTRACTS[role].output, text=text, body="", uses=()), [parts]
    front, anatomy = parts.front, dissect(parts.body)
    allowed = CONTRACTS[role].outputs
    output = next((each for each in allowed if each == front.values.get("output")), allowed[0])
    problems, faults = [*_front_problems(role, front)], list(anatomy.faults)
    if anatomy.literal or anatomy.uses:
        inputs = front.values.get("inputs")
        declared = [str(name) for name in inputs] if isinstance(inputs, list) else list(anatomy.uses)
        problems += _declared_problems(role, front, declared, anatomy, taught)
        faults += _use_faults(role, declared, anatomy)
        faults += _text_faults(role, output, parts.body, anatomy, taught)
    elif not faults:
        faults.append(TemplateFault(1, "has no text below its front matter; write the prompt there"))
    problems += [Finding(f"{file}:{parts.body_line + fault.line - 1}", fault.message) for fault in faults]
    uses = tuple(sorted(anatomy.uses))
    return Prompt(role=role, output=output, text=text, body=parts.body, uses=uses), problems


def claimed_role(text: str) -> PromptRole | None:
    """The role that a file's front matter names, if any."""
    lines = text.split("\n")[:20]
    named = next((line.removeprefix("role:").strip() for line in lines if line.startswith("role:")), "")
    return PromptRole(named) if lines[0].rstrip() == _FENCE and named in list(PromptRole) else None


def _split_file(role: PromptRole, text: str, file: str) -> _FileParts | Finding:
    contract = CONTRACTS[role]
    lines = text.split("\n")
    example = f"--- / role: {role} / inputs: [{listed(contract.required)}] / output: {contract.output} / ---"
    if lines[0].rstrip() != _FENCE:
        return Finding(f"{file}:1", f"does not begin with front matter; begin it with the lines {example}")
    end = next((number for number, line in enumerate(lines) if number and line.rstrip() == _FENCE), None)
    if end is None:
        return Finding(f"{file}:1", f"has front matter that never ends; it should be the lines {example}")
    front = read_mapping("\n".join(lines[1:end]), file, first_line=2)
    if isinstance(front, Finding):
        return front
    blank = next((number for number, line in enumerate(lines[end + 1 :]) if line.strip()), 0)
    body_lines = lines[end + 1 + blank :]
    return _FileParts(front, "\n".join(body_lines).rstrip(), end + 2 + blank)


def _front_problems(role: PromptRole, front: YamlMapping) -> Iterator[Finding]:
    for key in front.values:
        if key not in FRONT_KEYS:
            known = f"{listed(FRONT_KEYS)}{did_you_mean(key, FRONT_KEYS)}"
            yield front.problem(f"has the unknown front matter key {key}; it may have {known}", key)
    expected = {"role": (str(role),), "output": tuple(map(str, CONTRACTS[role].outputs))}
    for key, values in expected.items():
        found = front.values.get(key)
        if found is None:
            yield front.problem(f"has no {key} in its front matter; add `{key}: {values[0]}`")
        elif found not in values:
            wanted = " or ".join(values)
            yield front.problem(f"says {key}: {found}, but {role.file_name} must say {key}: {wanted}", key)
    inputs = front.values.get("inputs")
    if not isinstance(inputs, list) or not all(isinstance(name, str) for name in inputs):
        example = f"inputs: [{', '.join(CONTRACTS[role].required)}]"
        yield front.problem(f"has no list of inputs in its front matter; add `{example}`", "inputs")


def _declared_problems(
    role: PromptRole, front: YamlMapping, declared: list[str], anatomy: Anatomy, taught: bool
) -> Iterator[Finding]:
    """Inputs that the front matter lists in vain or lacks; a misspelt input is reported once, at its line."""
    contract, uses = CONTRACTS[role], anatomy.uses
    meant = {nearest(name, contract.inputs) for name in (*uses, *declared) if name not in contract.inputs}
    for index, name in enumerate(declared):
        if name not in contract.inputs and name not in uses:
            yield front.problem(f"lists the input {name}; {_may_use(role, name)}", "inputs", index)
        elif name in declared[:index]:
            yield front.problem(f"lists the input {name} twice; keep one", "inputs", index)
        elif name not in uses and name not in meant:
            advice = f"write {{{{ {name} }}}} into the text, or take {name} out of inputs"
            yield front.problem(f"lists the input {name} but never uses it; {advice}", "inputs", index)
    subject = (contract.subject,) if contract.subject else ()
    for name in subject if taught else contract.required:
        if name not in uses and name not in meant and name not in declared:
            message = f"never uses {{{{ {name} }}}}, which a {role} prompt must show; write it into the text"
            yield front.problem(f"{message} and list it in inputs", "inputs")


def _use_faults(role: PromptRole, declared: list[str], anatomy: Anatomy) -> Iterator[TemplateFault]:
    for name, line in sorted(anatomy.uses.items(), key=lambda use: use[1]):
        if name not in CONTRACTS[role].inputs:
            yield TemplateFault(line, f"uses {{{{ {name} }}}}; {_may_use(role, name)}")
        elif name not in declared:
            advice = f"add {name} to inputs in the front matter"
            yield TemplateFault(line, f"uses {{{{ {name} }}}}, which its inputs do not list; {advice}")


def _may_use(role: PromptRole, name: str) -> str:
    allowed = CONTRACTS[role].inputs
    return f"a {role} prompt may use {listed(allowed)}{did_you_mean(name, allowed)}"


def _text_faults(
    role: PromptRole, output: Output, body: str, anatomy: Anatomy, taught: bool
) -> Iterator[TemplateFault]:
    """Lines count from the body's first."""
    reading, is_short = OUTPUTS[output], output in SHORT.values()
    missing = [text for text in reading.mentions if text not in anatomy.literal]
    if missing and not taught:
        asked = f"never mentions {' or '.join(missing)}"
        yield TemplateFault(1, f"{asked}; ask for it, because the code reads {reading.parsed}")
    budget, tokens = CONTRACTS[role].budget_tokens, quarter_of_bytes(body)
    if tokens > budget:
        message = f"takes about {tokens} tokens; a {role} prompt has {budget}: cut about {tokens - budget}"
        yield TemplateFault(1, message)
    # An example is counted by its last line, a score alone; scores inside sentences are instructions.
    lines = [line.strip() for line in body.split("\n")]
    for side, score in (("pass", "<score>1</score>"), ("fail", "<score>0</score>")):
        if role in GATE_ROLES and not is_short and (found := lines.count(score)) < GATE_EXAMPLES:
            message = f"shows {found} examples that {side}; a gate shows at least {GATE_EXAMPLES}"
            yield TemplateFault(1, f"{message} on each side, each ended by {score} alone on a line")
    yield from _foreign_faults(role, body)
    # A small model has to know what to look for before it reads.
    yield from () if is_short else _order_faults(anatomy)


def _foreign_faults(role: PromptRole, body: str) -> Iterator[TemplateFault]:
    """Texts of one model family, of another template language, and invisible characters."""
    for number, line in enumerate(body.split("\n"), start=1):
        for found in _SPECIAL_TOKEN.findall(line):
            advice = "the chat template writes those, so take it out"
            yield TemplateFault(number, f"holds {found}, a special token of some model family; {advice}")
        if role in POLICY_ROLES:
            for found in _SEARCH_CALL.findall(line)[:1]:
                advice = "write {{ search_syntax }}, which fits the model"
                yield TemplateFault(number, f"writes {found}, the search call of one model family; {advice}")
        for name in _SINGLE_BRACES.findall(line):
            if name in CONTRACTS[role].inputs:
                written = f"writes {{{name}}} in single braces, which stays as it is"
                yield TemplateFault(number, f"{written}; write {{{{ {name} }}}}")
        for found in _INVISIBLE.findall(line)[:1]:
            yield TemplateFault(number, f"holds the invisible character U+{ord(found):04X}; take it out")


def _order_faults(anatomy: Anatomy) -> Iterator[TemplateFault]:
    """Engines keep the common beginning of prompts: what changes most has to come last."""
    used = [name for name in _GROWING if name in anatomy.uses]
    for earlier, later in pairwise(used):
        if anatomy.uses[later] < anatomy.uses[earlier]:
            advice = f"put {{{{ {later} }}}} after it, so that calls share the longest beginning"
            message = f"uses {{{{ {later} }}}} before {{{{ {earlier} }}}}; {advice}"
            yield TemplateFault(anatomy.uses[later], message)
