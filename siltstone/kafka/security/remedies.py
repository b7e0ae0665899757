"""Remedies for a request that an agent refuses, and for an agent that lets nobody in."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Final

from runtime.errors import UnavailableError
from siltstone.kafka.security.values import ClientSecurity

_ALLOW: Final = "`siltstone acls create --allow-principal User:NAME "
_WHICH: Final = (
    "the agent's audit log names the missing right (`denied`), unless an ACL denies it: `siltstone acls list"
    " --principal User:NAME`"
)
DENIED: Final[Mapping[str, str]] = {
    "TOPIC_AUTHORIZATION_FAILED": f"{_ALLOW}--consumer --topic TOPIC --group GROUP` gives what a consumer needs,"
    f" `--producer --topic TOPIC` what a producer needs; {_WHICH}",
    "GROUP_AUTHORIZATION_FAILED": f"{_ALLOW}--consumer --topic TOPIC --group GROUP` gives what a consumer needs;"
    f" {_WHICH}",
    "CLUSTER_AUTHORIZATION_FAILED": f"{_ALLOW}--operation OPERATION --cluster` gives rights; {_WHICH}",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": f"{_ALLOW}--producer --topic TOPIC --transactional-id ID` gives what a"
    f" producer needs; {_WHICH}",
}
"""By the name of the error."""
CLOSED: Final = "closed the connection"
HUNG: Final = (
    "the process accepts connections and does not answer: look at its log and `siltstone doctor`, restart it, or name"
    " another agent with --bootstrap"
)


def of_probe(topic: str) -> str:
    """The remedy where the topic of `siltstone probe` is denied."""
    operations = " ".join(f"--operation {each}" for each in ("Create", "Write", "Read", "Describe"))
    return f"{_ALLOW}{operations} --topic {shlex.quote(topic)}` gives what a probe needs; {_WHICH}"


def closed(security: ClientSecurity, *, is_first: bool) -> str:
    """The agent closes the connection; `is_first`: upon the first request that wants to know who we are."""
    if not is_first or security.has_sasl:
        return ""
    protocol = "SASL_SSL" if security.has_tls else "SASL_SSL or SASL_PLAINTEXT"
    users = f"security.protocol={protocol}, sasl.mechanism, sasl.username and sasl.password"
    if not security.source:
        return f"this listener may want a user: give --client-config FILE with {users}"
    return f"this listener may want a user: {users}; {security.source} has {security.protocol}"


def no_agent(refusals: Mapping[str, str], security: ClientSecurity, *, is_hung: bool) -> UnavailableError:
    """Nothing answers at the addresses, or it closes the connection before it says a word. `refusals`: the reason
    by address."""
    if not security.source and set(refusals.values()) == {f"connected, but it {CLOSED}"}:
        return UnavailableError(
            f"{', '.join(refusals)} {CLOSED}",
            remedy="it may want TLS: give --client-config FILE; or it is no agent: name another with --bootstrap",
        )
    remedy = HUNG if is_hung else _of_no_agent(security)
    told = ", ".join(f"{address} ({reason})" for address, reason in refusals.items())
    return UnavailableError(f"no agent answers at {told}", remedy=remedy)


def _of_no_agent(security: ClientSecurity) -> str:
    if not security.source:
        return "start one with `siltstone dev`, or name another with --bootstrap; TLS needs --client-config"
    sasl = "; the listener may want SASL: security.protocol=SASL_SSL" if security.protocol == "SSL" else ""
    return (
        "start one, or name another with --bootstrap; if it runs, its log says why: compare"
        f" security.protocol={security.protocol} of {security.source} with the listener's{sasl}"
    )
