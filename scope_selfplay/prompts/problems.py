"""A mistake in a prompt pack, with its file and line; and YAML mappings that know the lines of their keys."""

from collections.abc import Iterable
from dataclasses import dataclass

from scope_selfplay.strict_yaml import ParsedYaml, RepeatedKeyError, YamlError, parse_yaml


@dataclass(frozen=True)
class PackProblem:
    """`str(problem)` is one line for a person; `line` counts from 1."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.message}"


@dataclass(frozen=True)
class YamlMapping(ParsedYaml):
    """A parsed mapping of a file."""

    values: dict[object, object]
    file: str

    def problem(self, message: str, *path: object) -> PackProblem:
        """A problem on the line of the deepest part of `path` that the file has."""
        return PackProblem(self.file, self.line(*path), message)


def read_mapping(text: str, file: str, first_line: int = 1) -> YamlMapping | PackProblem:
    """Parse a YAML mapping that starts on `first_line` of `file`; an empty text is an empty mapping."""
    try:
        parsed = parse_yaml(text, first_line)
    except RepeatedKeyError as error:
        return PackProblem(file, error.line or first_line, f"{error.problem}; keep one of them")
    except YamlError as error:
        advice = "; quote texts that hold : # {{ or [" if error.line else ""
        return PackProblem(file, error.line or first_line, f"is not valid YAML: {error.problem}{advice}")
    values = {} if parsed.values is None else parsed.values
    if not isinstance(values, dict):
        return PackProblem(file, first_line, f"holds {type(values).__name__}; expected `key: value` lines")
    return YamlMapping(values, parsed.lines, file)


def listed(words: Iterable[str]) -> str:
    return ", ".join(words) or "nothing"
