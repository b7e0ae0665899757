"""An agent, as a process on a real Postgres, with a listener of each kind; users and ACLs are there before it starts.

`ann` may do everything, and so may the owner of the certificate `CN=ann,O=Siltstone`, and clients that come in where
nobody is asked for a name. `bob` may write and read topics and groups whose names begin with
`bobs-`, and nothing else.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from metadata.security.contract import UserChange
from metadata.urls import open_metadata
from security.acls.values import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType
from security.scram import SALT_BYTES, Mechanism, credential_of
from siltstone.kafka.client import connected
from tests.conformance.security.logins import Login
from tests.fixtures.certificates import IdentityFiles, make_certificates
from tests.fixtures.faults import AgentProcess, Postgres, Processes, in_thread
from tests.fixtures.s3 import free_port
from tests.fixtures.token_issuer import AUDIENCE, ISSUER, TokenIssuer

PASSWORDS = {"ann": "ann's, of all = signs", "bob": "bob's"}
SUPER_USERS = "User:CN=ann,O=Siltstone;User:ann"
PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = (*PASSWORD_MECHANISMS, "OAUTHBEARER")
OWN = "bobs-"
"""How the names of bob's topics and groups begin."""


@dataclass(frozen=True, slots=True)
class Way:
    """Where to come in, and how."""

    bootstrap: str
    login: Login


class SecuredAgent:
    def __init__(self, processes: Processes, folder: Path, **settings: object) -> None:
        self._folder = folder
        self.certificates = make_certificates(folder)
        self.issuer = TokenIssuer(self.certificates.server)
        self._numbers = itertools.count()
        self._ports = {name: free_port() for name in ("tls", "mtls", "sasl")}
        self._store(processes.postgres.url)
        self.agent: AgentProcess = processes.add(**self._settings(), **settings)
        self.agent.start()

    @property
    def plain(self) -> str:
        """The address of the listener at which everybody may do everything."""
        return self.agent.address

    @property
    def ways(self) -> Mapping[str, Way]:
        """By the name of the login."""
        ways = [self.tls(), self.mtls(), *(self.sasl(mechanism) for mechanism in PASSWORD_MECHANISMS), self.bearer()]
        return {way.login.name: way for way in ways}

    def tls(self, *, ca: Path | None = None) -> Way:
        return Way(self._address("tls"), Login(protocol="SSL", ca_file=str(ca or self.certificates.ca)))

    def mtls(self, identity: IdentityFiles | None = None) -> Way:
        files = identity or self.certificates.client
        keystore = files.cert.with_suffix(".keystore.pem")
        with os.fdopen(os.open(keystore, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(files.key.read_bytes() + files.cert.read_bytes())
        login = Login(
            protocol="SSL",
            ca_file=str(self.certificates.ca),
            certificate_file=str(files.cert),
            key_file=str(files.key),
            keystore_file=str(keystore),
        )
        return Way(self._address("mtls"), login)

    def sasl(self, mechanism: str, username: str = "ann", password: str = "") -> Way:
        login = Login(
            protocol="SASL_SSL",
            mechanism=mechanism,
            username=username,
            password=password or PASSWORDS[username],
            ca_file=str(self.certificates.ca),
        )
        return Way(self._address("sasl"), login)

    def bearer(self, **claims: object) -> Way:
        """By a token that makes these claims."""
        token = self.issuer.token(**claims)
        file = self._folder / f"token{next(self._numbers)}"
        file.write_text(token)
        login = Login(
            protocol="SASL_SSL",
            mechanism="OAUTHBEARER",
            username="ann's program",
            password="a secret of the issuer and the program",
            ca_file=str(self.certificates.ca),
            token=token,
            token_file=str(file),
            token_url=self.issuer.offer(token),
        )
        return Way(self._address("sasl"), login)

    def stop(self) -> None:
        """Stop the issuer of tokens; its processes are stopped by their maker."""
        self.issuer.stop()

    def topic(self, prefix: str = "t") -> str:
        name = f"{prefix}{next(self._numbers)}"

        async def create() -> None:
            async with connected(self.plain) as client:
                await client.create_topic(name, partitions=1)

        in_thread(create())
        return name

    def refusals(self) -> int:
        """Clients so far that did not come in, by the agent's log."""
        return len(re.findall("client not authenticated|TLS failed|middle of the TLS handshake", self.agent.log))

    def _address(self, listener: str) -> str:
        return f"127.0.0.1:{self._ports[listener]}"

    def _settings(self) -> Mapping[str, object]:
        made: dict[str, object] = {
            "acl.mode": "on",
            "super.users": SUPER_USERS,
            "group_initial_rebalance_delay_ms": 0,
            "group_min_session_timeout_ms": 1_000,
        }
        for name in self._ports:
            prefix = f"listener.{name}"
            made |= {
                f"{prefix}.address": self._address(name),
                f"{prefix}.protocol": "SASL_SSL" if name == "sasl" else "SSL",
                f"{prefix}.tls.cert.file": self.certificates.server.cert,
                f"{prefix}.tls.key.file": self.certificates.server.key,
            }
        made["listener.sasl.sasl.mechanisms"] = ",".join(MECHANISMS)
        made |= {
            "listener.sasl.sasl.oauthbearer.jwks.endpoint.url": self.issuer.keys_url,
            "listener.sasl.sasl.oauthbearer.jwks.ca.file": self.certificates.ca,
            "listener.sasl.sasl.oauthbearer.expected.issuer": ISSUER,
            "listener.sasl.sasl.oauthbearer.expected.audience": AUDIENCE,
        }
        made |= {"listener.mtls.tls.client.auth": "required", "listener.mtls.tls.ca.file": self.certificates.ca}
        return made

    @staticmethod
    def _store(metadata_url: str) -> None:
        users = [
            UserChange(
                name=name,
                mechanism=mechanism,
                credential=credential_of(mechanism, password, salt=os.urandom(SALT_BYTES)),
            )
            for name, password in PASSWORDS.items()
            for mechanism in Mechanism
        ]

        async def store() -> None:
            metadata = open_metadata(metadata_url)
            await metadata.open()
            try:
                await metadata.security.alter_users(users)
                await metadata.security.create_acls(_acls())
            finally:
                await metadata.close()

        in_thread(store())


def _acls() -> Sequence[Acl]:
    of_bob = [(ResourceType.TOPIC, each) for each in (Operation.READ, Operation.WRITE, Operation.DESCRIBE)]
    everything = ((ResourceType.TOPIC, "*"), (ResourceType.GROUP, "*"), (ResourceType.CLUSTER, CLUSTER_NAME))
    return [
        *(
            _allow("User:bob", resource, OWN, operation, PatternType.PREFIXED)
            for resource, operation in [*of_bob, (ResourceType.GROUP, Operation.READ)]
        ),
        *(_allow("User:ANONYMOUS", resource, name, Operation.ALL) for resource, name in everything),
    ]


def _allow(
    principal: str,
    resource: ResourceType,
    name: str,
    operation: Operation,
    pattern: PatternType = PatternType.LITERAL,
) -> Acl:
    return Acl(
        resource_type=resource,
        pattern_type=pattern,
        resource_name=name,
        principal=principal,
        host="*",
        operation=operation,
        permission=Permission.ALLOW,
    )


@contextmanager
def secured_agent(folder: Path, **settings: object) -> Generator[SecuredAgent]:
    """An agent on a Postgres of its own."""
    postgres = Postgres(folder / "postgres")
    processes = Processes(postgres, folder)
    try:
        agent = SecuredAgent(processes, folder, **settings)
        yield agent
        agent.stop()
    finally:
        processes.stop()
        postgres.stop()
