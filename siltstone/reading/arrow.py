"""The modules of pyarrow that datasets need. pyarrow ships no types; `Any` stands in."""

from __future__ import annotations

from typing import Any

from spark_jobs.scan.arrow import pa  # first, because it says what to install where pyarrow is missing

import pyarrow.acero as _acero  # pyright: ignore[reportMissingTypeStubs]  # isort: skip
import pyarrow.dataset as _dataset  # pyright: ignore[reportMissingTypeStubs]  # isort: skip
import pyarrow.fs as _fs  # pyright: ignore[reportMissingTypeStubs]  # isort: skip

acero: Any = _acero
ds: Any = _dataset
fs: Any = _fs

__all__ = ["acero", "ds", "fs", "pa"]
