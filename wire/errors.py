"""The errors between bytes and messages. The class tells whose fault it was.

The peer's fault: `MalformedFrameError`, `FrameTooLargeError`, `MalformedMessageError`, `UnknownApiError`, and
`UnsupportedVersionError`, which stands in `wire.api` beside the header that it carries. Kafka closes the connection on
all of them, with one exception: it answers an ApiVersions request of an unknown version (KIP-511). Our own fault:
`EncodingError`.
"""

from __future__ import annotations

from runtime.errors import BadInputError, BugError


class MalformedFrameError(BadInputError):
    """The four bytes before a frame cannot be a length, so the start of the next frame is unknown."""


class FrameTooLargeError(MalformedFrameError):
    """The peer announced a frame above the limit."""


class MalformedMessageError(BadInputError):
    """The bytes of one frame are not the message they claim to be."""


class UnknownApiError(BadInputError):
    """A request for an API key that we do not serve."""

    def __init__(self, api_key: int) -> None:
        super().__init__(f"request for API key {api_key}, which is not served")
        self.api_key = api_key


class EncodingError(BugError):
    """A message of ours holds a value that its version cannot carry (out of range, null, or not in that version)."""
