"""The protocols that an agent of this release can serve. A listener with another one is refused: served in plain, it
would be open to everybody."""

from __future__ import annotations

from typing import Final

from runtime.errors import BadInputError
from runtime.settings.listeners import listeners_of
from runtime.settings.table import Settings

SERVED_PROTOCOLS: Final = frozenset({"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"})


class UnservedError(BadInputError):
    """A listener needs what this release does not have. Nothing was started."""


def check_served(settings: Settings) -> None:
    """Raises UnservedError."""
    for listener in listeners_of(settings):
        if listener.protocol not in SERVED_PROTOCOLS:
            raise UnservedError(
                f"{listener.setting_name('protocol')} is {listener.protocol}, which this release does not serve yet;"
                " nothing was started",
                remedy=f"set it to {' or '.join(sorted(SERVED_PROTOCOLS))} on loopback, or leave the listener out",
            )
