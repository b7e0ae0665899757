"""DescribeAcls, CreateAcls and DeleteAcls, keys 29 to 31, from v1 on (KIP-290: prefixed names)."""

from __future__ import annotations

from wire.schema import (
    PARTITIONS_ELEMENTS_MAX,
    Message,
    Struct,
    array,
    field,
    int8,
    int16,
    int32,
    message,
    string,
    struct,
)


@message(api_key=29, kind="request", versions="1-3", flexible="2+")
class DescribeAclsRequest(Message):
    resource_type_filter: int = field(int8, "1+")
    resource_name_filter: str | None = field(string, "1+", nullable="1+")
    pattern_type_filter: int = field(int8, "1+", default=3)
    principal_filter: str | None = field(string, "1+", nullable="1+")
    host_filter: str | None = field(string, "1+", nullable="1+")
    operation: int = field(int8, "1+")
    permission_type: int = field(int8, "1+")


@struct
class AclDescription(Struct):
    principal: str = field(string, "1+")
    host: str = field(string, "1+")
    operation: int = field(int8, "1+")
    permission_type: int = field(int8, "1+")


@struct
class DescribeAclsResource(Struct):
    resource_type: int = field(int8, "1+")
    resource_name: str = field(string, "1+")
    pattern_type: int = field(int8, "1+", default=3)
    acls: list[AclDescription] = field(array(AclDescription), "1+")


@message(api_key=29, kind="response", versions="1-3", flexible="2+")
class DescribeAclsResponse(Message):
    throttle_time_ms: int = field(int32, "1+")
    error_code: int = field(int16, "1+")
    error_message: str | None = field(string, "1+", nullable="1+")
    resources: list[DescribeAclsResource] = field(array(DescribeAclsResource), "1+")


@struct
class AclCreation(Struct):
    resource_type: int = field(int8, "1+")
    resource_name: str = field(string, "1+")
    resource_pattern_type: int = field(int8, "1+", default=3)
    principal: str = field(string, "1+")
    host: str = field(string, "1+")
    operation: int = field(int8, "1+")
    permission_type: int = field(int8, "1+")


@message(api_key=30, kind="request", versions="1-3", flexible="2+", elements_max=PARTITIONS_ELEMENTS_MAX)
class CreateAclsRequest(Message):
    creations: list[AclCreation] = field(array(AclCreation), "1+")


@struct
class AclCreationResult(Struct):
    error_code: int = field(int16, "1+")
    error_message: str | None = field(string, "1+", nullable="1+")


@message(api_key=30, kind="response", versions="1-3", flexible="2+")
class CreateAclsResponse(Message):
    throttle_time_ms: int = field(int32, "1+")
    results: list[AclCreationResult] = field(array(AclCreationResult), "1+")


@struct
class DeleteAclsFilter(Struct):
    resource_type_filter: int = field(int8, "1+")
    resource_name_filter: str | None = field(string, "1+", nullable="1+")
    pattern_type_filter: int = field(int8, "1+", default=3)
    principal_filter: str | None = field(string, "1+", nullable="1+")
    host_filter: str | None = field(string, "1+", nullable="1+")
    operation: int = field(int8, "1+")
    permission_type: int = field(int8, "1+")


@message(api_key=31, kind="request", versions="1-3", flexible="2+", elements_max=PARTITIONS_ELEMENTS_MAX)
class DeleteAclsRequest(Message):
    filters: list[DeleteAclsFilter] = field(array(DeleteAclsFilter), "1+")


@struct
class DeleteAclsMatchingAcl(Struct):
    error_code: int = field(int16, "1+")
    error_message: str | None = field(string, "1+", nullable="1+")
    resource_type: int = field(int8, "1+")
    resource_name: str = field(string, "1+")
    pattern_type: int = field(int8, "1+", default=3)
    principal: str = field(string, "1+")
    host: str = field(string, "1+")
    operation: int = field(int8, "1+")
    permission_type: int = field(int8, "1+")


@struct
class DeleteAclsFilterResult(Struct):
    error_code: int = field(int16, "1+")
    error_message: str | None = field(string, "1+", nullable="1+")
    matching_acls: list[DeleteAclsMatchingAcl] = field(array(DeleteAclsMatchingAcl), "1+")


@message(api_key=31, kind="response", versions="1-3", flexible="2+")
class DeleteAclsResponse(Message):
    throttle_time_ms: int = field(int32, "1+")
    filter_results: list[DeleteAclsFilterResult] = field(array(DeleteAclsFilterResult), "1+")
