"""Floods of guesses by PLAIN, whose check is dear, against a running agent."""

from __future__ import annotations

import asyncio
import os
from itertools import count

import pytest

from agents.security import passwords as passwords_module
from agents.security.passwords import PasswordChecks
from agents.security.session import SASL_AUTHENTICATE, CheckPassword
from metadata.security.contract import UserChange
from runtime.settings.listeners import ListenerSettings
from security.sasl import plain
from security.scram import Mechanism, ScramCredential, is_password_of
from tests.fixtures.agents import RawConnection, StartAgent
from tests.fixtures.loop_stalls import LoopStalls, assert_holds_up_nobody, loop_stalls
from tests.fixtures.waiting import until
from tests.unit.agents.security.session_client import SHA_512, credential
from wire.api import decode_response
from wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

GUESSERS, LOGINS = 60, 8


async def log_in(address: str, password: str, local: str) -> int:
    """The error code of the answer."""
    host, _, port = address.rpartition(":")
    raw = RawConnection(*await asyncio.open_connection(host, int(port), local_addr=(local, 0)))
    try:
        await raw.call(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
        await raw.begin(SaslAuthenticateRequest(auth_bytes=plain.write("ann", password)), 2)
        _, answer = decode_response(SASL_AUTHENTICATE, 2, await raw.read_frame(60))
        assert isinstance(answer, SaslAuthenticateResponse)
        return answer.error_code
    finally:
        await raw.close()


async def test_who_guesses_without_end_keeps_nobody_else_waiting_and_the_loop_is_free(
    start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = ListenerSettings(
        name="default", address="127.0.0.1:0", protocol="SASL_PLAINTEXT", sasl_mechanisms="PLAIN"
    )
    running = await start_agent(
        listen="",
        listeners=(listener,),
        acl_mode="off",
        connection_creation_rate=10_000,
        connection_failed_authentication_delay_ms=1,
        preauth_timeout_ms=600_000,
    )
    change = UserChange(name="ann", mechanism=Mechanism.SCRAM_SHA_512, credential=credential("right", SHA_512))
    await running.metadata.security.alter_users([change])
    await running.agent._follower.catch_up()
    checked: list[str] = []
    came: dict[str, int] = {}

    def check(proved: ScramCredential, password: str) -> bool:
        checked.append(password)
        return is_password_of(proved, password)

    is_right = PasswordChecks.is_right

    async def note(checks: PasswordChecks, claim: CheckPassword, host: str) -> bool:
        came[claim.password] = len(checked)
        return await is_right(checks, claim, host)

    monkeypatch.setattr(passwords_module, "is_password_of", check)
    monkeypatch.setattr(PasswordChecks, "is_right", note)
    guesses = count()

    async def guess() -> None:
        while True:
            assert await log_in(running.address, f"guess {next(guesses)}", "127.0.0.1")

    async def flooded() -> LoopStalls:
        checked.clear()
        came.clear()
        with loop_stalls() as stalls:
            guessers = [asyncio.create_task(guess()) for _ in range(GUESSERS)]
            await until(lambda: len(checked) > GUESSERS)
            # others log in meanwhile, each time with another wrong password, and at last with the right one
            for number in range(LOGINS):
                assert await log_in(running.address, f"mistyped {number}", "127.0.0.2")
            assert await log_in(running.address, "right", "127.0.0.2") == 0
            for each in guessers:
                each.cancel()
            await asyncio.gather(*guessers, return_exceptions=True)
        return stalls

    await assert_holds_up_nobody(flooded)
    # then no more guesses went before each than there are threads, and one
    threads = passwords_module.threads_of(len(os.sched_getaffinity(0)))
    for password in (*(f"mistyped {number}" for number in range(LOGINS)), "right"):
        assert checked.index(password) - came[password] <= threads + 1, password
