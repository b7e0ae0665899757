"""SCRAM against another implementation: each end of ours talks with each end of scramp."""

from __future__ import annotations

import re

import pytest
import scramp
from hypothesis import given, settings
from hypothesis import strategies as st

from security.sasl.errors import AuthenticationFailedError
from security.sasl.scram_client import ScramClient
from security.sasl.scram_server import ScramServer
from security.scram import Mechanism, credential_of
from tests.fixtures.chance import examples

# Passwords that SASLprep leaves as they are: Kafka does not prepare, scramp does.
PASSWORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)
NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)
SALTS = st.binary(min_size=12, max_size=40)


@settings(max_examples=examples(100))
@given(
    mechanism=st.sampled_from(list(Mechanism)),
    name=NAMES,
    password=PASSWORDS,
    tried=st.none() | PASSWORDS,
    salt=SALTS,
    iterations=st.integers(4096, 4100),
)
def test_both_ends_agree_with_scramp(
    mechanism: Mechanism, name: str, password: str, tried: str | None, salt: bytes, iterations: int
) -> None:
    tried = password if tried is None else tried
    credential = credential_of(mechanism, password, salt=salt, iterations=iterations)
    theirs = scramp.ScramMechanism(mechanism.sasl_name)
    # The same credential from the same password.
    assert theirs.make_auth_info(password, iteration_count=iterations, salt=salt) == (
        salt,
        credential.stored_key,
        credential.server_key,
        iterations,
    )
    # Their client, our server.
    client = scramp.ScramClient([mechanism.sasl_name], name, tried)
    ours = ScramServer(mechanism, {name: {mechanism: credential}}, cluster_secret=b"s", server_nonce="s" * 20)
    client.set_server_first(ours.step(client.get_client_first().encode()).decode())
    last = client.get_client_final().encode()
    if tried == password:
        client.set_server_final(ours.step(last).decode())
    else:
        with pytest.raises(AuthenticationFailedError):
            ours.step(last)
    assert ours.is_complete == (tried == password)
    # Our client, their server.
    stored = salt, credential.stored_key, credential.server_key, iterations
    server = theirs.make_server({name: stored}.__getitem__)
    mine = ScramClient(mechanism, name, tried, nonce="c" * 20)
    server.set_client_first(mine.first().decode())
    proof = mine.prove(server.get_server_first().encode()).decode()
    if tried == password:
        server.set_client_final(proof)
        mine.check(server.get_server_final().encode())
    else:
        with pytest.raises(scramp.ScramException, match=re.compile("proof|authentication", re.IGNORECASE)):
            server.set_client_final(proof)
