"""A client that knows no password proves nothing by any frames, and nothing is raised."""

from __future__ import annotations

import random

from hypothesis import given, seed, settings
from hypothesis import strategies as st

from security.sasl import plain
from tests.unit.agents.security.session_client import METADATA, Users, frame, session, settled
from wire.messages.api_versions import ApiVersionsRequest
from wire.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

USERS = Users()
MECHANISMS = st.sampled_from(("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "", "plain"))
TOKENS = st.one_of(
    st.binary(max_size=80),
    st.builds(plain.write, st.sampled_from(("ann", "bob", "eve", "")), st.text(max_size=8)),
    st.sampled_from(
        (
            b"n,,n=ann,r=" + b"c" * 20,
            b"y,a=bob,n=bob,r=c",
            b"n,,n==2C3D,r=c",
            b"c=biws,r=" + b"c" * 20 + b"server00000000000000000000,p=" + b"A" * 43 + b"=",
            b"p=tls-unique,,n=ann,r=c",
            "\x00ann\x00\u00e9".encode(),
            b"\xff\xfe",
        )
    ),
)
FRAMES = st.one_of(
    st.integers(0, 4).map(lambda version: frame(ApiVersionsRequest(), version)),
    st.builds(lambda mechanism, v: frame(SaslHandshakeRequest(mechanism=mechanism), v), MECHANISMS, st.integers(0, 1)),
    st.builds(lambda token, v: frame(SaslAuthenticateRequest(auth_bytes=token), v), TOKENS, st.integers(0, 2)),
    TOKENS.map(memoryview),
    st.just(memoryview(METADATA)),
)


@seed(19)
@settings(max_examples=1_000, deadline=None)
@given(st.lists(st.tuples(FRAMES, st.integers(0, 20)), max_size=12), st.integers(0, 1 << 30))
def test_who_knows_no_password_proves_nothing_by_whatever_frames(
    frames: list[tuple[memoryview, int]], draw_seed: int
) -> None:
    ours, draw = session(USERS), random.Random(draw_seed)
    for now_ms, (sent, damage) in enumerate(frames):
        damaged = bytearray(sent)
        if damage < 5 and damaged:  # a byte is another one, or the end is missing
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        elif damage == 5:
            del damaged[draw.randrange(len(damaged) + 1) :]
        whole = memoryview(bytes(damaged))
        assert not ours.admits(whole, now_ms)
        reply = settled(ours, ours.receive(whole, now_ms), now_ms)
        assert not ours.is_complete and ours.user == ""
        if reply.ends:
            break
