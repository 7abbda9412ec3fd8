"""YAML mappings whose every key knows its line, so that a mistake can be shown where it was made."""

from typing import NamedTuple

from scope_selfplay.prompts.problems import PackProblem

_DEEPEST = 6
"""No key of a pack lies deeper; it also ends a list that holds itself through an alias."""


class YamlMapping(NamedTuple):
    """A parsed mapping. `lines` maps the path of a key or list item, as strings, to its line in the file."""

    file: str
    values: dict[object, object]
    lines: dict[tuple[str, ...], int]

    def line(self, *path: object) -> int:
        """The line of the deepest part of `path` that the file has."""
        words = tuple(str(part) for part in path)
        while words and words not in self.lines:
            words = words[:-1]
        return self.lines.get(words, 1)

    def problem(self, message: str, *path: object) -> PackProblem:
        return PackProblem(self.file, self.line(*path), message)


def read_mapping(text: str, file: str, first_line: int = 1) -> YamlMapping | PackProblem:
    """Parse a YAML mapping that starts on `first_line` of `file`; an empty text is an empty mapping."""
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        values = loader.construct_document(node) if node else None
    except yaml.MarkedYAMLError as error:
        line = first_line + (error.problem_mark.line if error.problem_mark else 0)
        return PackProblem(
            file, line, f"is not valid YAML: {error.problem}; quote texts that hold : # {{ or ["
        )
    except (yaml.YAMLError, ValueError) as error:
        return PackProblem(file, first_line, f"is not valid YAML: {' '.join(str(error).split())}")
    if node is None:
        return YamlMapping(file, {}, {(): first_line})
    if not isinstance(values, dict):
        return PackProblem(file, first_line, f"holds {type(values).__name__}; expected `key: value` lines")
    lines: dict[tuple[str, ...], int] = {}
    twice = _note_lines(node, (), first_line, lines)
    if twice is not None:
        key, line = twice
        return PackProblem(file, line, f"has the key {key} twice; keep one of them")
    return YamlMapping(file, values, lines)


def _note_lines(
    node: object, path: tuple[str, ...], first_line: int, lines: dict[tuple[str, ...], int]
) -> tuple[str, int] | None:
    """Fill `lines` below `node`; returns the first key that stands twice in one mapping, with its line."""
    import yaml

    children: list[tuple[str, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        children = [(str(key.value), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        children = [(str(index), item, item) for index, item in enumerate(node.value)]
    if len(path) > _DEEPEST:
        return None
    for name, mark, child in children:
        line = first_line + mark.start_mark.line
        if (*path, name) in lines:
            return name, line
        lines[(*path, name)] = line
        twice = _note_lines(child, (*path, name), first_line, lines)
        if twice is not None:
            return twice
    return None
