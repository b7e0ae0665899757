"""The names under which the metrics count what peers send wrong."""

from __future__ import annotations

from runtime.errors import SiltstoneError
from wire.api import UnsupportedVersionError
from wire.errors import FrameTooLargeError, MalformedFrameError, MalformedMessageError, UnknownApiError

_REASONS = (
    (FrameTooLargeError, "frame_too_large"),
    (MalformedFrameError, "malformed_frame"),
    (UnknownApiError, "unknown_api"),
    (UnsupportedVersionError, "unsupported_version"),
    (MalformedMessageError, "malformed_message"),
)


def reason_of(error: SiltstoneError) -> str:
    return next((name for kind, name in _REASONS if isinstance(error, kind)), "other")
