"""How a client proves who it is on one connection, as Kafka's `SaslServerAuthenticator` does it. Pure.

A connection begins with ApiVersions, which may be left out, then SaslHandshake, then tokens until the mechanism is
satisfied. Only these three requests are decoded before that; any other ends the connection, and so does every one that
comes out of turn. After a SaslHandshake v0 tokens are bare frames; after v1 each is in a SaslAuthenticate.

Whatever was wrong with a proof, the client hears one text: a better one would tell who exists. Logs have the reason.

A refused token is answered with error 58 at once, as a wrong password is. Kafka sends RFC 7628's JSON first, and error
58 when the client has acknowledged it; but aiokafka takes that JSON for a yes, and franz-go does not say what it means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf
from typing import Final, Protocol, TypeAlias, cast

from agents.features import Features
from agents.handlers import api_versions
from runtime.errors import SiltstoneError
from security.sasl import plain
from security.sasl.errors import AuthenticationFailedError
from security.sasl.scram_server import NOBODY, ScramServer
from security.scram import BY_SASL_NAME, Mechanism, ScramCredential, is_same, stand_in
from wire.api import (
    API_VERSIONS,
    RequestHeader,
    UnsupportedVersionError,
    decode_request,
    encode_response,
    read_request_header,
)
from wire.error_codes import ErrorCode
from wire.messages.api_versions import ApiVersionsRequest
from wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from wire.schema import Message, Octets

SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"

REFUSED: Final = "Authentication failed: invalid credentials"
API_VERSIONS_MAX: Final = 4
"""Requests for ApiVersions that one connection may make. A client steps down once, or twice."""
REAUTHENTICATIONS_APART_MS: Final = 1_000
"""A handshake sooner after the last one is an ordinary request: answered as out of place, and past the end of the proof
the end of the connection (`KafkaChannel.maybeBeginServerReauthentication`, `Processor.processCompletedReceives`)."""
_KEY: Final[Mapping[bytes, int]] = {
    key.to_bytes(2, "big"): key for key in (SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE)
}
_HANDSHAKE_BYTES: Final = SASL_HANDSHAKE.to_bytes(2, "big")


class KnownUsers(Protocol):
    """The present users; the values change with the cluster's."""

    @property
    def users(self) -> Mapping[str, Mapping[Mechanism, ScramCredential]]: ...

    @property
    def cluster_secret(self) -> bytes: ...

    @property
    def stale_ms(self) -> float:
        """How old what is known is, at the most."""
        ...


class Cause(Enum):
    """Why a client did not come in, in kinds that a metric may show to others: none tells whether a user exists."""

    CREDENTIALS = "credentials"
    MECHANISM = "mechanism"
    PROTOCOL = "protocol"
    CHANGED = "changed"
    EXPIRED = "expired"
    STORE_AWAY = "store_away"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Reply:
    """Send these parts, which may be none. `ends`: then close the connection; the reason is for the log."""

    parts: Sequence[Octets] = ()
    ends: str = ""
    cause: Cause = Cause.PROTOCOL
    """Where it ends."""
    is_refusal: bool = False
    """A proof was refused: answer late, so that guessing is slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPassword:
    """Find out whether the password is the credential's, away from the event loop, and call `Session.judged`."""

    name: str
    password: str = field(repr=False)
    credential: ScramCredential
    is_known: bool
    """False: the credential is a stand-in. Check the password all the same; the answer is no."""


@dataclass(frozen=True, slots=True)
class CheckToken:
    """Judge the first message of OAUTHBEARER, and call `Session.judged_token`."""

    token: bytes = field(repr=False)


Step: TypeAlias = Reply | CheckPassword | CheckToken


class _State(Enum):
    START = auto()
    """ApiVersions or SaslHandshake."""
    HANDSHAKE = auto()
    """SaslHandshake alone."""
    TOKEN = auto()
    CHECKING = auto()
    """The caller finds out."""
    REFUSING = auto()
    """The client came back with another mechanism than the first time. Its proof is refused, whatever it is."""
    COMPLETE = auto()
    FAILED = auto()


class Session:
    """One connection's.

    Attributes:
        user: who the client has proved to be; "" before.
        mechanism: by what; "" before the first handshake.
        software: the client library's own name, if it said so (KIP-511).
    """

    def __init__(
        self,
        known: KnownUsers,
        mechanisms: Sequence[str],
        *,
        features: Features,
        nonce: Callable[[], str],
        reauthenticate_ms: int = 0,
        receive_bytes_max: int = 65_536,
        stale_ms_max: float = inf,
    ) -> None:
        """`nonce` returns printable random text, another each time. `reauthenticate_ms`: how long a proof counts; 0 for
        ever. `receive_bytes_max` bounds each message of a proof. Passwords are believed while what is known of users is
        no older than `stale_ms_max`."""
        self._known, self._mechanisms, self._features, self._nonce = known, tuple(mechanisms), features, nonce
        self._reauthenticate_ms, self._stale_ms_max = reauthenticate_ms, stale_ms_max
        self.receive_bytes_max = receive_bytes_max
        self._state = _State.START
        self._api_versions_left = API_VERSIONS_MAX
        self._is_bare = False
        """Tokens come without a request around them."""
        self._header = RequestHeader(SASL_AUTHENTICATE, 0, 0, None)
        """The one of the token that is being judged."""
        self._scram: ScramServer | None = None
        self._claim: CheckPassword | None = None
        self._proved: ScramCredential | None = None
        self._expires_ms = inf
        self._began_again_ms = -inf
        self.user = ""
        self.mechanism = ""
        self.software = ""

    @property
    def is_complete(self) -> bool:
        return self._state is _State.COMPLETE

    @property
    def has_password(self) -> bool:
        """The proof was a password, not a token."""
        return self._proved is not None

    @property
    def claimed(self) -> str:
        """The name that the client claims; for the log of a refusal."""
        return self._scram.name if self._scram is not None else self._claim.name if self._claim is not None else ""

    @property
    def still_holds(self) -> bool:
        """Whether what the client has proved, if anything, would still be a proof: ask after a change of users."""
        return self._proved is None or self._is_present(self.user, self._proved)

    def admits(self, frame: memoryview, now_ms: float) -> bool:
        """Whether the request is an ordinary one of a client that has proved itself. If not, `receive` it.

        Called for every request of a connection, so it decodes nothing.
        """
        if self._state is not _State.COMPLETE or now_ms >= self._expires_ms:
            return False
        return bytes(frame[:2]) != _HANDSHAKE_BYTES or not self._may_begin_again(now_ms)

    def receive(self, frame: memoryview, now_ms: float) -> Step:
        """Take a frame that `admits` did not let pass. After a step that is no Reply, nothing may be received before it
        is judged."""
        try:
            begins_again = bytes(frame[:2]) == _HANDSHAKE_BYTES and self._may_begin_again(now_ms)
            if self._state is _State.COMPLETE and not begins_again:
                return self._end("the proof has expired, and the client has not proved itself again", Cause.EXPIRED)
            if len(frame) > self.receive_bytes_max:
                return self._end("a message of a proof is too long")
            match self._state:
                case _State.START | _State.HANDSHAKE:
                    return self._begin(frame)
                case _State.TOKEN | _State.REFUSING:
                    return self._take_token(frame, now_ms)
                case _State.COMPLETE:
                    self._began_again_ms = now_ms
                    return self._begin(frame)
                case _State.CHECKING | _State.FAILED:
                    return self._end("a request out of turn")
        except AuthenticationFailedError as error:
            return self._refuse(error.message)
        except SiltstoneError as error:  # malformed, or a version that is not ours
            return self._end(error.message)

    def _may_begin_again(self, now_ms: float) -> bool:
        return self._expires_ms != inf and now_ms >= self._began_again_ms + REAUTHENTICATIONS_APART_MS

    def judged(self, is_password: bool, now_ms: float) -> Reply:
        """The end of a CheckPassword."""
        claim = self._claim
        if claim is None or self._state is not _State.CHECKING:
            return self._end("a judgement out of turn")
        if not claim.is_known:
            return self._refuse("no such user")
        if not is_password:
            return self._refuse("wrong password")
        return self._complete(claim.name, claim.credential, b"", now_ms)

    def judged_token(self, user: str, lifetime_ms: float, now_ms: float) -> Reply:
        """The end of a CheckToken that is good for so long."""
        return self._complete(user, None, b"", now_ms, lifetime_ms)

    def refused_token(self, reason: str) -> Reply:
        """The end of a CheckToken that is not good. The reason is for the log."""
        return self._refuse(reason)

    # ---- handshake

    def _begin(self, frame: memoryview) -> Reply:
        key = _KEY.get(bytes(frame[:2]))
        if key not in (API_VERSIONS, SASL_HANDSHAKE):
            return self._end("a request other than ApiVersions and SaslHandshake from a client that has proved nothing")
        try:
            header, position = read_request_header(frame)
        except UnsupportedVersionError as error:
            if key == API_VERSIONS:
                return self._tell_versions(error.header, None)
            raise
        request = decode_request(header, frame, position)
        if isinstance(request, ApiVersionsRequest):
            return self._tell_versions(header, request)
        return self._shake_hands(header, cast("SaslHandshakeRequest", request))

    def _tell_versions(self, header: RequestHeader, request: ApiVersionsRequest | None) -> Reply:
        if self._state is not _State.START or not self._api_versions_left:
            return self._end("ApiVersions out of turn")
        self._api_versions_left -= 1
        if request is None:
            return Reply(encode_response(header, api_versions.unsupported()))
        answer = api_versions.answer_to(header.api_version, request, self._features)
        if not answer.error_code:
            self.software = request.client_software_name
            self._state = _State.HANDSHAKE
        return Reply(encode_response(header, answer))

    def _shake_hands(self, header: RequestHeader, request: SaslHandshakeRequest) -> Reply:
        asked, ours = request.mechanism, list(self._mechanisms)
        if asked not in ours:
            answer = SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=ours)
            self._state = _State.FAILED
            reason = "a SASL mechanism that the listener does not have"
            return Reply(encode_response(header, answer), reason, Cause.MECHANISM)
        self._is_bare = header.api_version == 0
        self._scram, self._claim = None, None
        self._state = _State.TOKEN
        if self.user and asked != self.mechanism:
            self._state = _State.REFUSING
        elif asked in BY_SASL_NAME:
            self._scram = ScramServer(
                BY_SASL_NAME[asked],
                self._known.users,
                cluster_secret=self._known.cluster_secret,
                server_nonce=self._nonce(),
            )
        if not self.user:
            self.mechanism = asked
        return Reply(encode_response(header, SaslHandshakeResponse(mechanisms=ours)))

    # ---- tokens

    def _take_token(self, frame: memoryview, now_ms: float) -> Step:
        if self._is_bare:
            token = bytes(frame)
        else:
            if _KEY.get(bytes(frame[:2])) != SASL_AUTHENTICATE:
                return self._out_of_place(frame)
            header, position = read_request_header(frame)
            self._header = header
            token = bytes(cast("SaslAuthenticateRequest", decode_request(header, frame, position)).auth_bytes)
        if self._state is _State.REFUSING:
            return self._refuse("another mechanism than the first time", Cause.CHANGED)
        if self._scram is not None:
            answer = self._scram.step(token)
            if not self._scram.is_complete:
                return Reply(self._token_answer(answer))
            return self._complete(self._scram.name, self._scram.credential, answer, now_ms)
        self._state = _State.CHECKING
        if self.mechanism == OAUTHBEARER:
            return CheckToken(token)
        self._claim = self._claim_of(plain.read(token))
        return self._claim

    def _claim_of(self, said: plain.PlainClaim) -> CheckPassword:
        # Made for known users as well, so that both cost the same.
        invented = stand_in(Mechanism.SCRAM_SHA_512, said.name, self._known.cluster_secret)
        # Looked through in the same steps, whoever it is.
        credentials = self._known.users.get(said.name, NOBODY)
        strong, weak = credentials.get(Mechanism.SCRAM_SHA_512), credentials.get(Mechanism.SCRAM_SHA_256)
        strongest = strong or weak
        return CheckPassword(
            name=said.name,
            password=said.password,
            credential=strongest or invented,
            is_known=strongest is not None,
        )

    def _out_of_place(self, frame: memoryview) -> Reply:
        """Kafka answers a handshake or ApiVersions among the tokens with error 34; other requests are not decoded."""
        key = _KEY.get(bytes(frame[:2]))
        if key != SASL_HANDSHAKE:
            return self._end("a request other than SaslAuthenticate from a client that has not proved itself yet")
        header, _ = read_request_header(frame)
        self._state = _State.FAILED
        answer = SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        return Reply(encode_response(header, answer), "a second handshake")

    # ---- ends

    def _complete(
        self,
        user: str,
        credential: ScramCredential | None,
        answer: bytes,
        now_ms: float,
        lifetime_ms: float = inf,
    ) -> Reply:
        # The user may have changed since the first message.
        if credential is not None and not self._is_present(user, credential):
            return self._refuse("the user was changed meanwhile")
        if credential is not None and self._known.stale_ms > self._stale_ms_max:
            # No error: it would stop the client for good, and another agent may know better.
            return self._end("the metadata store was not heard for security.stale.max.ms", Cause.STORE_AWAY)
        if self.user and user != self.user:
            return self._refuse("another user than the first time", Cause.CHANGED)
        self.user, self._proved = user, credential
        self._state = _State.COMPLETE
        lifetime_ms = min(self._reauthenticate_ms or inf, max(0, lifetime_ms))
        self._expires_ms = now_ms + lifetime_ms
        return Reply(self._token_answer(answer, session_lifetime_ms=0 if lifetime_ms == inf else int(lifetime_ms)))

    def _refuse(self, reason: str, cause: Cause = Cause.CREDENTIALS) -> Reply:
        self._state = _State.FAILED
        if self._is_bare:
            return Reply((), reason, cause, is_refusal=True)
        answer = SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=REFUSED)
        return Reply(encode_response(self._header, answer), reason, cause, is_refusal=True)

    def _end(self, reason: str, cause: Cause = Cause.PROTOCOL) -> Reply:
        self._state = _State.FAILED
        return Reply((), reason, cause)

    def _token_answer(self, token: bytes, *, session_lifetime_ms: int = 0) -> Sequence[Octets]:
        if self._is_bare:
            return [len(token).to_bytes(4, "big"), token] if token else [bytes(4)]
        answer: Message = SaslAuthenticateResponse(
            error_code=0, error_message=None, auth_bytes=token, session_lifetime_ms=session_lifetime_ms
        )
        return encode_response(self._header, answer)

    def _is_present(self, user: str, credential: ScramCredential) -> bool:
        return is_same(credential, self._known.users.get(user, {}).get(credential.mechanism))
