"""pyarrow, as this room uses it. Without the extra, importing it raises an error that says what to install."""

from __future__ import annotations

from typing import Any

from runtime.errors import BadInputError
from spark_jobs.environment import INSTALL_TABLES


class MissingExtraError(BadInputError, ImportError):
    """pyarrow is not installed."""


try:
    import pyarrow as _pyarrow  # pyright: ignore[reportMissingTypeStubs] -- ships no types; `Any` stands in
except ModuleNotFoundError as error:
    if error.name != "pyarrow":
        raise
    raise MissingExtraError(
        "reading topics as tables needs pyarrow, which is not installed", remedy=INSTALL_TABLES
    ) from error

pa: Any = _pyarrow
