"""The meaning of an S3 client's error: done, not done, or unknown; worth another try, or not. Pure.

The rule for a request that writes: only an answer that says so, or a connection that was never established, proves that
nothing was written. Everything else (reset, time-out, 500, 502, a proxy's 503) leaves it in doubt. Note that
aiobotocore raises EndpointConnectionError both for a refused connection and for one that broke while the body was being
sent.
"""

from __future__ import annotations

from typing import Any, cast

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    ProxyConnectionError,
    SSLError,
)

from storage.objects import (
    ChecksumMismatchError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStoreError,
    PutInDoubtError,
    StoreFullError,
    StoreMisconfiguredError,
    StoreUnavailableError,
)

CLIENT_ERRORS = (ClientError, BotoCoreError, aiohttp.ClientError, TimeoutError, OSError)
"""The errors that a call of the client raises for reasons outside this process."""

_THROTTLED = {
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "RequestLimitExceeded",
    "TooManyRequests",
    "ConditionalRequestConflict",  # 409: another writer is writing the key at this moment; ask again
    "OperationAborted",
    "XMinioServerNotInitialized",
}
_FULL = {"XMinioStorageFull", "QuotaExceeded", "InsufficientStorage"}
_DAMAGED = {"BadDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch", "InvalidDigest"}
_ABSENT = {"NoSuchKey", "404", "NotFound"}
FIRST_SETTING = "object.store.url"
_REMEDIES = {
    "NoSuchBucket": "create the bucket or correct SETTING",
    "RequestTimeTooSkewed": "set this machine's clock (NTP)",
    "InvalidAccessKeyId": "check the AWS credentials of this process",
    "SignatureDoesNotMatch": "check the AWS credentials of this process",
    "ExpiredToken": "renew the AWS credentials of this process",
    "PermanentRedirect": "add ?region= with the bucket's region to SETTING",
    "AuthorizationHeaderMalformed": "add ?region= with the bucket's region to SETTING",
    "IllegalLocationConstraintException": "add ?region= with the bucket's region to SETTING",
    "NotImplemented": "use a store that honours If-None-Match (`siltstone doctor` probes it)",
}
_RIGHTS = (
    "the role needs s3:GetObject, PutObject, DeleteObject, AbortMultipartUpload and ListBucket, or for a directory"
    " bucket s3express:CreateSession"
)


def translate(
    error: BaseException,
    *,
    place: str,
    doing: str,
    key: str = "",
    writes: bool = False,
    setting: str = FIRST_SETTING,
) -> ObjectStoreError:
    """Our error for one of CLIENT_ERRORS.

    `place` names bucket and endpoint, `doing` the operation. `writes` marks requests that publish an object: a lost
    answer then means doubt, not failure. `setting` is the one that names the store.
    """
    if isinstance(error, ClientError):
        return _answered(error, place=place, doing=doing, key=key, writes=writes, setting=setting)
    said = f"{doing} {key!r} in {place}: {_text(error)}"
    if isinstance(error, SSLError | aiohttp.ClientSSLError):
        return StoreMisconfiguredError(f"TLS to {place} failed: {error}", remedy="check the endpoint and AWS_CA_BUNDLE")
    if _never_sent(error):
        return StoreUnavailableError(f"cannot reach {place}: {_text(error)}")
    if _is_transport(error):
        return PutInDoubtError(f"no answer to {said}") if writes else StoreUnavailableError(f"no answer to {said}")
    if isinstance(error, CredentialRetrievalError):
        return StoreUnavailableError(f"no AWS credentials now for {place}: {error}")
    # The remaining errors of botocore are about this process's configuration: credentials, profile, region, endpoint.
    return StoreMisconfiguredError(
        f"cannot ask {place}: {error}", remedy="check the AWS credentials, profile and region of this process"
    )


def _answered(error: ClientError, *, place: str, doing: str, key: str, writes: bool, setting: str) -> ObjectStoreError:
    # The stubs promise fields that a bare HTTP error (HEAD, a proxy) does not have.
    response = cast("dict[str, Any]", error.response)
    code = str(response.get("Error", {}).get("Code", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    # A proxy's page has no code; the client then repeats the status.
    answer = str(status) if code in {"", str(status)} else f"{status} {code}"
    said = f"{answer} to {doing} {key!r} in {place}"
    # By code before status: a 403 may mean a wrong clock or missing rights, and these have different remedies.
    if code == "NoSuchBucket" or code in _REMEDIES:
        return StoreMisconfiguredError(said, remedy=_REMEDIES[code].replace("SETTING", setting))
    if code == "NoSuchUpload":
        # The upload was completed (its answer lost) or aborted: only the object itself can tell.
        return PutInDoubtError(said) if writes else ObjectStoreError(said)
    if code in _FULL or status == 507:
        return StoreFullError(said, remedy="add space to the object store or raise the quota")
    if code in _THROTTLED or status == 429:
        return StoreUnavailableError(said)
    if code in _DAMAGED:
        return ChecksumMismatchError(key)
    # HEAD has no body and so no code: the status is all there is.
    if code in _ABSENT or (status == 404 and key):
        return ObjectNotFoundError(key)
    if status == 412:
        return ObjectExistsError(key)
    if status in (301, 307, 401, 403):
        return StoreMisconfiguredError(said, remedy=_RIGHTS)
    if status >= 500 or code == "RequestTimeout" or status == 0:
        return PutInDoubtError(said) if writes else StoreUnavailableError(said)
    return ObjectStoreError(f"{said}: {response.get('Error', {}).get('Message', '')}")


def _never_sent(error: BaseException) -> bool:
    if isinstance(error, ConnectTimeoutError | ProxyConnectionError):
        return True
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return True  # of a direct request
    if isinstance(error, EndpointConnectionError):
        cause = cast("dict[str, object]", error.kwargs).get("error")
        # Only a failed connect proves that nothing was sent; see the module's docstring.
        return isinstance(cause, aiohttp.ClientConnectorError) or cause is None
    return False


def _is_transport(error: BaseException) -> bool:
    """Whether the error is one of transport, including time-outs and answers that broke off."""
    return isinstance(
        error,
        EndpointConnectionError
        | ConnectionClosedError
        | HTTPClientError
        | IncompleteReadError
        | aiohttp.ClientError
        | TimeoutError
        | OSError,
    )


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
