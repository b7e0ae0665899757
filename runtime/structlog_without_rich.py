"""structlog, imported as where rich is not installed.

structlog imports rich for tracebacks with colors. We print plain ones, and that import would be a tenth of the CPU time
in which a process starts.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, cast


def _import_it() -> None:
    modules = cast("dict[str, Any]", sys.modules)
    before = modules.get("rich")
    modules["rich"] = None  # Python's way to say that an import of it fails
    try:
        importlib.import_module("structlog")
    finally:
        if before is None:
            del modules["rich"]
        else:
            modules["rich"] = before


if "structlog" not in sys.modules:
    _import_it()

import structlog as structlog  # noqa: E402 - only now
