"""How long a session works tells nothing of who exists or how near a guess is: measured where nothing else is added,
inside of the process and without the delay of refusals.

docs/security.md states the bound. What is measured is the difference of two kinds of tries, so it means the same on a
slow machine and a fast one, and noise only widens its interval.
"""

from __future__ import annotations

import hmac
import random
import time
from base64 import b64encode
from collections.abc import Callable
from typing import Final

import pytest

from agents.features import Features
from agents.security.session import CheckPassword, Session
from security.sasl import plain, scram_messages
from security.scram import ITERATIONS_DEFAULT, Mechanism, credential_of, is_password_of, keys_of, salted_password
from tests.fixtures.timing import Difference, Try, compare
from tests.unit.agents.security.session_client import Users, answer_in, frame, shake
from wire.messages.sasl import SaslAuthenticateRequest, SaslAuthenticateResponse
from wire.schema import Octets

BOUND_NS: Final = 1_000
TRIES: Final = 100_000
PASSWORD_BOUND_NS: Final = 100_000
PASSWORD_TRIES: Final = 10_000
"""A check of a password is a thousand times as long as the rest, and so is its noise."""
SALT = b"saltsaltsaltsalt"


class Guesser:
    """Sessions at the point where one more message is judged. All users have both mechanisms."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        of_all = {each: credential_of(each, "secret", salt=SALT) for each in Mechanism}
        self.users = Users({f"user-{number:05}": dict(of_all) for number in self.chance.sample(range(100_000), 100)})
        self.known = self.chance.choice(sorted(self.users.users))
        self.unknown = next(name for name in iter(self._name, "") if name not in self.users.users)
        self.client_keys = {
            each: keys_of(each, salted_password(each, "secret", SALT, ITERATIONS_DEFAULT)).client_key
            for each in Mechanism
        }

    def _name(self) -> str:
        return f"user-{self.chance.randrange(100_000):05}"

    def _session(self, mechanism: str) -> Session:
        made = Session(
            self.users, ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"], features=Features(), nonce=lambda: "s" * 40
        )
        shake(made, mechanism)
        return made

    def first(self, name: str, mechanism: Mechanism) -> Try:
        header, bare = scram_messages.write_client_first(name, "c" * 24)
        message = _token((header + bare).encode())

        def prepare() -> Callable[[], object]:
            session = self._session(mechanism.sasl_name)
            return lambda: session.receive(message, 0.0)

        return prepare

    def last(self, name: str, mechanism: Mechanism, wrong: Callable[[bytes], bytes]) -> Try:
        header, bare = scram_messages.write_client_first(name, "c" * 24)
        first = _token((header + bare).encode())
        stored = self.users.users.get(name, self.users.users[self.known])[mechanism].stored_key

        def prepare() -> Callable[[], object]:
            session = self._session(mechanism.sasl_name)
            sent = bytes(answer_in(session.receive(first, 0.0), SaslAuthenticateResponse, 2).auth_bytes).decode()
            unproved = scram_messages.write_client_final(header, "c" * 24 + "s" * 40)
            mask = hmac.digest(stored, f"{bare},{sent},{unproved}".encode(), mechanism.digest)
            right = bytes(a ^ b for a, b in zip(self.client_keys[mechanism], mask, strict=True))
            message = _token(f"{unproved},p={b64encode(wrong(right)).decode()}".encode())
            return lambda: session.receive(message, 0.0)

        return prepare

    def claim(self, name: str) -> Try:
        message = _token(plain.write(name, "a guess at it"))

        def prepare() -> Callable[[], object]:
            session = self._session("PLAIN")
            return lambda: session.receive(message, 0.0)

        return prepare

    def check(self, name: str) -> Try:
        message = _token(plain.write(name, "a guess at it"))

        def prepare() -> Callable[[], object]:
            session = self._session("PLAIN")
            step = session.receive(message, 0.0)
            assert isinstance(step, CheckPassword)

            def work() -> None:
                session.judged(is_password_of(step.credential, step.password), 0.0)

            return work

        return prepare

    def compare(self, one: Try, other: Try, tries: int) -> Difference:
        return compare((one, other), tries=tries, chance=self.chance)

    def compare_passwords(self, tries: int) -> Difference:
        kinds = self.check(self.known), self.check(self.unknown)
        return compare(kinds, tries=tries, chance=self.chance, clock=time.thread_time_ns)


def _token(data: Octets) -> memoryview:
    return frame(SaslAuthenticateRequest(auth_bytes=data), 2)


def flipped(at: int) -> Callable[[bytes], bytes]:
    def flip(proof: bytes) -> bytes:
        changed = bytearray(proof)
        changed[at] ^= 1
        return bytes(changed)

    return flip


def unchanged(proof: bytes) -> bytes:
    return proof


def comparisons(guesser: Guesser, tries: int, password_tries: int) -> dict[str, tuple[Difference, int]]:
    """The comparisons: the difference, and the bound."""
    known, unknown, found = guesser.known, guesser.unknown, dict[str, tuple[Difference, int]]()
    for each in Mechanism:
        first = guesser.compare(guesser.first(known, each), guesser.first(unknown, each), tries)
        last = guesser.compare(guesser.last(known, each, flipped(3)), guesser.last(unknown, each, flipped(3)), tries)
        ends = guesser.compare(guesser.last(known, each, flipped(0)), guesser.last(known, each, flipped(-1)), tries)
        found[f"{each.sasl_name}, first message of a known and an unknown user"] = first, BOUND_NS
        found[f"{each.sasl_name}, proof of a known and an unknown user"] = last, BOUND_NS
        found[f"{each.sasl_name}, proof wrong at its first and at its last byte"] = ends, BOUND_NS
    claim = guesser.compare(guesser.claim(known), guesser.claim(unknown), tries)
    found["PLAIN, message of a known and an unknown user"] = claim, BOUND_NS
    check = guesser.compare_passwords(password_tries)
    found["PLAIN, password of a known and an unknown user"] = check, PASSWORD_BOUND_NS
    return found


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_nothing_about_a_guess_is_told_by_how_long_it_takes(request: pytest.FixtureRequest) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    found = comparisons(Guesser(seed), TRIES, PASSWORD_TRIES)
    for what, (difference, _) in found.items():
        print(f"{what}: {difference}")
    assert {what: str(told) for what, (told, bound_ns) in found.items() if told.at_most_ns > bound_ns} == {}


def test_the_measure_sees_what_takes_longer() -> None:
    """So that the proof above can fail: a comparison that ends at the first byte that differs is told at once."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    secret = bytes(64)

    def try_of(right: int) -> Try:
        guess = bytes(right) + b"x" * (64 - right)

        def work() -> bool:
            return all(a == b for a, b in zip(secret, guess, strict=True))

        return lambda: work

    told = compare((try_of(1), try_of(63)), tries=2_000, chance=random.Random(seed))
    assert told.t > 10 and told.mean_ns > 500, told


def test_both_kinds_of_a_comparison_do_what_they_say() -> None:
    guesser = Guesser(1)
    assert guesser.known in guesser.users.users and guesser.unknown not in guesser.users.users
    found = comparisons(guesser, 20, 10)
    assert len(found) == 8
