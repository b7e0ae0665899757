"""The server's half of SCRAM.

An unknown user is treated as a known one until the last message: same messages, same work, same refusal.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final

from security.sasl import scram_messages
from security.sasl.errors import AuthenticationFailedError
from security.scram import Mechanism, ScramCredential, stand_in, stored_key_of

NOBODY: Final[Mapping[Mechanism, ScramCredential | None]] = dict.fromkeys(Mechanism)
"""Looked through in the place of a user who does not exist."""
_REASONS: Final = ("no such user for this mechanism", "wrong password")


class ScramServer:
    """One exchange: two messages in, two out.

    Attributes:
        name: the user that the client claims to be, from the first message on; "" before.
        credential: what the claim was judged by, a stand-in for an unknown user.
        is_complete: the client has proved the claim.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        users: Mapping[str, Mapping[Mechanism, ScramCredential]],
        *,
        cluster_secret: bytes,
        server_nonce: str,
    ) -> None:
        """`server_nonce`: at least 18 random bytes in printable ASCII without commas, never used before."""
        self._mechanism, self._users = mechanism, users
        self._cluster_secret, self._server_nonce = cluster_secret, server_nonce
        self._first: scram_messages.ClientFirst | None = None
        self._sent = ""
        self._invented: ScramCredential | None = None
        self._is_known = False
        self.name = ""
        self.credential: ScramCredential | None = None
        self.is_complete = False

    def step(self, token: bytes) -> bytes:
        """The answer to the client's next message. Raises AuthenticationFailedError: then the exchange is over."""
        if self.is_complete:
            raise AuthenticationFailedError("a SCRAM message after the last one")
        if self._first is None or self.credential is None:
            return self._begin(token)
        return self._finish(self._first, self.credential, token)

    def _begin(self, token: bytes) -> bytes:
        self._first = first = scram_messages.read_client_first(token)
        self.name = first.name
        # Made and kept for known users as well, so that both cost the same.
        invented = self._invented = stand_in(self._mechanism, first.name, self._cluster_secret)
        known = self._users.get(first.name, NOBODY).get(self._mechanism)
        self._is_known = known is not None
        self.credential = credential = known or invented
        self._sent = scram_messages.write_server_first(
            first.nonce + self._server_nonce, credential.salt, credential.iterations
        )
        return self._sent.encode()

    def _finish(self, first: scram_messages.ClientFirst, credential: ScramCredential, token: bytes) -> bytes:
        final = scram_messages.read_client_final(token, self._mechanism)
        # A proof that was overheard holds another nonce; to go without this check was Kafka's CVE-2024-56128.
        if not hmac.compare_digest(final.nonce, first.nonce + self._server_nonce):
            raise AuthenticationFailedError("the last SCRAM message has another nonce")
        if not hmac.compare_digest(final.header, first.header.encode()):
            raise AuthenticationFailedError("the last SCRAM message has another channel binding")
        digest = self._mechanism.digest
        covered = f"{first.bare},{self._sent},{final.unproved}".encode()
        mask = hmac.digest(credential.stored_key, covered, digest)
        client_key = bytes(a ^ b for a, b in zip(final.proof, mask, strict=True))
        is_proved = hmac.compare_digest(stored_key_of(self._mechanism, client_key), credential.stored_key)
        signature = hmac.digest(credential.server_key, covered, digest)
        # Both are asked, and neither text is made here.
        if not is_proved & self._is_known:
            raise AuthenticationFailedError(_REASONS[self._is_known])
        self.is_complete = True
        return scram_messages.write_server_final(signature)
