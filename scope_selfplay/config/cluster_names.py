"""Names as a Kubernetes API server takes them: images, objects, labels."""

import re
from typing import Annotated

from pydantic import AfterValidator

_WORD = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DOMAIN = rf"{_WORD}(\.{_WORD})*"
_LABEL = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_PATH = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = (
    r"([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?(:[0-9]+)?/)?"
    rf"{_PATH}(/{_PATH})*(:[A-Za-z0-9_][-A-Za-z0-9_.]{{0,127}})?(@sha256:[0-9a-f]{{64}})?"
)


def _named(pattern: str, what: str, example: str, longest: int = 253) -> AfterValidator:
    """Says what a name looks like: a pattern alone tells nobody."""

    def check(name: str) -> str:
        if len(name) > longest or not re.fullmatch(pattern, name):
            raise ValueError(f"found {name!r}, expected {what}, such as {example}")
        return name

    return AfterValidator(check)


Image = Annotated[
    str,
    _named(_IMAGE, "an image's name, with a tag or a digest of 64 digits", "registry.example/scope:1", 512),
]
OptionalImage = Annotated[
    str,
    _named(
        f"({_IMAGE})?",
        "an image's name, with a tag or a digest of 64 digits",
        "registry.example/scope:1",
        512,
    ),
]
ObjectName = Annotated[
    str, _named(_DOMAIN, "the name of an object: small letters, digits, - and .", "my-secret")
]
LabelKey = Annotated[
    str,
    _named(
        rf"({_DOMAIN}/)?{_LABEL}",
        "a label's key of at most 63 letters, digits, -, _ and .",
        "team.example/pool",
        317,
    ),
]
OptionalLabelKey = Annotated[
    str, _named(rf"(({_DOMAIN}/)?{_LABEL})?", "a taint's key, or none", "nvidia.com/gpu", 317)
]
LabelValue = Annotated[
    str, _named(rf"({_LABEL})?", "a label's value of at most 63 letters, digits, -, _ and .", "a100")
]
