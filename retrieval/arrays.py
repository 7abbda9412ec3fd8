"""Opens .npy files that may have been damaged."""

import tokenize
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scope_selfplay.errors import RecordError

FAULTS = (OSError, ValueError, EOFError, TypeError, SyntaxError, tokenize.TokenError)
"""What NumPy raises over a changed byte of the header, which it reads as Python."""


def map_array(path: Path) -> NDArray[Any]:
    """Map a .npy file. Raises RecordError."""
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except FAULTS as error:
        raise RecordError(f"{path}: cannot be opened: {error}") from None
    return array
