"""ApiVersions 0-4 (KIP-35, KIP-511): the versions that this agent speaks. A request of a newer version is answered in
v0."""

from __future__ import annotations

import re

from agents.broker import Broker
from agents.request_context import current_request
from wire.api import APIS, RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(broker: Broker, header: RequestHeader, request: ApiVersionsRequest) -> ApiVersionsResponse:
    answer = answer_to(header.api_version, request)
    if header.api_version >= 3 and not answer.error_code and (asking := current_request()) is not None:
        asking.client.software = request.client_software_name
    return answer


def answer_to(version: int, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """A client name or version with odd characters gets INVALID_REQUEST, as in Kafka."""
    names = (request.client_software_name, request.client_software_version)
    if version >= 3 and not all(_SOFTWARE.fullmatch(name) for name in names):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(api_keys=_advertised())


def unsupported() -> ApiVersionsResponse:
    """For a request whose version we do not know: the body is not read; the ranges let the client step down."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_advertised())


def _advertised() -> list[ApiVersion]:
    return [
        ApiVersion(api_key=api.key, min_version=api.advertised[0], max_version=api.advertised[1])
        for api in APIS.values()
    ]
