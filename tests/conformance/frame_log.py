"""A proxy between clients and one agent: it records the frames of each connection, and the answers with their times."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from dataclasses import dataclass

from bench.servers.load_balancer import first_to_end
from tests.fixtures.faulty_proxies import ThreadedProxy
from wire.api import APIS, decode_response, read_request_header
from wire.schema import Message


@dataclass(slots=True)
class Call:
    connection: int
    api: str
    asked_s: float
    api_key: int
    version: int
    answered_s: float = math.inf
    answer: bytes = b""
    """The frame of the answer, without its size."""

    @property
    def seconds(self) -> float:
        """inf if there was no answer."""
        return self.answered_s - self.asked_s

    def answer_message(self) -> Message:
        return decode_response(self.api_key, self.version, memoryview(self.answer))[1]

    def covers(self, at_s: float) -> bool:
        return self.asked_s < at_s < self.answered_s


class FrameLog(ThreadedProxy):
    """Listens at `address` and forwards everything to `to`."""

    def __init__(self, address: str, to: tuple[str, int]) -> None:
        super().__init__(address)
        self._to = to
        self._connections = itertools.count()
        self.calls: list[Call] = []

    def of(self, api: str) -> list[Call]:
        return [call for call in self.calls if call.api == api]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = next(self._connections)
        waiting: dict[int, Call] = {}
        there_reader, there_writer = await asyncio.open_connection(*self._to)

        async def requests() -> None:
            while True:
                size = await reader.readexactly(4)
                frame = await reader.readexactly(int.from_bytes(size, "big"))
                header, _ = read_request_header(memoryview(frame))
                name = APIS[header.api_key].name
                call = Call(connection, name, time.monotonic(), header.api_key, header.api_version)
                waiting[header.correlation_id] = call
                self.calls.append(call)
                there_writer.write(size + frame)
                await there_writer.drain()

        async def answers() -> None:
            while True:
                size = await there_reader.readexactly(4)
                frame = await there_reader.readexactly(int.from_bytes(size, "big"))
                call = waiting.pop(int.from_bytes(frame[:4], "big"))
                call.answered_s, call.answer = time.monotonic(), frame
                writer.write(size + frame)
                await writer.drain()

        try:
            await first_to_end(requests(), answers())
        finally:
            there_writer.transport.abort()
