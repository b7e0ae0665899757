"""SCRAM against the worked example of RFC 7677, our own two ends against each other, and altered messages."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from types import MappingProxyType

import pytest

from security.sasl.errors import AuthenticationFailedError
from security.sasl.scram_client import ScramClient
from security.sasl.scram_messages import escaped, read_client_first, unescaped, write_server_first
from security.sasl.scram_server import ScramServer
from security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES,
    SALT_BYTES_MAX,
    CredentialError,
    Mechanism,
    ScramCredential,
    credential_of,
    credential_of_salted,
    is_password_of,
    is_same,
    salted_password,
    stand_in,
)

SHA_256, SHA_512 = Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512
SECRET = b"s" * 32
SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
# RFC 7677, section 3
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"


def user(mechanism: Mechanism = SHA_256, password: str = "pencil") -> ScramCredential:
    return credential_of(mechanism, password, salt=SALT, iterations=4096)


def server(
    mechanism: Mechanism = SHA_256,
    users: Mapping[str, ScramCredential] = MappingProxyType({}),
    *,
    nonce: str = SERVER_NONCE,
) -> ScramServer:
    known = {name: {credential.mechanism: credential} for name, credential in users.items()}
    return ScramServer(mechanism, known, cluster_secret=SECRET, server_nonce=nonce)


def test_the_example_of_rfc_7677_holds_for_both_ends() -> None:
    # given
    ours, theirs = server(users={"user": user()}), ScramClient(SHA_256, "user", "pencil", nonce="rOprNGfwEbeRWgbNEkqO")
    # when, then each message is the one that the RFC prints
    assert theirs.first() == CLIENT_FIRST
    assert ours.step(CLIENT_FIRST) == SERVER_FIRST
    assert theirs.prove(SERVER_FIRST) == CLIENT_FINAL
    assert ours.step(CLIENT_FINAL) == SERVER_FINAL
    theirs.check(SERVER_FINAL)
    assert ours.is_complete and ours.name == "user"


def test_both_ends_agree_in_both_mechanisms_whatever_the_name_and_password() -> None:
    for mechanism in Mechanism:
        for name, password in (("ann", "p"), ("a,b=c", "pass,word=3D"), ("ünï", "пароль"), ("=2C", " ")):
            ours = server(mechanism, {name: user(mechanism, password)})
            theirs = ScramClient(mechanism, name, password, nonce="c" * 24)
            theirs.check(ours.step(theirs.prove(ours.step(theirs.first()))))
            assert ours.is_complete and ours.name == name


def test_a_salted_password_makes_the_credential_that_its_password_makes() -> None:
    for mechanism in Mechanism:
        salted = salted_password(mechanism, "pencil", SALT, 8192)
        made = credential_of_salted(mechanism, salted, salt=SALT, iterations=8192)
        assert is_same(made, credential_of(mechanism, "pencil", salt=SALT, iterations=8192))
        assert is_password_of(made, "pencil") and not is_password_of(made, "Pencil")


def test_values_that_make_no_credential_are_refused_without_a_word_of_the_password() -> None:
    for salt, iterations in ((SALT, ITERATIONS_MIN - 1), (SALT, ITERATIONS_MAX + 1), (b"", 4096)):
        with pytest.raises(CredentialError):
            credential_of(SHA_256, "pencil", salt=salt, iterations=iterations)
    with pytest.raises(CredentialError):
        credential_of(SHA_256, "pencil", salt=b"s" * (SALT_BYTES_MAX + 1))
    with pytest.raises(CredentialError, match="has 32 bytes, not 20"):
        credential_of_salted(SHA_256, b"s" * 20, salt=SALT, iterations=4096)
    for password in ("", "x" * 5000, "pen\0cil", "pen\ud800cil"):
        with pytest.raises(CredentialError) as caught:
            credential_of(SHA_256, password, salt=SALT)
        assert "pen" not in str(caught.value) and caught.value.__cause__ is None


def test_a_credential_shows_none_of_its_secrets() -> None:
    shown = repr(user())
    assert "iterations=4096" in shown
    assert "salt" not in shown and "stored_key" not in shown and "server_key" not in shown


def test_a_wrong_password_is_refused_at_the_last_message() -> None:
    for password in ("Pencil", "pencil ", "penci"):
        ours, theirs = server(users={"user": user()}), ScramClient(SHA_256, "user", password, nonce="c" * 24)
        last = theirs.prove(ours.step(theirs.first()))
        with pytest.raises(AuthenticationFailedError, match="wrong password"):
            ours.step(last)
        assert not ours.is_complete


def test_an_unknown_user_sees_the_messages_of_a_known_one_and_the_same_salt_each_time() -> None:
    def begun(name: str) -> bytes:
        return server(users={"known": user()}).step(ScramClient(SHA_256, name, "x", nonce="c" * 24).first())

    # when asked twice, and for another name
    first, again, other = begun("nobody"), begun("nobody"), begun("somebody")
    # then
    assert first == again != other
    assert len(first) == len(begun("known")) and first.endswith(b",i=4096")
    ours, theirs = server(), ScramClient(SHA_256, "nobody", "x", nonce="c" * 24)
    last = theirs.prove(ours.step(theirs.first()))
    with pytest.raises(AuthenticationFailedError, match="no such user"):
        ours.step(last)


def test_a_stand_in_has_the_shape_of_a_credential() -> None:
    for mechanism in Mechanism:
        invented, real = stand_in(mechanism, "nobody", SECRET), user(mechanism)
        assert (len(invented.salt), invented.iterations) == (SALT_BYTES, real.iterations)
        assert len(invented.stored_key) == len(real.stored_key) == mechanism.key_bytes
        assert is_same(invented, stand_in(mechanism, "nobody", SECRET))
        assert not is_same(invented, stand_in(mechanism, "nobody", b"other"))
        assert not is_same(invented, None)


def test_a_user_of_one_mechanism_is_unknown_to_the_other() -> None:
    ours = server(SHA_512, {"user": user(SHA_256)})
    theirs = ScramClient(SHA_512, "user", "pencil", nonce="c" * 24)
    last = theirs.prove(ours.step(theirs.first()))
    with pytest.raises(AuthenticationFailedError):
        ours.step(last)


def test_an_overheard_proof_is_worth_nothing_in_another_exchange() -> None:
    # given the messages of an honest exchange, and a server with a nonce of its own
    ours = server(users={"user": user()}, nonce="another" * 4)
    ours.step(CLIENT_FIRST)
    # when, then: with the old nonce, and with the new one put in its place
    with pytest.raises(AuthenticationFailedError, match="nonce"):
        ours.step(CLIENT_FINAL)
    again = server(users={"user": user()}, nonce="another" * 4)
    again.step(CLIENT_FIRST)
    with pytest.raises(AuthenticationFailedError, match="wrong password"):
        again.step(CLIENT_FINAL.replace(SERVER_NONCE.encode(), b"another" * 4))


def test_every_altered_byte_of_the_last_message_is_refused() -> None:
    for index in range(len(CLIENT_FINAL)):
        altered = bytearray(CLIENT_FINAL)
        altered[index] ^= 1
        ours = server(users={"user": user()})
        ours.step(CLIENT_FIRST)
        with pytest.raises(AuthenticationFailedError):
            ours.step(bytes(altered))
        assert not ours.is_complete


def test_the_first_message_cannot_be_altered_on_its_way_either() -> None:
    # given a message in which "n" (no channel binding) became "y" under way, or a user to act for came in
    for first in (CLIENT_FIRST.replace(b"n,,", b"y,,", 1), CLIENT_FIRST.replace(b"n,,", b"n,a=user,", 1)):
        ours = server(users={"user": user()})
        ours.step(first)
        with pytest.raises(AuthenticationFailedError, match="channel binding"):
            ours.step(CLIENT_FINAL)


def test_first_messages_that_no_server_should_take_are_refused() -> None:
    for token in (
        b"",
        b"p=tls-unique,,n=user,r=abc",
        b"x,,n=user,r=abc",
        b"n,a=root,n=user,r=abc",
        b"n,,m=ext,n=user,r=abc",
        b"n,,n=user,r=abc,tokenauth=true",
        b"n,,n=user,r=",
        b"n,,n=user,r=a\x7fb",
        b"n,,n=us=ER,r=abc",
        b"n,,n=us\0er,r=abc",
        b"n,,n=\xff,r=abc",
        b"n,,n=" + b"u" * 1025 + b",r=abc",
        b"n,,n=user,r=" + b"a" * 257,
        b"n,,n=user,r=abc,x=" + b"a" * 10_000,
    ):
        with pytest.raises(AuthenticationFailedError) as caught:
            server(users={"user": user()}).step(token)
        assert "root" not in str(caught.value)


def test_optional_extensions_are_passed_over_and_the_proof_covers_them() -> None:
    first = read_client_first(b"y,,n=user,r=abc,zz=1")
    assert (first.name, first.nonce, first.header, first.bare) == ("user", "abc", "y,,", "n=user,r=abc,zz=1")


def test_nothing_follows_the_last_message() -> None:
    ours = server(users={"user": user()})
    ours.step(CLIENT_FIRST)
    ours.step(CLIENT_FINAL)
    with pytest.raises(AuthenticationFailedError):
        ours.step(CLIENT_FINAL)


def test_names_go_through_their_escapes_unchanged() -> None:
    for name in ("a", ",", "=", "=2C", "=3D", "a=,b", "=2Cx=3D3D"):
        assert unescaped(escaped(name)) == name and "," not in escaped(name)


def test_escapes_are_read_once_and_nothing_else_begins_with_an_equals_sign() -> None:
    for text, name in (
        ("=2C=3D", ",="),
        ("=3D2C", "=2C"),
        ("=3D3D", "=3D"),
        ("a=3D=2C3D", "a=,3D"),
        ("=3D=3D2C", "==2C"),
    ):
        assert unescaped(text) == name
    for text in ("==2C3D", "==3D2C", "=3=3DD", "=2=2CC", "=", "a=", "=2c", "=3d", "=2", "=C3", "\n=x", "=2C=", "=\n2C"):
        with pytest.raises(AuthenticationFailedError, match="unknown escape"):
            unescaped(text)


def test_a_client_refuses_a_server_that_does_not_know_the_password_or_asks_for_odd_work() -> None:
    def client() -> ScramClient:
        return ScramClient(SHA_256, "user", "pencil", nonce="c" * 24)

    good = write_server_first("c" * 24 + "s", SALT, 4096).encode()
    for bad in (
        write_server_first("c" * 24, SALT, 4096).encode(),
        write_server_first("x" * 30, SALT, 4096).encode(),
        write_server_first("c" * 24 + "s", SALT, 1).encode(),
        write_server_first("c" * 24 + "s", SALT, 99_999_999).encode(),
        good.replace(b"s=W", b"s=W=W"),
        b"m=x," + good,
        b"",
    ):
        with pytest.raises(AuthenticationFailedError):
            client().prove(bad)
    for bad in (b"e=other-error", b"v=" + b"A" * 43 + b"=", b"v=AAAA", b"", b"\xff"):
        theirs = client()
        theirs.prove(good)
        with pytest.raises(AuthenticationFailedError):
            theirs.check(bad)
    with pytest.raises(AuthenticationFailedError):
        client().check(b"v=AAAA")  # before any proof
