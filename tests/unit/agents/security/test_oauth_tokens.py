"""Tokens that let in, and every way in which others must not."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from agents.security.oauth.tokens import SKEW_S, Expected, UnknownKeyError, judge, keys_of, read_message
from security.sasl.errors import AuthenticationFailedError

NOW_S = 1_700_000_000.0
EXPECTED = Expected(issuer="https://issuer", audience=("siltstone", "kafka"), user_claim="sub")
RSA = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
JWKS: dict[str, Any] = {
    "keys": [
        {**RSAAlgorithm.to_jwk(RSA.public_key(), as_dict=True), "kid": "rsa", "alg": "RS256", "use": "sig"},
        {**RSAAlgorithm.to_jwk(RSA.public_key(), as_dict=True), "kid": "pss", "alg": "PS512"},
        {**ECAlgorithm.to_jwk(EC.public_key(), as_dict=True), "kid": "ec"},
        {**RSAAlgorithm.to_jwk(RSA.public_key(), as_dict=True), "kid": "for encryption", "use": "enc"},
        {"kty": "oct", "kid": "shared", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA", "alg": "HS256"},
        {"kty": "RSA", "kid": "broken"},
        {"kid": 7},
        "nonsense",
    ]
}
KEYS = keys_of(JWKS)
CLAIMS: dict[str, Any] = {"iss": "https://issuer", "aud": "siltstone", "sub": "ann", "exp": NOW_S + 60}


def token(key: Any = RSA, kid: str = "rsa", algorithm: str = "RS256", **claims: Any) -> str:
    given = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    return jwt.encode(given, key, algorithm=algorithm, headers={"kid": kid})


def test_only_public_keys_that_sign_are_taken() -> None:
    assert set(KEYS) == {"rsa", "pss", "ec"}
    for nothing in (None, [], "x", {}, {"keys": 7}, {"keys": {"kid": "x"}}):
        assert keys_of(nothing) == {}


@pytest.mark.parametrize("member", ["kty", "alg", "crv", "n", "e", "x", "y", "kid", "use", "d"])
@pytest.mark.parametrize("value", [None, 7, ["RS256"], {"a": 1}, "", "AA", "none", "é"], ids=str)
def test_a_broken_key_spoils_no_other(member: str, value: object) -> None:
    rsa_key, _, ec_key, *_ = JWKS["keys"]
    broken = [{**each, "kid": "broken", member: value} for each in (rsa_key, ec_key)]
    assert keys_of({"keys": [*broken, rsa_key]}).keys() - {"broken"} >= {"rsa"}


@pytest.mark.parametrize(
    ("key", "kid", "algorithm"), [(RSA, "rsa", "RS256"), (RSA, "pss", "PS512"), (EC, "ec", "ES256")]
)
def test_a_good_token_names_its_user(key: Any, kid: str, algorithm: str) -> None:
    judged = judge(token(key, kid, algorithm, aud=["others", "kafka"]), KEYS, EXPECTED, now_s=NOW_S)
    assert (judged.user, judged.expires_s) == ("ann", NOW_S + 60)


def test_another_claim_may_name_the_user() -> None:
    by_mail = Expected(issuer="https://issuer", audience=("siltstone",), user_claim="email")
    assert judge(token(email="ann@example.com"), KEYS, by_mail, now_s=NOW_S).user == "ann@example.com"
    with pytest.raises(AuthenticationFailedError, match="email names no user"):
        judge(token(), KEYS, by_mail, now_s=NOW_S)


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"iss": "https://other"}, "InvalidIssuer"),
        ({"iss": None}, "MissingRequiredClaim|InvalidIssuer"),
        ({"aud": "other"}, "InvalidAudience"),
        ({"aud": None}, "MissingRequiredClaim"),
        ({"exp": None}, "MissingRequiredClaim"),
        ({"exp": NOW_S - SKEW_S}, "expired"),
        ({"exp": "tomorrow"}, "no number"),
        ({"nbf": NOW_S + SKEW_S + 1}, "not valid yet"),
        ({"sub": None}, "names no user"),
        ({"sub": ""}, "names no user"),
        ({"sub": ["ann"]}, "names no user|InvalidSubject"),
        ({"sub": "x" * 2_000}, "names no user"),
        ({"sub": "\ud800"}, "names no user"),
        ({"sub": "ann\0"}, "names no user"),
    ],
)
def test_a_token_that_says_something_else_is_refused(claims: dict[str, Any], said: str) -> None:
    with pytest.raises(AuthenticationFailedError, match=said):
        judge(token(**claims), KEYS, EXPECTED, now_s=NOW_S)


def test_clocks_may_be_apart_a_little() -> None:
    judge(token(exp=NOW_S - SKEW_S + 1, nbf=NOW_S + SKEW_S), KEYS, EXPECTED, now_s=NOW_S)


def _unsigned() -> str:
    def part(value: object) -> str:
        return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part({'alg': 'none', 'kid': 'rsa'})}.{part(CLAIMS)}."


def test_a_signature_that_proves_nothing_is_refused() -> None:
    good = token()
    head, body, signature = good.split(".")
    altered = f"{head}.{token(sub='root').split('.')[1]}.{signature}"
    public = RSA.public_key()
    forged = jwt.encode(CLAIMS, "secret-secret-secret-secret-secret", algorithm="HS256", headers={"kid": "rsa"})
    shared = jwt.encode(CLAIMS, "secret-secret-secret-secret-secret", algorithm="HS256", headers={"kid": "shared"})
    refused = [
        token(OTHER),
        altered,
        _unsigned(),
        forged,
        shared,
        token(RSA, "pss", "RS256"),
        token(RSA, "rsa", "RS512"),
        f"{head}.{body}.",
        f"{head}.{body}",
        "",
        "a.b.c",
        good + "x",
    ]
    assert public is not None
    for each in refused:
        with pytest.raises(AuthenticationFailedError) as caught:
            judge(each, KEYS, EXPECTED, now_s=NOW_S)
        assert not isinstance(caught.value, UnknownKeyError) or each == shared
        assert signature not in str(caught.value)
    with pytest.raises(UnknownKeyError):
        judge(token(OTHER, "new"), KEYS, EXPECTED, now_s=NOW_S)


def test_the_first_message_holds_a_token() -> None:
    assert read_message(b"n,,\x01auth=Bearer abc.def\x01\x01") == "abc.def"
    assert read_message(b"n,,\x01host=h\x01auth=bearer abc\x01port=1\x01\x01") == "abc"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer abc\x01",
        b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
        b"p=x,,\x01auth=Bearer abc\x01\x01",
        b"n,a=root,\x01auth=Bearer abc\x01\x01",
        "n,,\x01auth=Bearer ä\x01\x01".encode(),
    ],
)
def test_other_messages_are_refused(message: bytes) -> None:
    with pytest.raises(AuthenticationFailedError):
        read_message(message)
