"""Compiled twins of the walks over record bytes, for the process that reads every record of a partition: the compactor.

Each module holds kernels and beside them the same in plain Python (`..._python`), against which the tests compare them.
Importing this package loads numba (0.3 to 0.7 s): agents never do. Why numba: docs/decisions/0010-numba-kernels.md.
"""

from __future__ import annotations

# `warm` compiles the kernels of all modules that were imported
from wire.kernels import batches, checksum, hashing, rewrite, scan
from wire.kernels.compiled import warm

__all__ = ["batches", "checksum", "hashing", "rewrite", "scan", "warm"]
