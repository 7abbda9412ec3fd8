"""The shell commands of the documentation: what a page's code blocks hold that a reader would type."""

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
PROGRAMS = ("scope", "python", "make", "kubectl", "docker", "vllm", "pip", "curl")
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^ {4}\S.*$(?:\n(?:^ {4}.*$|^$(?=\n {4})))*", re.MULTILINE)
# A remark behind a command: a comment, or words that stand clear of it.
_REMARK = re.compile(r"\s+# .*$| {3,}\S.*$")


class DocCommand(NamedTuple):
    """`text` is what would be typed, in one line; `page` is the page's path in the repository."""

    page: str
    text: str

    @property
    def plain(self) -> str:
        """Without the options in brackets, which may be left out."""
        return re.sub(r"\s*\[-[^\]]*\]", "", self.text)

    @property
    def forms(self) -> list[str]:
        """The commands that a line of a list of commands names: every alternative, without options and placeholders."""
        found = []
        for part in re.split(r", (?=scope )", self.text):
            words = itertools.takewhile(lambda word: word[0] not in "[-", part.split())
            alternatives = [word.split("|") for word in words if not word.isupper()]
            found += [" ".join(form) for form in itertools.product(*alternatives)]
        return found


def commands_of(page: Path) -> Iterator[DocCommand]:
    """In the order of the page."""
    text, name = page.read_text(encoding="utf-8"), str(page.relative_to(REPOSITORY))
    blocks = [(found.start(), found[2]) for found in _FENCED.finditer(text) if found[1] in ("", "sh")]
    # As long as before, so that all blocks keep their places.
    bare = _FENCED.sub(lambda found: re.sub(r"[^\n]", "#", found[0]), text)
    blocks += [(found.start(), found[0]) for found in _INDENTED.finditer(bare)]
    for _, block in sorted(blocks):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            command = _REMARK.sub("", line.strip()).removesuffix(" &")
            if command.split(" ")[0] in PROGRAMS and " " in command:
                yield from (DocCommand(name, each) for each in command.split("; "))


ALL = [command for page in PAGES for command in commands_of(page)]


def environment() -> dict[str, str]:
    """For programs that these commands start."""
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
