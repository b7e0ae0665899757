"""An agent or a compactor that is started before `siltstone migrate` has run waits for it.

So an upgrade has no order: all programs may be started together with the migration. A waiting process is alive and not
ready; it holds no lease and no port of clients, so the migration does not count it. What it waits for:

- the schema that it was made for, without a bound;
- the password of its role, where a secret that `siltstone migrate` fills names it;
- the rights of its role, which the same run of `siltstone migrate` grants after the schema, for RIGHTS_MS_MAX: a
  process can do without some of them, and says itself which ones it cannot do without.

A schema that does not accept the process, and a Postgres that does not answer at the start, end the process with an
error. Commands do not wait.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Literal

from metadata.contract.errors import MetadataUnavailableError, RightsMissingError, SchemaBehindError
from metadata.contract.store import MetadataStore
from runtime.clock import Clock
from runtime.logging import get_logger
from runtime.secrets_manager import EmptySecretError

LOOK_MS = 1_000
TELL_MS = 30_000
RIGHTS_MS_MAX = 30_000

_log = get_logger(__name__)


class SchemaWait:
    """The wait of one process, an agent or a compactor, for the Postgres at `url`."""

    def __init__(self, url: str, kind: Literal["agent", "compactor"], clock: Clock) -> None:
        self.reason = ""
        """What the process waits for now; empty when it does not wait."""
        self._url, self._kind, self._clock = url, kind, clock
        self._began_ms = 0.0
        self._told_ms = 0.0
        self._rights_until_ms = 0.0

    async def open(self, metadata: MetadataStore) -> None:
        """Open the metadata, once Postgres has the schema and the role its rights. Raises what `MetadataStore.open`
        does, but no SchemaBehindError."""
        while not await self._opens(metadata):
            await self._clock.sleep_ms(LOOK_MS)
        while await self._lacks_rights():
            await self._clock.sleep_ms(LOOK_MS)
        if self.reason:
            self.reason = ""
            _log.info("schema is there", waited_s=self._waited_s())

    @contextmanager
    def naming_the_rights(self) -> Generator[None]:
        """Around the life of the process: where a missing right ends it, the error says who gives it."""
        try:
            yield
        except RightsMissingError as error:
            error.remedy = error.remedy or self._remedy()
            raise

    async def _opens(self, metadata: MetadataStore) -> bool:
        try:
            await metadata.open()
        except SchemaBehindError as error:
            self._rights_until_ms = 0.0
            self._wait_for(f"{error.message}: {error.remedy}")
        except RightsMissingError as error:  # not even the version of the schema may be read
            if not self._rights_may_come():
                raise
            self._wait_for(f"{error.message}: {self._remedy()}")
        except MetadataUnavailableError as error:
            if not self._may_pass(error):
                raise
            self._wait_for(error.message)
        else:
            return True
        return False

    async def _lacks_rights(self) -> bool:
        from metadata.migrations.grants import RIGHTS, lacks  # loads SQLAlchemy, which memory:// does not need

        missing = ", ".join(await lacks(self._url, RIGHTS[self._kind]))
        if not missing:
            return False
        if not self._rights_may_come():
            _log.warning("started without all rights", lacking=missing, remedy=self._remedy())
            return False
        self._wait_for(f"this role lacks rights on {missing}: {self._remedy()}")
        return True

    def _may_pass(self, error: MetadataUnavailableError) -> bool:
        """Whether to wait for the end of this. The first migration fills the secret, and makes the role a moment later;
        a Postgres that goes away while a process waits comes back."""
        from metadata.postgres.passwords import REFUSED, split  # loads asyncpg, which memory:// does not need

        if isinstance(error.__cause__, EmptySecretError):
            self._rights_until_ms = 0.0
            return True
        if getattr(error.__cause__, "sqlstate", None) in REFUSED:
            return bool(split(self._url)[1].secret_arn) and self._rights_may_come()
        return bool(self.reason)

    def _rights_may_come(self) -> bool:
        now_ms = self._clock.monotonic_ms()
        self._rights_until_ms = self._rights_until_ms or now_ms + RIGHTS_MS_MAX
        return now_ms < self._rights_until_ms

    def _remedy(self) -> str:
        return f"run `siltstone migrate --{self._kind} ROLE` of this release"

    def _wait_for(self, reason: str) -> None:
        """Tell it: at once when it is another reason than before, and again after TELL_MS."""
        now_ms = self._clock.monotonic_ms()
        if not self.reason:
            self._began_ms = now_ms
        if reason != self.reason or now_ms - self._told_ms >= TELL_MS:
            _log.warning("waiting for the schema", reason=reason, waited_s=self._waited_s())
            self._told_ms = now_ms
        self.reason = reason

    def _waited_s(self) -> int:
        return round((self._clock.monotonic_ms() - self._began_ms) / 1000)
