"""`python -m siltstone`: the `siltstone` command, for environments whose script directory is not on the PATH."""

from __future__ import annotations

from siltstone.cli import main

if __name__ == "__main__":
    main(prog_name="siltstone")
