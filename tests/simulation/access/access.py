"""The ACLs of a run: which runs have them, the rights that clients begin with, and the watch on calls of the metadata.

A run with ACLs has a super user, who also changes ACLs (`changes.py`), clients with rights that nobody takes from them,
and guests whose rights come and go (`guests.py`). Whatever is drawn for this comes from a random stream of its own, so
that runs without ACLs stay what they are.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from metadata.contract.l0_commit import CommitL0, Committed
from security.acls.values import WILDCARD, Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from tests.simulation.access.principals import PRODUCER, READER, RESOURCES
from tests.simulation.access.rulings import Rulings
from tests.simulation.book import TopicPartition
from tests.simulation.services import finish

if TYPE_CHECKING:
    from tests.simulation.access.guests import Guest
    from tests.simulation.world import World

SHARE = 0.2
"""The share of runs with ACLs."""


def _stream(seed: int) -> random.Random:
    return random.Random(f"{seed} acls")


def has_acls(seed: int) -> bool:
    return _stream(seed).random() < SHARE


def acl(principal: str, operation: Operation, kind: ResourceType, name: str) -> Acl:
    return Acl(
        resource_type=kind,
        pattern_type=PatternType.LITERAL,
        resource_name=name,
        principal=principal,
        host=WILDCARD,
        operation=operation,
        permission=Permission.ALLOW,
    )


class Access:
    """The ACLs of one run."""

    def __init__(self, world: World) -> None:
        self.rng = _stream(world.seed)
        self.rng.random()  # drawn by `has_acls`
        self.rulings = Rulings()
        self.committed_ms: dict[tuple[TopicPartition, int], float] = {}
        """When a batch was committed, by its place and offset."""
        self._change_id = 0
        self._world = world

    def begin(self, topics: Sequence[str], guests: Sequence[Guest]) -> None:
        """Once the topics that stay are made, before any agent starts."""
        self._watch_changes()
        self._watch_commits()
        rights = [
            acl(who, operation, ResourceType.TOPIC, topic)
            for topic in topics
            for who, operation in ((PRODUCER, Operation.WRITE), (READER, Operation.READ))
        ]
        rights += [
            acl(guest.principal, *resource)
            for guest in guests
            for resource in dict.fromkeys(RESOURCES)
            if self.rng.random() < 0.6
        ]
        finish(self._world.server.security.create_acls(rights))

    def _watch_changes(self) -> None:
        world, security = self._world, self._world.server.security
        create_acls, delete_acls = security.create_acls, security.delete_acls

        async def created(acls: Sequence[Acl]) -> int:
            change_id = await create_acls(acls)
            self.rulings.carried_out(world.loop.now_ms, ("create", *acls), world.server.database.acls)
            return self._latest(change_id)

        async def deleted(filters: Sequence[AclFilter]) -> tuple[int, Sequence[Sequence[Acl]]]:
            change_id, gone = await delete_acls(filters)
            self.rulings.carried_out(world.loop.now_ms, ("delete", *filters), world.server.database.acls)
            return self._latest(change_id), gone

        security.create_acls, security.delete_acls = created, deleted  # type: ignore[method-assign]

    def _latest(self, change_id: int) -> int:
        """A change that is repeated has the id of the last one. Here its row may be forgotten within milliseconds, and
        not after a day, so it is remembered beside the metadata."""
        self._change_id = max(change_id, self._change_id)
        return self._change_id

    def _watch_commits(self) -> None:
        world, agents = self._world, self._world.server.agents
        commit_l0 = agents.commit_l0

        async def noted(request: CommitL0) -> Committed:
            committed = await commit_l0(request)
            places = self._places()
            for batch, result in zip(request.batches, committed.results, strict=True):
                if not result.error and batch.partition_id in places:
                    place = (places[batch.partition_id], result.base_offset)
                    self.committed_ms.setdefault(place, world.loop.now_ms)
            return committed

        agents.commit_l0 = noted  # type: ignore[method-assign]

    def _places(self) -> dict[int, TopicPartition]:
        topics = self._world.server.database.topics.values()
        return {id_: (topic.name, number) for topic in topics for number, id_ in enumerate(topic.partition_ids)}
