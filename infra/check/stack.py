"""The resources that a root module would make, in the form that the policy rules read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from infra.check.terraform import Resource


@dataclass(frozen=True, slots=True)
class Violation:
    resource: Resource
    message: str
    remedy: str


class Stack:
    """All resources of one root module."""

    def __init__(self, root: str, resources: tuple[Resource, ...]) -> None:
        self.root = root
        self._by_type: dict[str, list[Resource]] = {}
        for resource in resources:
            self._by_type.setdefault(resource.type, []).append(resource)

    def of(self, *types: str) -> list[Resource]:
        return [resource for kind in types for resource in self._by_type.get(kind, [])]

    def all(self) -> Iterator[Resource]:
        for resources in self._by_type.values():
            yield from resources

    def for_bucket(self, kind: str, bucket: Resource) -> list[Resource]:
        """The resources of this type that belong to this bucket."""
        names = {bucket.values.get("id"), bucket.values.get("bucket")}
        return [resource for resource in self.of(kind) if resource.values.get("bucket") in names]


Rule: TypeAlias = Callable[[Stack], Iterator[Violation]]


def blocks(values: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The nested blocks of this name; empty if there are no such blocks."""
    found: object = values.get(name) or []
    return cast("list[dict[str, Any]]", [found] if isinstance(found, dict) else found)
