"""A stand-in for the AWS provider: the real schemas, no AWS.

It speaks Terraform's plugin protocol, version 5, on a socket. `TF_REATTACH_PROVIDERS` tells Terraform where, as for a
provider in a debugger: no registry is asked, nothing is installed, and one server answers every run of Terraform.

A plan equals the real provider's: computed values are unknown, so `count = length(unknown)` fails here as it would
there. An apply is a rehearsal: it makes nothing and replaces unknown values by plausible ones, so that the policy scan
can read the documents and addresses that are made of them. It knows only new resources: no update, no destroy, no
import.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, cast

import grpc

from infra.check.stand_in import plausible
from infra.check.stand_in.schema import Block, Schemas, schema_message
from infra.check.stand_in.values import (
    DamagedMessage,
    Value,
    bytes_field,
    decoded,
    encoded,
    message,
    parsed,
    text_field,
)
from infra.check.terraform import Plugin

SERVICE: Final = "tfplugin5.Provider"
SOURCE: Final = "hashicorp/aws"

Method = Callable[[bytes], bytes]


class Provider:
    """The methods that Terraform calls for validate and plan, each from request to response."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._schema_response = self._schema()

    def methods(self) -> dict[str, Method]:
        return {
            "GetSchema": lambda _: self._schema_response,
            "PrepareProviderConfig": lambda request: message((1, bytes_field(parsed(request), 1))),
            "ValidateResourceTypeConfig": lambda request: self._validate(request, self._schemas.resources),
            "ValidateDataSourceConfig": lambda request: self._validate(request, self._schemas.data_sources),
            "Configure": lambda _: b"",
            "PlanResourceChange": self._plan,
            "ReadDataSource": self._read,
            "ApplyResourceChange": self._apply,
            "GetResourceIdentitySchemas": lambda _: b"",
            "Stop": lambda _: b"",
        }

    def _schema(self) -> bytes:
        """GetProviderSchema.Response"""

        def entries(number: int, blocks: dict[str, Block]) -> Iterator[tuple[int, bytes]]:
            return ((number, message((1, name), (2, schema_message(block)))) for name, block in blocks.items())

        return message(
            (1, schema_message(self._schemas.provider)),
            *entries(2, self._schemas.resources),
            *entries(3, self._schemas.data_sources),
        )

    def _validate(self, request: bytes, blocks: dict[str, Block]) -> bytes:
        fields = parsed(request)
        type_name = text_field(fields, 1)
        config = decoded(bytes_field(fields, 2))
        if type_name not in blocks or not isinstance(config, dict):
            raise DamagedMessage(f"a configuration of {type_name} that is no object of a known type")
        return b""

    def _plan(self, request: bytes) -> bytes:
        fields = parsed(request)
        type_name = text_field(fields, 1)
        proposed = decoded(bytes_field(fields, 3))
        if isinstance(proposed, dict):
            proposed = cast(Value, plausible.planned(self._schemas.resources[type_name], proposed))
        return message((1, encoded(proposed)))

    def _read(self, request: bytes) -> bytes:
        fields = parsed(request)
        type_name = text_field(fields, 1)
        config = decoded(bytes_field(fields, 2))
        if not isinstance(config, dict):
            raise DamagedMessage(f"a configuration of {type_name} that is no object")
        state = plausible.data_source(self._schemas.data_sources[type_name], type_name, config)
        return message((1, encoded(cast(Value, state))))

    def _apply(self, request: bytes) -> bytes:
        fields = parsed(request)
        type_name = text_field(fields, 1)
        plan = decoded(bytes_field(fields, 3))
        if not isinstance(plan, dict):
            raise DamagedMessage(f"a plan to destroy a {type_name}")
        state = plausible.applied(self._schemas.resources[type_name], type_name, plan)
        return message((1, encoded(cast(Value, state))))


class Handler(grpc.GenericRpcHandler):
    """Messages stay bytes: the methods read and write them."""

    def __init__(self, provider: Provider) -> None:
        self._methods = {f"/{SERVICE}/{name}": method for name, method in provider.methods().items()}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        method = self._methods.get(handler_call_details.method)
        if method is None:
            return None

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                return method(request)
            except (DamagedMessage, KeyError, ValueError) as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{type(error).__name__}: {error}")
                raise

        return grpc.unary_unary_rpc_method_handler(answer)


@contextmanager
def serving(schemas: Schemas) -> Generator[Plugin]:
    """Serve until the block ends."""
    with tempfile.TemporaryDirectory(prefix="infra-check-") as folder, ThreadPoolExecutor(max_workers=8) as threads:
        socket = Path(folder) / "provider.sock"
        server = grpc.server(threads)
        server.add_generic_rpc_handlers((Handler(Provider(schemas)),))
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        try:
            reattach = json.dumps({
                SOURCE: {
                    "Protocol": "grpc",
                    "ProtocolVersion": 5,
                    "Pid": os.getpid(),
                    "Test": True,  # so that Terraform does not end this process
                    "Addr": {"Network": "unix", "String": str(socket)},
                }
            })  # fmt: skip
            name = f"a stand-in with the schemas of {SOURCE} {schemas.provider_version}"
            yield Plugin(name, {"TF_REATTACH_PROVIDERS": reattach})
        finally:
            server.stop(grace=None).wait()
