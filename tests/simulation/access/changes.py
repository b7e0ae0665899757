"""The super user who gives rights to guests and takes them away, through any agent, and asks until it is answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from security.acls.values import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from siltstone.kafka.access.acls import creation_of, deletion_of
from tests.simulation.access.access import Access, acl
from tests.simulation.access.guests import VERSIONS, Guest
from tests.simulation.access.principals import RESOURCES, SUPER_USER
from tests.simulation.access.rulings import permits
from tests.simulation.book import TopicPartition
from tests.simulation.clients import Line, LineLostError
from tests.simulation.faults import Path
from tests.simulation.producers import Producer
from wire.error_codes import ErrorCode
from wire.messages.acls import CreateAclsRequest, CreateAclsResponse, DeleteAclsRequest, DeleteAclsResponse
from wire.messages.produce import ProduceResponse

if TYPE_CHECKING:
    from tests.simulation.world import World


class AccessAdmin(Producer):
    """Turns one right of one guest round at a time, and often writes right after it, so that parked fetches wake up."""

    principal = SUPER_USER
    versions_known = VERSIONS
    timeout_ms = 20_000.0
    """A change waits for the lease of an agent that is silent."""

    def __init__(self, world: World, access: Access, guests: Sequence[Guest], places: Sequence[TopicPartition]) -> None:
        super().__init__(world, "grantor", rng=access.rng)
        self._rulings = access.rulings
        self._guests = guests
        self._places = places
        self._changes_left = self.rng.randint(5, 9)
        self._written = 0

    async def run(self) -> None:
        while self._changes_left > 0 or self.world.healed_ms is None:
            guest = self.rng.choice(self._guests)
            await self._turn(guest, *self.rng.choice(RESOURCES))
            if self.rng.random() < 0.7:
                await self._write()
            await self.pause(0, 250)

    async def _turn(self, guest: Guest, operation: Operation, kind: ResourceType, name: str) -> None:
        present = self.world.server.database.acls
        fitting = AclFilter(
            resource_type=kind, pattern_type=PatternType.MATCH, resource_name=name, principal=guest.principal
        )
        if permits(present, guest.asks(operation, kind, name)):
            if self.rng.random() < 0.5:
                await self._create(self._acl(guest, operation, kind, name, Permission.DENY))
            else:
                await self._delete(replace(fitting, permission=Permission.ALLOW))
            return
        if any(fitting.matches(each) and each.permission is Permission.DENY for each in present):
            await self._delete(replace(fitting, permission=Permission.DENY))
        if not permits(present, guest.asks(operation, kind, name)):
            await self._create(self._acl(guest, operation, kind, name, Permission.ALLOW))

    def _acl(self, guest: Guest, operation: Operation, kind: ResourceType, name: str, permission: Permission) -> Acl:
        made = acl(guest.principal, self.rng.choice((operation, operation, Operation.ALL)), kind, name)
        if self.rng.random() < 0.4:
            made = replace(made, pattern_type=PatternType.PREFIXED, resource_name=name[: self.rng.randint(1, 4)])
        if self.rng.random() < 0.3:
            made = replace(made, host=guest.name)
        return replace(made, permission=permission)

    async def _write(self) -> None:
        place = self.rng.choice(self._places)
        batch = self.world.book.new_batch(self.name, self._written, place, 1, is_idempotent=False)
        self._written += 1
        line = await self.dial()
        sent_ms = batch.sent_ms = self.world.loop.now_ms
        try:
            answer = await line.call(self.request_of([(batch, self.bytes_of(batch))], acks=1), ProduceResponse)
        except LineLostError:
            return
        self.heard(batch, answer.responses[0].partition_responses[0], sent_ms)
        line.close()

    # ---- requests

    async def _create(self, wanted: Acl) -> None:
        await self._until_answered(creation_of([wanted]), ("create", wanted), str(wanted))

    async def _delete(self, wanted: AclFilter) -> None:
        await self._until_answered(deletion_of([wanted]), ("delete", wanted), str(wanted))

    async def _until_answered(
        self, request: CreateAclsRequest | DeleteAclsRequest, asked: tuple[str, Acl | AclFilter], said: str
    ) -> None:
        """A change that ended in an error may be made all the same: the request is sent again until it is answered."""
        while True:
            line = await self.dial()
            sent_ms = self.world.loop.now_ms
            self.facts("asks", to=asked[0], of=said, by=line.address)
            error = await self._ask(line, request)
            self.facts("is told", error=error.name if error is not None else "nothing")
            line.close()
            if error is ErrorCode.NONE:
                break
            self.world.faults.count(Path.ACLS_IN_DOUBT)
            if self.world.is_healed_since(sent_ms):
                self.world.violation(f"{self.name} was told {error} of a change of ACLs though nothing fails")
            await self.pause(50, 500)
        self._changes_left -= 1
        self.world.faults.count(Path.ACLS_CREATED if asked[0] == "create" else Path.ACLS_DELETED)
        if not self._rulings.answered(asked, sent_ms, self.world.loop.now_ms):
            self.world.violation(f"{self.name} was told that {said} is done, and the metadata were not asked")

    async def _ask(self, line: Line, request: CreateAclsRequest | DeleteAclsRequest) -> ErrorCode | None:
        """None: no answer."""
        try:
            if isinstance(request, CreateAclsRequest):
                return ErrorCode((await line.call(request, CreateAclsResponse)).results[0].error_code)
            return ErrorCode((await line.call(request, DeleteAclsResponse)).filter_results[0].error_code)
        except LineLostError:
            return None
