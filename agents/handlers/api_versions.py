"""ApiVersions 0-4 (KIP-35, KIP-511): the versions that this agent speaks. A request of a newer version is answered in
v0.

Of Kafka's features (KIP-584) it tells one, `transaction.version`, once transactions may be used: clients take it as
leave to use the second protocol of KIP-890. The epoch of the features is 0 from then on, for it never changes again.
"""

from __future__ import annotations

import re

from agents.broker import Broker
from agents.features import TRANSACTION_VERSION, TRANSACTION_VERSION_MAX, Features
from agents.request_context import current_request
from wire.api import APIS, RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(broker: Broker, header: RequestHeader, request: ApiVersionsRequest) -> ApiVersionsResponse:
    answer = answer_to(header.api_version, request, broker.features)
    if header.api_version >= 3 and not answer.error_code and (asking := current_request()) is not None:
        asking.client.software = request.client_software_name
    return answer


def answer_to(version: int, request: ApiVersionsRequest, features: Features) -> ApiVersionsResponse:
    """A client name or version with odd characters gets INVALID_REQUEST, as in Kafka."""
    names = (request.client_software_name, request.client_software_version)
    if version >= 3 and not all(_SOFTWARE.fullmatch(name) for name in names):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    answer = ApiVersionsResponse(api_keys=_advertised())
    if features.transactions:
        most = TRANSACTION_VERSION_MAX
        # Clients of older versions cannot read a feature whose least version is 0; Kafka leaves it out for them.
        if version >= 4:
            answer.supported_features = [SupportedFeatureKey(name=TRANSACTION_VERSION, min_version=0, max_version=most)]
        answer.finalized_features_epoch = 0
        answer.finalized_features = [
            FinalizedFeatureKey(name=TRANSACTION_VERSION, max_version_level=most, min_version_level=most)
        ]
    return answer


def unsupported() -> ApiVersionsResponse:
    """For a request whose version we do not know: the body is not read; the ranges let the client step down."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_advertised())


def _advertised() -> list[ApiVersion]:
    return [
        ApiVersion(api_key=api.key, min_version=api.advertised[0], max_version=api.advertised[1])
        for api in APIS.values()
    ]
