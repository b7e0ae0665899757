"""`python -m siltstone`: the same command as `siltstone`, for where no script directory is on the PATH."""

from __future__ import annotations

from siltstone.cli import main

if __name__ == "__main__":
    main(prog_name="siltstone")
