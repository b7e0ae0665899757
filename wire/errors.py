"""What can go wrong between bytes and messages. Whose fault it is decides the class.

The peer's fault: `MalformedFrameError`, `FrameTooLargeError`, `MalformedMessageError`, `UnknownApiError`,
`UnsupportedVersionError`. Kafka closes the connection on all of them, except that an ApiVersions request of an
unknown version is answered (KIP-511). Our own fault: `EncodingError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.errors import BadInputError, BugError

if TYPE_CHECKING:
    from wire.api import RequestHeader


class MalformedFrameError(BadInputError):
    """The four bytes before a frame cannot be a length; where the next frame starts is unknown."""


class FrameTooLargeError(MalformedFrameError):
    """The peer announced a frame above the limit."""


class MalformedMessageError(BadInputError):
    """The bytes of one frame are not the message they claim to be."""


class UnknownApiError(BadInputError):
    """A request for an API key that we do not serve."""

    def __init__(self, api_key: int) -> None:
        super().__init__(f"request for API key {api_key}, which is not served")
        self.api_key = api_key


class UnsupportedVersionError(BadInputError):
    """A request for a version outside the accepted range.

    Attributes:
        header: the request's header; of ApiVersions in a version newer than ours too, whose body must not be read.
        position: where the body starts, for versions that can be decoded though they are not accepted (Produce 0-2).
    """

    def __init__(self, message: str, header: RequestHeader, position: int) -> None:
        super().__init__(message)
        self.header = header
        self.position = position


class EncodingError(BugError):
    """A message of ours holds a value that its version cannot carry (out of range, null, or not in that version)."""
