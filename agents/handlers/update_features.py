"""UpdateFeatures 0-2 (KIP-584): no feature can be raised or lowered by a client.

An agent's abilities follow from its release and from the schema, which `siltstone migrate` raises. ApiVersions lists
`transaction.version` from the moment when no older program is at work any more, and no other feature. In particular no
`group.version`: clients take that as leave to use the groups of KIP-848.
"""

from __future__ import annotations

from agents.broker import Broker
from agents.security.refusals import cluster_refusal
from agents.yielding import LoopYielder
from security.acls.values import Operation
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.update_features import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

NO_FEATURES = "features follow from the release of the agents; `siltstone migrate` upgrades a cluster"


async def handle(broker: Broker, header: RequestHeader, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    if (refused := cluster_refusal(broker.rights(), Operation.ALTER)) is not None:
        return UpdateFeaturesResponse(error_code=refused.code, error_message=str(refused))
    if not request.feature_updates:
        return UpdateFeaturesResponse(error_message=None)
    error = ErrorCode.INVALID_UPDATE_VERSION
    if header.api_version >= 2:
        return UpdateFeaturesResponse(error_code=error, error_message=NO_FEATURES)
    return UpdateFeaturesResponse(
        error_message=None,
        results=[
            UpdatableFeatureResult(feature=each.feature, error_code=error, error_message=NO_FEATURES)
            async for each in LoopYielder().through(request.feature_updates)
        ],
    )
