"""Which partition a record goes to, as Java's default partitioner chooses it, so that all clients agree. Pure.

A key goes by MurmurHash2 of its bytes, 32 bits, the sign bit dropped, modulo the number of partitions. A record without
a key goes where the client likes. (org.apache.kafka.common.utils.Utils.murmur2, BuiltInPartitioner.partitionForKey)
"""

from __future__ import annotations

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """MurmurHash2 with Kafka's seed, unsigned."""
    length = len(key)
    hashed = (_SEED ^ length) & _MASK
    whole = length & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * _MULTIPLIER & _MASK
        word ^= word >> 24
        hashed = (hashed * _MULTIPLIER & _MASK) ^ (word * _MULTIPLIER & _MASK)
    if length > whole:
        hashed = (hashed ^ int.from_bytes(key[whole:], "little")) * _MULTIPLIER & _MASK
    hashed = (hashed ^ hashed >> 13) * _MULTIPLIER & _MASK
    return hashed ^ hashed >> 15


def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition number of a record with this key among `partitions` of them."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
