"""Arrays -> a file of safetensors. A disk that refuses it is an OSError, as it is of any other file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

NUMBER = re.compile(r"\(os error (\d+)\)")  # the library tells the system's number within its words alone


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None) -> None:
    """Write arrays, which lie in C order, and words about them. OSError where the disk refuses; the file that is at
    `path` stays then."""
    try:
        save_file(dict(arrays), path, metadata=None if metadata is None else dict(metadata))
    except SafetensorError as error:
        if (found := NUMBER.search(str(error))) is None:
            raise
        number = int(found[1])
        raise OSError(number, os.strerror(number)) from None
