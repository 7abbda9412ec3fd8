"""A resolved prompt pack: what it renders, its hash, its files, and how it differs from another.

The hash covers the resolved domain.yaml (its values, without the domain's name and comments) and every role's
whole file with `\n` line ends, so it changes exactly when a prompt or a setting does, wherever the pack lies.
"""

import difflib
import hashlib
import json
from collections.abc import Mapping
from functools import cached_property

from scope_selfplay.base.errors import PromptError
from scope_selfplay.base.text import clean_for_policy, frame_of
from scope_selfplay.base.values import Value
from scope_selfplay.prompts import file as template
from scope_selfplay.prompts.domain import DOMAIN_FILE, Domain
from scope_selfplay.prompts.file import Prompt
from scope_selfplay.prompts.roles import ABSENT, CONTRACTS, POLICY_ROLES, UNTRUSTED, PromptRole

PromptValue = str | int | float | bool


class Pack(Value):
    """One domain with all that it inherits. Made by `load_pack`; a pack that exists has no mistakes."""

    domain: Domain
    prompts: tuple[Prompt, ...]

    @cached_property
    def hash(self) -> str:
        """The first 16 hex digits of the SHA-256 of the resolved pack."""
        domain = self.domain.model_dump(mode="json", exclude={"name"})
        files = {prompt.role.file_name: prompt.text for prompt in self.prompts}
        canonical = json.dumps([domain, files], sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    @property
    def roles(self) -> tuple[PromptRole, ...]:
        return tuple(prompt.role for prompt in self.prompts)

    def render(self, role: PromptRole, **values: PromptValue | None) -> str:
        """Put `values` into the role's text in one pass; they appear as given and are never read again.

        Callers give every input of the contract; a pack uses those it likes. An optional input of `ABSENT`
        may be left out or None. Raises PromptError when the pack has no such role, TypeError when an input is
        foreign or lacking.
        """
        prompt, contract = next((own for own in self.prompts if own.role == role), None), CONTRACTS[role]
        if prompt is None:
            advice = f"add {role.file_name}, or extend a pack that has it"
            raise PromptError(f"the prompt pack {self.domain.name} has no {role} prompt; {advice}")
        absent = {name: ABSENT[name] for name in contract.optional if name in ABSENT}
        given = absent | {name: value for name, value in values.items() if value is not None}
        foreign = values.keys() - set(contract.inputs)
        lacking = set(prompt.uses) - given.keys()
        if foreign or lacking:
            raise TypeError(
                f"{role} prompt: foreign inputs {sorted(foreign)}, lacking inputs {sorted(lacking)}"
            )
        return template.render(prompt.body, _cleaned(prompt.body, given) if role in POLICY_ROLES else given)

    def files(self) -> dict[str, str]:
        """The resolved pack as file name -> text; a folder of these loads on its own, with the same hash."""
        contents = _contents(self)
        return contents | {DOMAIN_FILE: f"name: {self.domain.name}\n{contents[DOMAIN_FILE]}"}


def _cleaned(body: str, given: Mapping[str, PromptValue]) -> dict[str, PromptValue]:
    own_lines = frame_of(body)
    return {
        name: clean_for_policy(value, own_lines) if name in UNTRUSTED and isinstance(value, str) else value
        for name, value in given.items()
    }


def diff_packs(a: Pack, b: Pack) -> str:
    """What changed from `a` to `b`, as one unified diff over all files; empty when both say the same."""
    before, after = _contents(a), _contents(b)
    parts: list[str] = []
    for name in dict.fromkeys((*before, *after)):
        parts += difflib.unified_diff(
            before.get(name, "").splitlines(),
            after.get(name, "").splitlines(),
            f"{a.domain.name}/{name}",
            f"{b.domain.name}/{name}",
            lineterm="",
        )
    return "\n".join(parts)


def _contents(pack: Pack) -> dict[str, str]:
    """The resolved files without the domain's name, which belongs to a pack's place and not to its contents."""
    import yaml

    domain = pack.domain
    values = domain.model_dump(mode="json", exclude={"name", "task_types", "search_turns"})
    values["search_turns"] = dict(sorted(domain.search_turns.items()))
    values["task_types"] = {
        kind.name: kind.model_dump(mode="json", exclude={"name"}) for kind in domain.task_types
    }
    for key in ("corpus", "corpus_reader"):
        if not values[key]:
            del values[key]
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=110)
    return {DOMAIN_FILE: text} | {prompt.role.file_name: prompt.text for prompt in pack.prompts}
