"""YAML read strictly: a key appears once in its mapping, and every key and list item knows its line.

PyYAML is imported when a text is parsed: whoever only imports prompt packs does not wait for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import yaml

_DEEPEST = 6
"""No path that a message names is longer; the limit also ends a list that holds itself through an alias."""
_MOST_NESTED = 100
"""Mappings and lists inside each other; every reader of them goes down recursively."""
_MOST_VALUES = 100_000
"""Of a text with all aliases written out: a few lines could unfold to more than a memory holds."""
_MOST_DIGITS = 1_000


class YamlError(ValueError):
    """A text that is not YAML: `problem` is the parser's short message, `details` its whole message on one line.

    `line` counts from 1; None where the parser knows no line.
    """

    def __init__(self, line: int | None, problem: str, details: str) -> None:
        super().__init__(details)
        self.line, self.problem, self.details = line, problem, details


class RepeatedKeyError(YamlError):
    """A mapping that has `key` twice; PyYAML would silently take the last one. `line` is the second one's."""

    def __init__(self, line: int, key: str) -> None:
        super().__init__(line, f"has the key {key} twice", f"line {line} has the key {key} a second time")
        self.key = key


@dataclass(frozen=True)
class ParsedYaml:
    """Plain values, and the line of each key and list item by its path of strings."""

    values: Any
    lines: Mapping[tuple[str, ...], int]

    def line(self, *path: object) -> int:
        """The line of the deepest part of `path` that the text has."""
        words = tuple(map(str, path))
        while words and words not in self.lines:
            words = words[:-1]
        return self.lines.get(words, 1)


def parse_yaml(text: str, first_line: int = 1, *, as_text: bool = False) -> ParsedYaml:
    """Parse one document that starts on `first_line` of its file; an empty text has the value None.

    With `as_text` every scalar is the text as it is written: `3.10` is no number. Raises YamlError, with
    RepeatedKeyError among them.
    """
    import yaml

    try:
        # Both loaders build plain values only.
        loader = _bounded(yaml.BaseLoader if as_text else yaml.SafeLoader)(text, first_line)
        node = loader.get_single_node()
        values = loader.construct_document(node) if node else None
    except yaml.MarkedYAMLError as error:
        line = first_line + (error.problem_mark.line if error.problem_mark else 0)
        raise YamlError(line, str(error.problem), " ".join(str(error).split())) from None
    except YamlError:
        raise
    except (yaml.YAMLError, ValueError) as error:
        details = " ".join(str(error).split())
        raise YamlError(None, details, details) from None
    lines: dict[tuple[str, ...], int] = {} if node else {(): first_line}
    _note_lines(node, (), first_line, lines)
    return ParsedYaml(values, lines)


@cache
def _bounded(loader: type[Any]) -> type[Any]:
    """The loader, but keys that are repeated, deep nesting and aliases that multiply are errors of the text as soon as
    they are met."""
    import yaml

    class BoundedLoader(loader):  # type: ignore[misc]
        def __init__(self, text: str, first_line: int) -> None:
            super().__init__(text)
            self._first_line = first_line
            self._depth = 0
            self._values: dict[int, int] = {}

        def compose_node(self, parent: Any, index: Any) -> Any:
            refused = partial(yaml.MarkedYAMLError, problem_mark=self.peek_event().start_mark)
            if self._depth >= _MOST_NESTED:
                raise refused(problem=f"nested more than {_MOST_NESTED} deep")
            self._depth += 1
            node = super().compose_node(parent, index)
            self._depth -= 1
            if id(node) not in self._values:
                inside = node.value if isinstance(node, yaml.CollectionNode) else ()
                parts = [part for each in inside for part in (each if isinstance(each, tuple) else (each,))]
                # A part that is not counted yet holds itself through an alias.
                self._values[id(node)] = 1 + sum(self._values.get(id(part), 1) for part in parts)
            if node.tag == "tag:yaml.org,2002:int" and len(node.value) > _MOST_DIGITS:
                raise refused(problem=f"a number of more than {_MOST_DIGITS:,} digits")
            if self._values[id(node)] > _MOST_VALUES:
                raise refused(problem=f"its aliases unfold to more than {_MOST_VALUES:,} values")
            return node

        def compose_mapping_node(self, anchor: Any) -> Any:
            # Before construction, which adds the keys that `<<` merges to those of the mapping itself.
            node, seen = super().compose_mapping_node(anchor), set[str]()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                    if key.value in seen:
                        raise RepeatedKeyError(self._first_line + key.start_mark.line, key.value)
                    seen.add(key.value)
            return node

    return BoundedLoader


def _note_lines(
    node: "yaml.Node | None", path: tuple[str, ...], first_line: int, lines: dict[tuple[str, ...], int]
) -> None:
    """Add to `lines` everything below `node`."""
    import yaml

    children: list[tuple[str, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        children = [(str(key.value), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        children = [(str(index), item, item) for index, item in enumerate(node.value)]
    if len(path) <= _DEEPEST:
        for name, mark, child in children:
            lines[(*path, name)] = first_line + mark.start_mark.line
            _note_lines(child, (*path, name), first_line, lines)
