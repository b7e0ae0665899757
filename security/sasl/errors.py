"""Why a proof was refused. The text is for the log of the end that refuses: the other end hears only that it was."""

from __future__ import annotations

from runtime.errors import SiltstoneError


class AuthenticationFailedError(SiltstoneError):
    """The peer has not proved itself. The message shows no secret and no byte that the peer chose."""
