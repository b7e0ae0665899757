"""Judges a signed token (JWT). Pure: the keys and the time are arguments.

Stricter than Kafka, where issuer and audience are optional: a token that was issued for another service would let its
holder in here. Only signatures by public keys count. With a shared secret (HS256), whoever can check a token can make
one, and `none` has no signature at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import jwt

from security.sasl.errors import AuthenticationFailedError
from security.scram import CredentialError, check_name

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
SKEW_S: Final = 30
"""How far the clocks of the issuer and the agent may be apart; Kafka's `sasl.oauthbearer.clock.skew.seconds`."""
_SEPARATOR: Final = "\x01"
_KEY_MEMBERS: Final = ("kty", "crv", "n", "e", "x", "y")
_BEARER: Final = "bearer "


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The claims that a token must make."""

    issuer: str
    audience: Sequence[str]
    """One of these."""
    user_claim: str
    """The claim that names the user."""


@dataclass(frozen=True, slots=True)
class Judged:
    user: str
    expires_s: float
    """Seconds since 1970."""


class UnknownKeyError(AuthenticationFailedError):
    """No known key has the token's id: the issuer may have changed its keys."""


def read_message(message: bytes) -> str:
    """The token in a client's first message (RFC 7628, section 3.1). Raises AuthenticationFailedError."""
    try:
        text = message.decode("ascii")
    except UnicodeDecodeError:
        # `from None`: the error holds the message, and that the token.
        raise AuthenticationFailedError("the OAUTHBEARER message is not ASCII") from None
    header, *pairs = text.split(_SEPARATOR)
    if not header.startswith(("n,", "y,")) or not header.endswith(",") or pairs[-2:] != ["", ""]:
        raise AuthenticationFailedError("the OAUTHBEARER message is malformed")
    if header[2:-1]:
        # The server could compare it with the token's user. No client of Kafka sends one.
        raise AuthenticationFailedError("the client asks to act for another user")
    found = [pair.removeprefix("auth=") for pair in pairs if pair.startswith("auth=")]
    if len(found) != 1 or not found[0].lower().startswith(_BEARER):
        raise AuthenticationFailedError("the OAUTHBEARER message has no bearer token")
    return found[0][len(_BEARER) :].strip()


def judge(token: str, keys: Mapping[str, jwt.PyJWK], expected: Expected, *, now_s: float) -> Judged:
    """Raises UnknownKeyError, AuthenticationFailedError. Neither shows any of the token."""
    key = _key_of(token, keys)
    try:
        claims = jwt.decode(
            token,
            key,
            algorithms=[key.algorithm_name],
            issuer=expected.issuer,
            audience=list(expected.audience),
            # The library would read the system's clock.
            options={"require": ["exp"], "verify_exp": False, "verify_nbf": False, "verify_iat": False},
        )
    except jwt.InvalidTokenError as error:
        raise AuthenticationFailedError(f"the token is not valid: {type(error).__name__}") from None
    expires_s, begins_s = _time(claims, "exp"), _time(claims, "nbf")
    if expires_s is None or expires_s <= now_s - SKEW_S:
        raise AuthenticationFailedError("the token has expired")
    if begins_s is not None and begins_s > now_s + SKEW_S:
        raise AuthenticationFailedError("the token is not valid yet")
    return Judged(_user(claims, expected.user_claim), expires_s)


def keys_of(document: object) -> dict[str, jwt.PyJWK]:
    """The keys of a JWKS document by id. Keys that cannot check signatures of ours are left out."""
    listed = cast("dict[str, Any]", document).get("keys") if isinstance(document, dict) else None
    found: dict[str, jwt.PyJWK] = {}
    for each in cast("list[object]", listed) if isinstance(listed, list) else []:
        if not isinstance(each, dict):
            continue
        entry = cast("dict[str, Any]", each)
        if entry.get("use", "sig") != "sig" or not isinstance(entry.get("kid"), str):
            continue
        # The library takes for granted that they are texts, and lets the errors of its own library through.
        if any(not isinstance(entry.get(member, ""), str) for member in _KEY_MEMBERS):
            continue
        if "alg" in entry and entry["alg"] not in ALGORITHMS:  # nor does it expect algorithms that it does not know
            continue
        try:
            key = jwt.PyJWK(entry)
        except (jwt.PyJWTError, ValueError):
            continue
        if key.algorithm_name in ALGORITHMS:
            found[entry["kid"]] = key
    return found


def _key_of(token: str, keys: Mapping[str, jwt.PyJWK]) -> jwt.PyJWK:
    try:
        header = jwt.get_unverified_header(token)
    except jwt.InvalidTokenError:
        raise AuthenticationFailedError("the token cannot be read") from None
    if header.get("alg") not in ALGORITHMS:
        raise AuthenticationFailedError("the token is signed by an algorithm that is not allowed")
    key = keys.get(str(header.get("kid")))
    if key is None:
        raise UnknownKeyError("the token is signed by a key that the issuer does not list")
    # A key is for one algorithm. RSA keys that name none are taken for RS256 by the library, and may do the others.
    if header["alg"] != key.algorithm_name:
        raise AuthenticationFailedError("the token's algorithm is not that of its key")
    return key


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AuthenticationFailedError(f"the token's claim {name} is no number")
    return float(value)


def _user(claims: Mapping[str, Any], name: str) -> str:
    user = claims.get(name)
    try:
        if isinstance(user, str):
            check_name(user)
            return user
    except CredentialError:
        pass
    raise AuthenticationFailedError(f"the token's claim {name} names no user")
