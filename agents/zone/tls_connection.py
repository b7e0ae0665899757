"""A neighbour's connection whose bytes pass through TLS, by the layer that serves clients too: a peer that says nothing
costs a few KiB and is counted from its first packet on.
"""

from __future__ import annotations

from collections.abc import Sequence

from agents.listeners.tls import AHEAD_BYTES, FEED_BYTES, TlsError, TlsLayer, TlsState
from agents.zone.connection import Owner, ZoneConnection
from agents.zone.tls import NotAnAgentError, ZoneTls, must_be_an_agent
from wire.schema import Octets


class TlsZoneConnection(ZoneConnection):
    slice_bytes = AHEAD_BYTES

    def __init__(self, owner: Owner, tls: ZoneTls) -> None:
        super().__init__(owner)
        current = tls.current()
        self._names = current.names
        self._layer = TlsLayer(current.context)
        self._ciphertext = bytearray()
        self._was_open = False

    def get_buffer(self, sizehint: int) -> memoryview:
        # Only while bytes arrive: an idle connection keeps none.
        self._ciphertext = bytearray(FEED_BYTES)
        return memoryview(self._ciphertext)

    def buffer_updated(self, nbytes: int) -> None:
        arrived, self._ciphertext = memoryview(self._ciphertext)[:nbytes], bytearray()
        try:
            self._feed(arrived)
        except (TlsError, NotAnAgentError) as error:
            self._owner.refused("a connection to the zone's port failed", str(error))
            self._say()
            # Without waiting for the alert to be taken by whoever it is.
            self.end()

    def _feed(self, ciphertext: memoryview) -> None:
        layer = self._layer
        while ciphertext and self._is_open:
            ciphertext = ciphertext[layer.feed(ciphertext) :]
            if layer.state is TlsState.OPEN and not self._was_open:
                must_be_an_agent(layer.peer_certificate, self._names)
                self._was_open = True
                self._owner.proved(self)
            while self._is_open and (read := layer.read_into(super().get_buffer(-1))):
                self._took(read)
        self._say()
        if layer.state is TlsState.PEER_CLOSED:
            self.end()

    @property
    def _is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def _say(self) -> None:
        said = self._layer.take_outgoing()
        if said and self._transport is not None:
            self._transport.write(said)

    def _encoded(self, parts: Sequence[Octets]) -> Sequence[Octets]:
        return self._layer.wrap(parts)
