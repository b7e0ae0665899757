"""People and clients use secrets, right and wrong."""

from __future__ import annotations

import json
import os
import secrets
import traceback
from pathlib import Path

import pytest

from metadata.postgres.connection import connect
from metadata.security.contract import UserChange
from metadata.urls import open_metadata
from runtime.settings.loading import load_settings
from security.sasl import plain
from security.scram import Mechanism, ScramCredential, keys_of, salted_password
from siltstone.kafka.client import KafkaClient, connected
from siltstone.kafka.security.authenticating import LoginError
from siltstone.kafka.security.properties import read_client_config
from tests.fixtures.canaries import body_of_key
from tests.fixtures.token_issuer import TokenIssuer
from tests.integration.siltstone.canaries.world import World
from wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from wire.messages.scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialUpsertion,
)

READER_ROLE, AGENT_ROLE = "canary_reader", "canary_agent"


async def given_secrets_of_the_system(world: World) -> None:
    data = world.dev.data
    admin = read_client_config(data / "clients" / "admin.properties").security
    assert admin.password not in repr(admin)
    world.canaries.add(
        admin=admin.password,
        postgres=(data / "postgres" / "password").read_text().strip(),
        ca_key=body_of_key((data / "certificates" / "ca.key").read_bytes()),
        server_key=body_of_key((data / "certificates" / "server.key").read_bytes()),
    )


async def users_come_and_change(world: World) -> None:
    first, second = world.secret("anns_first"), world.secret("anns_second")
    await world.process("users", "create", "ann", *world.data, stdin=first)
    await with_derived_keys(world, "ann_before", first)
    set_password = "users", "set-password", "ann", "--password-file", world.file("second", second), *world.data
    await world.command(*set_password)
    await world.command("users", "create", "bob", "--direct", *world.data, stdin=world.secret("bobs"))
    await world.command("users", "list", *world.data)
    await world.command("users", "list", "--json", *world.data)
    # what is wrong
    for name, content in (
        ("lines", f"{world.secret('of_two_lines')}\nmore"),
        ("nul", f"{world.secret('with_a_nul')}\0"),
        ("latin", f"{world.secret('not_utf8')}\xff".encode("latin-1")),
    ):
        await world.refused("users", "create", "carl", "--password-file", world.file(name, content), *world.data)
    await world.refused("users", "create", "ann", *world.data, stdin=world.secret("of_one_who_is_there"))
    export = world.folder / "users.jsonl"
    await world.command("users", "export", str(export), *world.data)
    broken = export.read_text().replace('"iterations": 4096', '"iterations": 1')
    await world.refused("users", "import", world.file("broken.jsonl", broken), *world.data)
    await world.refused("users", "import", world.file("cut.jsonl", export.read_bytes()[:-30]), *world.data)
    await world.command("users", "import", str(export), *world.data)


async def with_derived_keys(world: World, name: str, password: str) -> None:
    """All that is made of a password is worth as much, or nearly."""
    connection = await connect(world.url)
    query = "SELECT mechanism, salt, iterations, stored_key, server_key FROM scram_users WHERE name = 'ann'"
    for row in await connection.fetch(query):
        mechanism = Mechanism(row["mechanism"])
        salted = salted_password(mechanism, password, row["salt"], row["iterations"])
        made = {
            "salted": salted,
            "client_key": keys_of(mechanism, salted).client_key,
            "stored_key": row["stored_key"],
            "server_key": row["server_key"],
        }
        world.canaries.add(**{f"{name}_{mechanism.name}_{what}": key for what, key in made.items()})
    world.canaries.add(cluster_secret=await connection.fetchval("SELECT value FROM secrets"))
    await connection.close()


async def clients_come_in_and_do_not(world: World, password: str, issuer: TokenIssuer) -> None:
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"):
        address = world.tokens if mechanism == "PLAIN" else world.dev.bootstrap
        async with connected(address, security=world.as_user("ann", password, mechanism)) as client:
            await client.metadata()
        for name in ("ann", "nobody"):
            wrong = world.as_user(name, world.secret(f"wrong_{mechanism}_{name}"), mechanism)
            with pytest.raises(LoginError) as caught:
                await KafkaClient.connect(address, security=wrong)
            world.said += [repr(wrong).encode(), "".join(traceback.format_exception(caught.value)).encode()]
    tokens = {
        "good_token": issuer.token(),
        "late_token": issuer.token(exp=1),
        "forged_token": issuer.token("unknown"),
        "no_token": world.secret("no_token"),
    }
    for name, token in tokens.items():
        world.canaries.add(**{name: token.rpartition(".")[2]})  # the signature, or all of it
        await tell(world, "OAUTHBEARER", f"n,,\x01auth=Bearer {token}\x01\x01".encode())
    await tell(world, "OAUTHBEARER", b"n,,auth=" + world.secret("malformed_token").encode())
    malformed = (
        plain.write("ann", world.secret("plain_not_utf8")) + b"\xff",
        plain.write("ann", world.secret("plain_of_four_parts")) + b"\0more",
        b"other" + plain.write("ann", world.secret("plain_for_another")),
        world.secret("plain_alone").encode(),
        plain.write("ann", world.secret("plain_too_long") * 300),
    )
    for token in malformed:
        await tell(world, "PLAIN", token)
    for garbage in (
        world.secret("garbage").encode(),
        SaslAuthenticateRequest(auth_bytes=plain.write("ann", world.secret("without_a_handshake"))),
    ):
        async with world.raw(world.tokens) as raw:
            if isinstance(garbage, bytes):
                await raw.send(len(garbage).to_bytes(4, "big") + garbage)
            else:
                await raw.begin(garbage, 2)
            assert await raw.is_closed_by_peer()


async def tell(world: World, mechanism: str, token: bytes) -> None:
    """A proof as it is, and whatever comes of it."""
    async with world.raw(world.tokens) as raw:
        await raw.call(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse, 1)
        answer = await raw.call(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse, 2)
        world.said += [bytes(answer.auth_bytes), str(answer.error_message).encode(), repr(answer).encode()]
        if not answer.error_code and answer.auth_bytes:
            answer = await raw.call(SaslAuthenticateRequest(auth_bytes=b"\x01"), SaslAuthenticateResponse, 2)
            world.said.append(str(answer.error_message).encode())


async def salted_passwords_are_sent_and_refused(world: World) -> None:
    admin = read_client_config(world.dev.data / "clients" / "admin.properties").security
    async with connected(world.dev.bootstrap, security=admin) as client:
        for number, (name, mechanism, iterations, size) in enumerate(
            (("dora", 1, 4096, 32), ("dora", 1, 1, 32), ("dora", 1, 4096, 31), ("", 1, 4096, 32), ("dora", 9, 4096, 32))
        ):
            salted = os.urandom(size)
            world.canaries.add(**{f"salted_{number}": salted})
            upsertion = ScramCredentialUpsertion(
                name=name, mechanism=mechanism, iterations=iterations, salt=os.urandom(16), salted_password=salted
            )
            request = AlterUserScramCredentialsRequest(upsertions=[upsertion])
            answer = await client.call(request, AlterUserScramCredentialsResponse)
            world.said += [repr(request).encode(), repr(answer).encode()]
            assert bool(answer.results[0].error_code) == bool(number)


async def people_do_their_work(world: World, password: str) -> None:
    ann = "--bootstrap", world.dev.bootstrap, "--client-config", world.properties("ann", password)
    await world.command("topics", "create", "orders", *world.data)
    await world.command(
        "acls", "create", "--allow-principal", "User:ann", "--producer", "--topic", "orders", *world.data
    )
    await world.command("quotas", "alter", "--user", "ann", "--add", "producer_byte_rate=1000000", *world.data)
    await world.process("produce", "orders", *ann, stdin="v\n")
    for words in (("acls", "list"), ("quotas", "list"), ("cluster", "info"), ("doctor",), ("fsck", "--quick")):
        await world.command(*words, *world.data, code=None)
    await world.refused("users", "list", *ann)
    for name in ("ann", "nobody"):
        wrong = world.properties(name, world.secret(f"wrong_of_file_{name}"))
        await world.refused("topics", "list", "--bootstrap", world.dev.bootstrap, "--client-config", wrong)
    for text in (
        f'sasl.jaas.config=org.apache.kafka.Foo required password="{world.secret("jaas")}";',
        f"security.protocol=SASL_SSL\nsasl.passwort={world.secret('misspelt')}",
        f"security.protocol=SASL_SSL\nsasl.mechanisms=PLAIN\nsasl.username=ann\nsasl.password={world.secret('x')}\\",
    ):
        config = world.file(f"broken-{len(world.said)}.properties", text)
        await world.command("topics", "list", "--bootstrap", world.dev.bootstrap, "--client-config", config, code=None)


async def postgres_is_asked_in_wrong_ways(world: World) -> None:
    place = world.url.rpartition("@")[2]
    for user, where in (("siltstone", place), ("nobody", place), ("siltstone", f"{place}x")):
        wrong = f"postgresql://{user}:{world.secret(f'pg_{user}_{len(where)}')}@{where}"
        config = world.file(f"{user}.toml", f"metadata.url = {json.dumps(wrong)}\n")
        await world.command("doctor", "--metadata", wrong, code=1)
        await world.refused("users", "list", "--direct", "--config", config)
        objects = world.dev.run["object_store_url"]
        await world.refused("fsck", SILTSTONE_METADATA_URL=wrong, SILTSTONE_OBJECT_STORE_URL=objects)
        world.said.append(repr(load_settings(Path(config), {}, {})).encode())
    # a statement that stores a user and fails
    metadata = open_metadata(world.url)
    await metadata.open()
    keys = secrets.token_bytes(64), secrets.token_bytes(64)
    world.canaries.add(stored_and_refused=keys[0], server_and_refused=keys[1])
    bad = ScramCredential(
        mechanism=Mechanism.SCRAM_SHA_512, salt=b"s" * 16, iterations=1 << 40, stored_key=keys[0], server_key=keys[1]
    )
    with pytest.raises(Exception) as caught:
        await metadata.security.alter_users([UserChange(name="eve", mechanism=bad.mechanism, credential=bad)])
    world.said += ["".join(traceback.format_exception(caught.value)).encode(), repr(bad).encode()]
    await metadata.close()


async def roles_are_made(world: World) -> None:
    agents = world.secret("agents_role")
    connection = await connect(world.url)
    await connection.execute(f"CREATE ROLE {READER_ROLE}")
    await connection.close()
    words = "migrate", "--agent", AGENT_ROLE
    await world.command(*words, SILTSTONE_METADATA_URL=world.url, AGENT_PGPASSWORD=agents)
    await world.command("migrate", "--reader", READER_ROLE, *world.data)
    # by somebody who may not
    place = world.url.rpartition("@")[2]
    less = f"postgresql://{AGENT_ROLE}:{agents}@{place}"
    await world.command(*words, code=None, SILTSTONE_METADATA_URL=less, AGENT_PGPASSWORD=world.secret("refused_role"))
    await world.command("migrate", "--reader", READER_ROLE, code=None, SILTSTONE_METADATA_URL=less)
