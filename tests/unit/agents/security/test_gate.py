from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from agents.features import Features
from agents.request_context import ANONYMOUS, ClientConnection
from agents.security import passwords as passwords_module
from agents.security.freshness import Freshness
from agents.security.gate import Authentication, Gate, NoTokensError, gates_of, is_held
from agents.security.passwords import PasswordChecks
from agents.security.session import REFUSED, CheckPassword, Reply
from metadata.contract.errors import MetadataUnavailableError
from runtime.clock import ManualClock
from runtime.ids import SystemIds
from runtime.runtime import Runtime
from runtime.settings.listeners import ListenerSettings
from security.sasl import plain
from security.sasl.scram_client import ScramClient
from security.scram import ScramCredential, is_password_of
from tests.fixtures.waiting import until
from tests.unit.agents.security.session_client import ALL, METADATA, SHA_256, Users, answer_in, credential, frame
from wire.messages.api_versions import ApiVersionsRequest
from wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

DELAY_MS = 100


@pytest.fixture
def checks() -> Iterator[PasswordChecks]:
    made = PasswordChecks(b"k" * 32, threads=2, remembered_max=2)
    yield made
    made.close()


def shared(checks: PasswordChecks, clock: ManualClock, users: Users | None = None) -> Authentication:
    return Authentication(
        known=users or Users(),
        features=Features(),
        passwords=checks,
        runtime=Runtime(clock=clock, ids=SystemIds(7)),
        refused_after_ms=DELAY_MS,
        receive_bytes_max=65_536,
    )


async def told(gate: Gate, request: SaslHandshakeRequest | SaslAuthenticateRequest, version: int) -> Reply:
    reply = gate.receive(frame(request, version))
    return reply if isinstance(reply, Reply) else await reply


async def send(gate: Gate, token: bytes) -> tuple[Reply, SaslAuthenticateResponse]:
    reply = await told(gate, SaslAuthenticateRequest(auth_bytes=token), 2)
    return reply, answer_in(reply, SaslAuthenticateResponse, 2)


async def test_a_client_that_proves_itself_gets_its_principal(checks: PasswordChecks) -> None:
    for mechanism in ("SCRAM-SHA-256", "PLAIN"):
        # given
        client = ClientConnection(1, "127.0.0.1:5")
        gate = shared(checks, ManualClock()).gate(client, ALL)
        await told(gate, SaslHandshakeRequest(mechanism=mechanism), 1)
        assert not gate.admits(memoryview(METADATA)) and client.principal == ANONYMOUS
        # when
        if mechanism == "PLAIN":
            await send(gate, plain.write("ann", "secret"))
        else:
            theirs = ScramClient(SHA_256, "ann", "secret", nonce="c" * 20)
            _, first = await send(gate, theirs.first())
            await send(gate, theirs.prove(bytes(first.auth_bytes)))
        # then
        assert gate.is_open and gate.admits(memoryview(METADATA)) and client.principal == "User:ann"
        assert client.has_password


async def test_every_refusal_leaves_at_the_same_time_after_its_message(checks: PasswordChecks) -> None:
    for mechanism, token in (
        ("PLAIN", plain.write("ann", "x")),
        ("PLAIN", plain.write("nobody", "x")),
        ("PLAIN", b""),
        ("SCRAM-SHA-256", b"n,,x"),
    ):
        clock = ManualClock()
        gate = shared(checks, clock).gate(client := ClientConnection(1, "h:1"), ALL)
        await told(gate, SaslHandshakeRequest(mechanism=mechanism), 1)
        begun_ms = clock.monotonic_ms()
        reply, answer = await send(gate, token)
        assert clock.monotonic_ms() - begun_ms == DELAY_MS
        assert answer.error_message == REFUSED and reply.ends
        assert client.principal == ANONYMOUS and not gate.is_open


async def test_a_gate_whose_user_was_deleted_no_longer_holds(checks: PasswordChecks) -> None:
    users = Users()
    gate = shared(checks, ManualClock(), users).gate(ClientConnection(1, "h:1"), ALL)
    await told(gate, SaslHandshakeRequest(mechanism="PLAIN"), 1)
    await send(gate, plain.write("ann", "secret"))
    assert gate.still_holds
    users.users = {}
    assert not gate.still_holds


async def test_listeners_with_sasl_get_gates_of_their_own_mechanisms(checks: PasswordChecks) -> None:
    made = shared(checks, ManualClock())
    listeners = [
        ListenerSettings(name="default"),
        ListenerSettings(name="inner", protocol="SASL_SSL", sasl_mechanisms="PLAIN", connections_max_reauth_ms=5_000),
    ]
    gates = gates_of(made, listeners)
    assert list(gates) == ["inner"]
    gate = gates["inner"](ClientConnection(1, "h:1"))
    reply = await told(gate, SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 1)
    assert answer_in(reply, SaslHandshakeResponse, 1).mechanisms == ["PLAIN"]
    gate = gates["inner"](ClientConnection(1, "h:1"))
    await told(gate, SaslHandshakeRequest(mechanism="PLAIN"), 1)
    assert (await send(gate, plain.write("ann", "secret")))[1].session_lifetime_ms == 5_000
    with pytest.raises(NoTokensError, match=r"listener\.x\.sasl\.mechanisms"):
        gates_of(made, [ListenerSettings(name="x", protocol="SASL_SSL", sasl_mechanisms="OAUTHBEARER")])


async def test_nonces_differ() -> None:
    checks = PasswordChecks(b"k")
    made = shared(checks, ManualClock())
    checks.close()
    nonces = {made.nonce() for _ in range(100)}
    assert len(nonces) == 100 and {len(each) for each in nonces} == {64}


class TestPasswords:
    """`is_password_of` is replaced by one that counts: the price of a check is what the tests are about."""

    @pytest.fixture(autouse=True)
    def counted(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        asked: list[str] = []

        def count(proved: ScramCredential, password: str) -> bool:
            asked.append(password)
            assert threading.current_thread() is not threading.main_thread()
            return is_password_of(proved, password)

        monkeypatch.setattr(passwords_module, "is_password_of", count)
        return asked

    def claim(
        self, password: str, *, name: str = "ann", stored: str = "secret", is_known: bool = True
    ) -> CheckPassword:
        return CheckPassword(name=name, password=password, credential=credential(stored), is_known=is_known)

    async def test_a_right_password_is_checked_once_and_a_wrong_one_each_time(
        self, checks: PasswordChecks, counted: list[str]
    ) -> None:
        for _ in range(3):
            assert await checks.is_right(self.claim("secret"), "127.0.0.1")
            assert not await checks.is_right(self.claim("wrong"), "127.0.0.1")
        assert counted == ["secret", "wrong", "wrong", "wrong"]

    async def test_what_is_remembered_is_of_one_name_and_one_credential(
        self, checks: PasswordChecks, counted: list[str]
    ) -> None:
        assert await checks.is_right(self.claim("secret"), "127.0.0.1")
        assert not await checks.is_right(self.claim("secret", stored="changed"), "127.0.0.1")
        assert await checks.is_right(self.claim("secret", name="bob"), "127.0.0.1")
        assert len(counted) == 3

    async def test_the_memory_is_bounded_and_keeps_the_latest(self, checks: PasswordChecks, counted: list[str]) -> None:
        for name in ("a", "b", "a", "c", "a", "b"):
            assert await checks.is_right(self.claim("secret", name=name), "127.0.0.1")
        assert len(counted) == 4  # a, b, c, and b again

    async def test_a_stand_in_is_never_remembered(self, checks: PasswordChecks, counted: list[str]) -> None:
        for _ in range(2):
            await checks.is_right(self.claim("secret", is_known=False), "127.0.0.1")
        assert len(counted) == 2

    async def test_a_check_that_nobody_waits_for_any_more_ends(self, checks: PasswordChecks) -> None:
        waiting = asyncio.ensure_future(checks.is_right(self.claim("secret"), "127.0.0.1"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await checks.is_right(self.claim("secret"), "127.0.0.1")

    async def test_a_flood_from_one_address_delays_another_by_no_more_than_a_check_on_each_thread(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        done: list[str] = []
        step = threading.Semaphore(0)

        def check(_: ScramCredential, password: str) -> bool:
            step.acquire()
            done.append(password)
            return False

        monkeypatch.setattr(passwords_module, "is_password_of", check)
        checks = PasswordChecks(b"k", threads=2)
        flood = [asyncio.ensure_future(checks.is_right(self.claim("guess"), "10.0.0.1")) for _ in range(50)]
        await asyncio.sleep(0)
        others = [asyncio.ensure_future(checks.is_right(self.claim(host), host)) for host in ("10.0.0.2", "10.0.0.3")]
        await asyncio.sleep(0)
        assert checks.waiting == 50
        # clients of the flood that leave take their guesses with them
        for each in flood[40:]:
            each.cancel()
        await asyncio.gather(*flood[40:], return_exceptions=True)
        assert checks.waiting == 40
        step.release(50)
        await asyncio.gather(*others, *flood[:40])
        # two were at work when the others came; then each address has its turn
        assert {"10.0.0.2", "10.0.0.3"} <= set(done[:6]) and len(done) == 42
        checks.close()

    async def test_a_client_that_leaves_while_its_check_runs_frees_the_thread_when_it_ends(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        at_work, most, step, lock = 0, 0, threading.Semaphore(0), threading.Lock()

        def check(_: ScramCredential, __: str) -> bool:
            nonlocal at_work, most
            with lock:
                at_work += 1
                most = max(most, at_work)
            step.acquire()
            with lock:
                at_work -= 1
            return False

        monkeypatch.setattr(passwords_module, "is_password_of", check)
        checks = PasswordChecks(b"k", threads=1)
        for _ in range(5):
            leaving = asyncio.ensure_future(checks.is_right(self.claim("guess"), "10.0.0.1"))
            await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
        assert checks.waiting == 0
        last = asyncio.ensure_future(checks.is_right(self.claim("guess"), "10.0.0.1"))
        step.release(10)
        assert not await last and most == 1
        # and the thread is there for the next one
        assert not await checks.is_right(self.claim("guess"), "10.0.0.1")
        checks.close()

    @pytest.mark.parametrize("leaves_first", [False, True])
    async def test_a_turn_that_comes_as_its_client_leaves_is_the_next_ones(
        self, monkeypatch: pytest.MonkeyPatch, *, leaves_first: bool
    ) -> None:
        step = threading.Semaphore(0)
        monkeypatch.setattr(passwords_module, "is_password_of", lambda *_: not step.acquire())
        checks = PasswordChecks(b"k", threads=1)
        pass_on = checks._pass_on
        at_work, leaving, staying = [
            asyncio.ensure_future(checks.is_right(self.claim("guess"), "10.0.0.1")) for _ in range(3)
        ]

        def leave() -> None:
            for act in (leaving.cancel, pass_on) if leaves_first else (pass_on, leaving.cancel):
                act()

        monkeypatch.setattr(checks, "_pass_on", leave)
        await until(lambda: checks.waiting == 2)
        step.release(2)
        async with asyncio.timeout(60):
            assert not await at_work and not await staying
        assert leaving.cancelled()
        checks.close()

    def test_the_threads_leave_the_loop_half_of_the_cores(self) -> None:
        assert [passwords_module.threads_of(cores) for cores in (1, 2, 3, 4, 16, 64)] == [1, 1, 1, 2, 8, 8]


class NeverHeard:
    """A lease that is over, and a store that does not answer."""

    beat_ms = lapsed_ms = heard_ms = float("-inf")

    async def beat(self) -> None:
        raise MetadataUnavailableError("away")


async def test_while_the_store_is_away_nobody_is_told_that_a_password_is_wrong(checks: PasswordChecks) -> None:
    # given users that may have changed since we heard of them
    clock = ManualClock()
    never = NeverHeard()
    behind = Freshness(lease=never, knowledge=never, catch_up=never.beat, binds=lambda _: True, clock=clock)
    sharing = replace(shared(checks, clock), freshness=behind)
    for token in (plain.write("ann", "x"), plain.write("nobody", "x")):
        gate = sharing.gate(ClientConnection(1, "127.0.0.1:5"), ALL)
        await told(gate, SaslHandshakeRequest(mechanism="PLAIN"), 1)
        # when
        sent_ms = clock.monotonic_ms()
        reply = await told(gate, SaslAuthenticateRequest(auth_bytes=token), 2)
        # then the connection is closed without an error, and not sooner than with one
        assert reply.ends and not reply.parts and clock.monotonic_ms() - sent_ms >= DELAY_MS
    # and who is known comes in
    gate = sharing.gate(ClientConnection(1, "127.0.0.1:5"), ALL)
    await told(gate, SaslHandshakeRequest(mechanism="PLAIN"), 1)
    await send(gate, plain.write("ann", "secret"))
    assert gate.is_open


async def test_while_the_store_is_away_requests_wait_and_proofs_go_on(checks: PasswordChecks) -> None:
    clock, client, never = ManualClock(), ClientConnection(1, "127.0.0.1:5"), NeverHeard()
    behind = Freshness(lease=never, knowledge=never, catch_up=never.beat, binds=lambda _: True, clock=clock)
    gate = shared(checks, clock).gate(client, ALL, reauthenticate_ms=60_000)

    def waits(request: bytes | memoryview, by: Gate | None = gate) -> bool:
        return is_held(memoryview(request), client, by, behind, clock.monotonic_ms())

    handshake, versions = frame(SaslHandshakeRequest(mechanism="PLAIN"), 1), frame(ApiVersionsRequest(), 3)
    proof = frame(SaslAuthenticateRequest(auth_bytes=plain.write("ann", "secret")), 2)
    # before the proof: what is no message of it ends the connection at once
    assert not any(map(waits, (versions, handshake, proof, METADATA)))
    assert waits(METADATA, None) and waits(handshake, None) and not waits(versions, None)
    await told(gate, SaslHandshakeRequest(mechanism="PLAIN"), 1)
    assert not any(map(waits, (handshake, proof, METADATA)))
    await send(gate, plain.write("ann", "secret"))
    # after it: but for the next proof
    assert waits(METADATA) and waits(proof) and not waits(versions) and not waits(handshake)
    await told(gate, SaslHandshakeRequest(mechanism="PLAIN"), 1)
    assert not waits(proof)
    assert not is_held(memoryview(METADATA), client, None, None, 0)
    await behind.close()


async def test_passwords_are_believed_until_what_is_known_is_too_old(checks: PasswordChecks) -> None:
    users = Users()
    sharing = replace(shared(checks, ManualClock(), users), stale_ms_max=1_000)
    for stale_ms, is_open in ((1_000.0, True), (1_001.0, False)):
        users.stale_ms = stale_ms
        client = ClientConnection(1, "127.0.0.1:5")
        gate = sharing.gate(client, ALL)
        await told(gate, SaslHandshakeRequest(mechanism="PLAIN"), 1)
        reply = await told(gate, SaslAuthenticateRequest(auth_bytes=plain.write("ann", "secret")), 2)
        assert (gate.is_open, client.has_password, bool(reply.ends)) == (is_open, is_open, not is_open)
        assert bool(reply.parts) == is_open, "no error: another agent may know better"
