"""Puts together the parts of an agent that know users, ACLs and quotas, let clients in, judge their requests, and hold
them to their quotas."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from agents.features import Features
from agents.quotas.sharing import QuotaSharing
from agents.quotas.throttle import Throttle
from agents.request_context import ClientConnection
from agents.security.audit import Audit
from agents.security.authorizer import Authorizer, mode_of, super_users_of
from agents.security.freshness import Freshness, RunningLease
from agents.security.gate import Authentication, Gate, NoTokensError, TokenJudge, gates_of
from agents.security.in_force import notices_of
from agents.security.known import KnownSecurity
from agents.security.passwords import PasswordChecks
from agents.security.session import OAUTHBEARER
from metadata.contract.leases import WriterLease
from metadata.security.contract import SecurityMetadata
from runtime.logging import get_logger
from runtime.runtime import Runtime
from runtime.settings.listeners import listeners_of
from runtime.settings.table import Settings

_log = get_logger(__name__)


class OpenJudge(Protocol):
    async def stop(self) -> None: ...


class Access:
    def __init__(
        self, *, settings: Settings, metadata: SecurityMetadata, lease: Callable[[], WriterLease], runtime: Runtime
    ) -> None:
        """Raises BadInputError for settings that contradict each other."""
        self._settings = settings
        self._metadata = metadata
        self._runtime = runtime
        self._passwords: PasswordChecks | None = None
        self._token_judges_open: Sequence[OpenJudge] = ()
        self._listeners = listeners_of(settings)
        self.known = KnownSecurity(metadata=metadata, lease=lease, runtime=runtime)
        self._mode = mode_of(settings.acl_mode, authenticates=any(each.authenticates for each in self._listeners))
        self._super_users = super_users_of(settings.super_users)
        self.authorizer = Authorizer(
            self._mode,
            super_users=self._super_users,
            known=self.known,
            allow_everyone=settings.allow_everyone_if_no_acl_found,
            audit=Audit(runtime.metrics.security),
        )
        self.freshness: Freshness | None = None
        """None: nobody is judged by anything in the store."""
        self.throttle = Throttle(self.known, runtime, shares=settings.quota_scope == "cluster")
        self._sharing = QuotaSharing(
            self.throttle,
            metadata=metadata,
            lease=lease,
            secret=lambda: self.known.cluster_secret,
            runtime=runtime,
        )
        self.known.on_quotas.append(self._sharing.quotas_changed)

    async def check_fleet(self) -> None:
        """Before the agent registers. Raises OlderProgramsAtWorkError."""
        if self.authorizer.on:
            # One that knows no ACLs would let everybody in.
            await self._metadata.exclude_older_programs()

    def judge_freshness(self, lease: RunningLease, catch_up: Callable[[], Awaitable[None]]) -> Freshness | None:
        """To be called before `gates`. None: nobody is judged by anything in the store."""
        if self.authorizer.on or any(each.has_sasl for each in self._listeners):
            self.freshness = Freshness(
                lease=lease,
                knowledge=self.known,
                catch_up=catch_up,
                binds=self.authorizer.binds,
                clock=self._runtime.clock,
            )
        return self.freshness

    async def start(self) -> None:
        """Once everything is loaded."""
        for notice in notices_of(self._mode, self._settings.acl_mode, self._super_users, self._listeners):
            (_log.warning if notice.is_warning else _log.info)(notice.text)
        await self.authorizer.start()
        self._sharing.start()

    async def gates(self, features: Features) -> Mapping[str, Callable[[ClientConnection], Gate]]:
        """By the name of each listener that has SASL. Raises NoTokensError, TlsFileError."""
        if not any(each.has_sasl for each in self._listeners):
            return {}
        ids = self._runtime.ids
        passwords = self._passwords = PasswordChecks(ids.uuid4().bytes + ids.uuid4().bytes)
        settings = self._settings
        authentication = Authentication(
            known=self.known,
            features=features,
            passwords=passwords,
            runtime=self._runtime,
            freshness=self.freshness,
            refused_after_ms=settings.connection_failed_authentication_delay_ms,
            stale_ms_max=settings.security_stale_max_ms,
            receive_bytes_max=settings.sasl_server_max_receive_bytes,
            tokens=await self._token_judges(),
        )
        return gates_of(authentication, self._listeners)

    async def _token_judges(self) -> Mapping[str, TokenJudge]:
        listeners = [each for each in self._listeners if each.has_sasl and OAUTHBEARER in each.mechanisms]
        if not listeners:
            return {}
        try:
            from agents.security.oauth.judging import opened  # needs the extra
        except ImportError as error:
            raise NoTokensError(
                f"listener {listeners[0].name} has the mechanism {OAUTHBEARER}, and a package is missing: {error.name}",
                remedy="install siltstone[oauth], or remove the mechanism",
            ) from error
        judges = {each.name: await opened(each, self._runtime.clock) for each in listeners}
        self._token_judges_open = list(judges.values())
        return judges

    async def stop(self) -> None:
        if self.freshness is not None:
            await self.freshness.close()
        for judge in self._token_judges_open:
            await judge.stop()
        await self._sharing.stop()
        await self.known.stop()
        self.authorizer.close()
        if self._passwords is not None:
            self._passwords.close()
