from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from agents.security.session import REFUSED, CheckPassword, CheckToken, Reply
from security.sasl import plain
from security.sasl.scram_client import ScramClient
from tests.fixtures.chance import examples
from tests.unit.agents.security.session_client import (
    ALL,
    METADATA,
    SHA_256,
    SHA_512,
    Users,
    answer_in,
    authenticate,
    credential,
    frame,
    send,
    session,
    settled,
    shake,
)
from wire.api import encode_request
from wire.error_codes import ErrorCode
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

VERSIONS = ApiVersionsRequest(client_software_name="kcat", client_software_version="1.7")


def test_a_client_proves_itself_by_every_mechanism_and_in_every_version() -> None:
    for name, password, mechanism in (
        ("ann", "secret", "SCRAM-SHA-256"),
        ("bob", "b", "SCRAM-SHA-512"),
        ("ann", "secret", "PLAIN"),
        ("bob", "b", "PLAIN"),
    ):
        for version in (0, 1, 2):
            ours = session()
            _, answer = authenticate(ours, name, password, mechanism, version=version)
            assert (answer.error_code, answer.session_lifetime_ms) == (0, 0)
            assert ours.is_complete and (ours.user, ours.mechanism) == (name, mechanism)
            assert ours.admits(memoryview(METADATA), 1e12)


def test_after_a_handshake_of_version_0_tokens_are_bare_frames() -> None:
    # given
    ours, theirs = session(), ScramClient(SHA_256, "ann", "secret", nonce="c" * 20)
    assert shake(ours, "SCRAM-SHA-256", version=0).error_code == 0
    # when
    step = ours.receive(memoryview(theirs.first()), 0)
    assert isinstance(step, Reply)
    answered = b"".join(step.parts)
    assert int.from_bytes(answered[:4], "big") == len(answered) - 4
    step = ours.receive(memoryview(theirs.prove(answered[4:])), 0)
    # then
    assert isinstance(step, Reply)
    theirs.check(b"".join(step.parts)[4:])
    assert ours.user == "ann"


def test_a_bare_token_of_plain_is_answered_by_an_empty_one_and_a_bad_one_by_the_end() -> None:
    for password, parts in (("secret", [bytes(4)]), ("Secret", [])):
        ours = session()
        shake(ours, "PLAIN", version=0)
        step = settled(ours, ours.receive(memoryview(plain.write("ann", password)), 0), 0)
        assert (list(step.parts), bool(step.ends), step.is_refusal) == (parts, not parts, not parts)


def test_a_refused_token_is_answered_as_a_wrong_password_is() -> None:
    for version in (0, 1, 2):
        ours = session()
        shake(ours, "OAUTHBEARER", version=1)
        step = ours.receive(frame(SaslAuthenticateRequest(auth_bytes=b"n,,\x01auth=Bearer x.y.z\x01\x01"), version), 0)
        assert isinstance(step, CheckToken)
        refused = ours.refused_token("the token has expired")
        answer = answer_in(refused, SaslAuthenticateResponse, version)
        assert (answer.error_code, answer.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, REFUSED)
        assert (answer.auth_bytes, refused.ends, refused.is_refusal) == (b"", "the token has expired", True)
    bare = session()
    shake(bare, "OAUTHBEARER", version=0)
    assert isinstance(bare.receive(memoryview(b"n,,\x01auth=Bearer x.y.z\x01\x01"), 0), CheckToken)
    refused = bare.refused_token("the token has expired")
    assert (list(refused.parts), refused.ends) == ([], "the token has expired")


def test_versions_may_be_asked_for_first_and_again_after_a_version_that_is_not_ours() -> None:
    # given a client whose ApiVersions is newer than ours, and then odd
    ours = session()
    newest = b"".join(encode_request(18, 4, 7, "c", VERSIONS))
    newer = memoryview(newest[4:6] + (99).to_bytes(2, "big") + newest[8:])
    answer = answer_in(ours.receive(newer, 0), ApiVersionsResponse, 0)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION and answer.api_keys
    odd = ApiVersionsRequest(client_software_name="-", client_software_version="1")
    assert answer_in(ours.receive(frame(odd, 3), 0), ApiVersionsResponse, 3).error_code == ErrorCode.INVALID_REQUEST
    # when
    answer = answer_in(ours.receive(frame(VERSIONS, 4), 0), ApiVersionsResponse, 4)
    # then
    assert answer.error_code == 0 and {17, 18, 36} <= {each.api_key for each in answer.api_keys}
    assert ours.software == "kcat"
    assert authenticate(ours)[1].error_code == 0


def test_versions_out_of_turn_end_the_connection() -> None:
    # twice with success
    ours = session()
    ours.receive(frame(VERSIONS, 4), 0)
    step = ours.receive(frame(VERSIONS, 4), 0)
    assert isinstance(step, Reply) and step.ends and not step.parts
    # after the handshake
    ours = session()
    shake(ours, "PLAIN")
    step = ours.receive(frame(VERSIONS, 4), 0)
    assert isinstance(step, Reply) and step.ends and not step.parts
    # too often without
    ours = session()
    newer = memoryview(b"\0\x12\0\x63" + bytes(6))
    ends = [bool(step.ends) for _ in range(10) if isinstance(step := ours.receive(newer, 0), Reply)]
    assert ends == [False] * 4 + [True] * 6


def test_no_other_request_is_decoded_before_the_proof() -> None:
    for prepare in ("", "handshake"):
        for key in (*range(100), 0xFFFF):
            if key in (17, 18, 36):
                continue
            ours = session()
            if prepare:
                shake(ours, "PLAIN")
            whole = memoryview(key.to_bytes(2, "big") + bytes(40))
            assert not ours.admits(whole, 0)
            step = ours.receive(whole, 0)
            assert isinstance(step, Reply) and step.ends.startswith("a request other than") and not step.parts
            assert ours.receive(frame(SaslHandshakeRequest(mechanism="PLAIN"), 1), 0) == Reply(
                (), "a request out of turn"
            )


def test_a_token_before_the_handshake_ends_the_connection() -> None:
    step = session().receive(frame(SaslAuthenticateRequest(auth_bytes=plain.write("ann", "secret")), 2), 0)
    assert isinstance(step, Reply) and step.ends and not step.parts


def test_an_unknown_mechanism_is_answered_with_ours_and_then_the_end() -> None:
    for mechanism in ("GSSAPI", "DIGEST-MD5", "plain", "", "SCRAM-SHA-1"):
        ours = session()
        step = ours.receive(frame(SaslHandshakeRequest(mechanism=mechanism), 1), 0)
        answer = answer_in(step, SaslHandshakeResponse, 1)
        assert (answer.error_code, answer.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, [*ALL, "OAUTHBEARER"])
        assert isinstance(step, Reply) and step.ends
        assert not ours.is_complete


def test_a_handshake_among_the_tokens_is_out_of_place() -> None:
    ours = session()
    shake(ours, "PLAIN")
    step = ours.receive(frame(SaslHandshakeRequest(mechanism="PLAIN"), 1), 0)
    assert answer_in(step, SaslHandshakeResponse, 1).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert isinstance(step, Reply) and step.ends


def test_a_client_hears_one_text_whatever_was_wrong_with_its_proof() -> None:
    heard: set[bytes] = set()
    for name, password, mechanism in (
        ("ann", "Secret", "SCRAM-SHA-256"),
        ("nobody", "secret", "SCRAM-SHA-256"),
        ("ann", "secret", "SCRAM-SHA-512"),
        ("ann", "Secret", "PLAIN"),
        ("nobody", "secret", "PLAIN"),
    ):
        ours = session()
        step, answer = authenticate(ours, name, password, mechanism)
        assert (answer.error_code, answer.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, REFUSED)
        assert step.is_refusal and step.ends and not ours.is_complete and ours.user == ""
        assert ours.claimed == name
        heard.add(b"".join(step.parts))
    for mechanism in ALL:
        for token in (b"", b"\xff", b"n,a=root,n=ann,r=abc", b"root\0ann\0secret", b"p=x,,n=ann,r=a"):
            ours = session()
            shake(ours, mechanism)
            step, _ = send(ours, token)
            assert step.is_refusal and step.ends
            heard.add(b"".join(step.parts))
    assert len(heard) == 1


def test_a_user_who_changes_during_the_exchange_does_not_come_in_by_the_old_password() -> None:
    for change in ({}, {"ann": {SHA_256: credential("new")}}):
        # given a client that has seen the first answer, and a password that is being checked
        users = Users()
        scram, by_plain = session(users), session(users)
        shake(scram, "SCRAM-SHA-256")
        theirs = ScramClient(SHA_256, "ann", "secret", nonce="c" * 20)
        last = theirs.prove(bytes(send(scram, theirs.first())[1].auth_bytes))
        shake(by_plain, "PLAIN")
        step = by_plain.receive(frame(SaslAuthenticateRequest(auth_bytes=plain.write("ann", "secret")), 2), 0)
        assert isinstance(step, CheckPassword)
        # when
        users.users = dict(change)
        # then
        assert by_plain.judged(True, 0).is_refusal
        assert send(scram, last)[0].is_refusal


def test_a_proof_no_longer_holds_when_its_credential_is_gone_or_another() -> None:
    users = Users()
    ours, other = session(users), session(users)
    authenticate(ours)
    assert ours.still_holds and other.still_holds
    # another mechanism of the same user is nothing to this proof
    users.users = {"ann": {SHA_256: credential(), SHA_512: credential("x", SHA_512)}}
    assert ours.still_holds
    for change in ({}, {"ann": {SHA_512: credential("x", SHA_512)}}, {"ann": {SHA_256: credential("x")}}):
        users.users = dict(change)
        assert not ours.still_holds and other.still_holds


def test_nothing_is_taken_while_a_password_is_checked() -> None:
    ours = session()
    shake(ours, "PLAIN")
    token = frame(SaslAuthenticateRequest(auth_bytes=plain.write("ann", "secret")), 2)
    assert isinstance(ours.receive(token, 0), CheckPassword)
    step = ours.receive(token, 0)
    assert isinstance(step, Reply) and step.ends
    assert ours.judged(True, 0).ends and not ours.is_complete


def test_messages_of_a_proof_are_bounded() -> None:
    ours = session(receive_bytes_max=1_000)
    step = ours.receive(frame(SaslHandshakeRequest(mechanism="x" * 1_000), 1), 0)
    assert isinstance(step, Reply) and step.ends and not step.parts


def test_a_step_shows_no_password() -> None:
    ours = session()
    shake(ours, "PLAIN")
    step = ours.receive(frame(SaslAuthenticateRequest(auth_bytes=plain.write("ann", "hunter2")), 2), 0)
    assert "hunter2" not in repr(step)


class TestAProofThatExpires:
    def test_the_client_is_told_for_how_long_it_holds_and_proves_itself_again_on_the_same_connection(self) -> None:
        ours = session(reauthenticate_ms=60_000)
        for now_ms in (0, 59_000, 200_000):
            # when, though the last proof may have expired
            step, answer = authenticate(ours, now_ms=now_ms, version=1)
            # then
            assert answer.session_lifetime_ms == 60_000 and not step.ends
            assert ours.admits(memoryview(METADATA), now_ms + 59_999)
            assert not ours.admits(memoryview(METADATA), now_ms + 60_000)

    def test_any_other_request_ends_the_connection_then(self) -> None:
        ours = session(reauthenticate_ms=60_000)
        authenticate(ours)
        step = ours.receive(memoryview(METADATA), 60_000)
        assert isinstance(step, Reply) and step.ends and not step.parts
        assert not ours.is_complete

    def test_mechanism_and_user_stay(self) -> None:
        for name, password, mechanism in (("ann", "secret", "PLAIN"), ("eve", "secret", "SCRAM-SHA-256")):
            users = Users()
            users.users["eve"] = users.users["ann"]
            ours = session(users, reauthenticate_ms=60_000)
            authenticate(ours)
            step, answer = authenticate(ours, name, password, mechanism, now_ms=5_000)
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED and step.ends

    def test_a_wrong_password_then_ends_the_connection(self) -> None:
        ours = session(reauthenticate_ms=60_000)
        authenticate(ours)
        step, _ = authenticate(ours, password="x", now_ms=5_000)
        assert step.ends and not ours.is_complete and not ours.admits(memoryview(METADATA), 5_000)

    def test_other_requests_have_no_place_within_a_new_proof(self) -> None:
        ours = session(reauthenticate_ms=60_000)
        authenticate(ours)
        shake(ours, "SCRAM-SHA-256", now_ms=5_000)
        assert not ours.admits(memoryview(METADATA), 5_000)
        step = ours.receive(memoryview(METADATA), 5_000)
        assert isinstance(step, Reply) and step.ends

    def test_a_handshake_is_an_ordinary_request_if_it_comes_too_soon_or_proofs_never_expire(self) -> None:
        handshake = frame(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1)
        ours = session()
        authenticate(ours)
        assert ours.admits(handshake, 1e12)
        ours = session(reauthenticate_ms=60_000)
        authenticate(ours)
        authenticate(ours, now_ms=5_000)
        assert ours.admits(handshake, 5_999) and not ours.admits(handshake, 6_000)

    def test_past_its_end_a_handshake_begins_a_proof_or_ends_the_connection_if_it_comes_too_soon(self) -> None:
        handshake = frame(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1)
        for at_ms, begins in ((5_600, False), (5_999, False), (6_000, True), (1e9, True)):
            ours = session(reauthenticate_ms=500)
            authenticate(ours)
            authenticate(ours, now_ms=5_000)
            assert ours.admits(handshake, 5_499) and not ours.admits(handshake, at_ms)
            step = ours.receive(handshake, at_ms)
            assert isinstance(step, Reply) and bool(step.ends) is not begins, at_ms
            assert bool(step.parts) is begins


@st.composite
def _frames(draw: st.DrawFn) -> bytes:
    """Garbage, garbage under one of the three keys, or good requests with tokens that prove nothing."""
    kind = draw(st.sampled_from(["garbage", "key", "handshake", "scram", "token", "password"]))
    rest = draw(st.binary(max_size=60))
    if kind == "garbage":
        return rest
    if kind == "key":
        return draw(st.sampled_from([17, 18, 36])).to_bytes(2, "big") + rest
    if kind == "handshake":
        version = draw(st.integers(0, 1))
        return bytes(frame(SaslHandshakeRequest(mechanism=draw(st.sampled_from(ALL))), version))
    if kind == "scram":
        rest = f"n,,n={draw(st.text(max_size=5))},r={draw(st.text(max_size=5))}".encode()
    elif kind == "password":
        rest = plain.write("ann", "no")
    return bytes(frame(SaslAuthenticateRequest(auth_bytes=rest), draw(st.integers(0, 2))))


@settings(max_examples=examples(400))
@given(st.lists(_frames(), max_size=8))
def test_whatever_bytes_come_nothing_is_raised_and_nobody_comes_in(frames: list[bytes]) -> None:
    ours = session(reauthenticate_ms=1)
    ended = False
    for each in frames:
        step = settled(ours, ours.receive(memoryview(each), 0), 0)
        assert not ended or step.ends
        ended = ended or bool(step.ends)
        assert not ours.is_complete and not ours.user
        assert sum(map(len, step.parts)) < 2_000


def test_a_judgement_that_nobody_asked_for_lets_nobody_in() -> None:
    for prepare in (False, True):
        ours = session()
        if prepare:
            shake(ours, "PLAIN")
        assert ours.judged(True, 0).ends
        assert not ours.is_complete
        step = ours.receive(frame(SaslHandshakeRequest(mechanism="PLAIN"), 1), 0)
        assert isinstance(step, Reply) and step.ends and not step.parts


def test_a_message_of_very_many_tagged_fields_ends_the_connection() -> None:
    plain_request = bytes(frame(ApiVersionsRequest(client_software_name="c", client_software_version="1"), 3))
    for tags, is_taken in ((100, True), (101, False)):
        fields = bytes([tags]) + b"".join(bytes([tag, 0]) for tag in range(tags))
        step = session().receive(memoryview(plain_request[:-1] + fields), 0)
        assert isinstance(step, Reply) and (not step.ends) == is_taken
