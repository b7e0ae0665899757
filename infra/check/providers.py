"""The provider that the check runs with: the real one where it is at hand, a stand-in elsewhere."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from infra.check.real.account import account
from infra.check.real.mirror import PROVIDER, Mirror
from infra.check.stand_in import schema
from infra.check.stand_in.provider import serving
from infra.check.terraform import Plugin


@contextmanager
def plugged(mirror: Mirror | None, scratch: Path, *folders: Path) -> Generator[Plugin]:
    """A provider until the block ends.

    With the real one, files of values in these folders are changed to name what its account has. Raises NoServer,
    DamagedSchema.
    """
    if mirror is None:
        with serving(schema.load()) as plugin:
            yield plugin
        return
    with account() as ours:
        for folder in folders:
            ours.settle(folder)
        name = f"{PROVIDER.partition('/')[2]} {mirror.version} itself, asking moto in place of AWS"
        yield Plugin(name, {**mirror.settings(scratch), **ours.settings()}, is_real=True)
