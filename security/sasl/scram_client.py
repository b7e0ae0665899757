"""The client's half of SCRAM. It proves the password without sending it, and checks that the server knows it too."""

from __future__ import annotations

import hmac

from security.sasl import scram_messages
from security.sasl.errors import AuthenticationFailedError
from security.scram import Mechanism, keys_of, salted_password, stored_key_of


class ScramClient:
    """One exchange: `first`, then `prove` and `check` with the server's answers."""

    __slots__ = ("_bare", "_header", "_mechanism", "_nonce", "_password", "_signature")

    def __init__(self, mechanism: Mechanism, name: str, password: str, *, nonce: str) -> None:
        """`nonce`: at least 18 random bytes in printable ASCII without commas, never used before."""
        self._mechanism, self._password, self._nonce = mechanism, password, nonce
        self._header, self._bare = scram_messages.write_client_first(name, nonce)
        self._signature = b""

    def first(self) -> bytes:
        return (self._header + self._bare).encode()

    def prove(self, token: bytes) -> bytes:
        """The answer to the server's first message. It costs the iterations that the server asks for. Raises
        AuthenticationFailedError."""
        asked = scram_messages.read_server_first(token)
        if not asked.nonce.startswith(self._nonce) or len(asked.nonce) <= len(self._nonce):
            raise AuthenticationFailedError("the server's nonce does not continue ours")
        keys = keys_of(self._mechanism, salted_password(self._mechanism, self._password, asked.salt, asked.iterations))
        unproved = scram_messages.write_client_final(self._header, asked.nonce)
        covered = f"{self._bare},{asked.text},{unproved}".encode()
        mask = hmac.digest(stored_key_of(self._mechanism, keys.client_key), covered, self._mechanism.digest)
        self._signature = hmac.digest(keys.server_key, covered, self._mechanism.digest)
        return scram_messages.with_proof(unproved, bytes(a ^ b for a, b in zip(keys.client_key, mask, strict=True)))

    def check(self, token: bytes) -> None:
        """Judge the server's last message. Raises AuthenticationFailedError: the server does not know the password."""
        signature = scram_messages.read_server_final(token)
        if not self._signature or not hmac.compare_digest(signature, self._signature):
            raise AuthenticationFailedError("the server has not proved that it knows the password")
