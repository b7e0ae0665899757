"""The partition of a key, chosen as Java's default partitioner does, so that all clients agree. Pure.

The partition is MurmurHash2 of the key's bytes (32 bits, without the sign bit) modulo the number of partitions. For a
record without a key the client is free to choose. (org.apache.kafka.common.utils.Utils.murmur2,
BuiltInPartitioner.partitionForKey)
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
    # Java's `toPositive`: it drops the sign bit, which `abs` would not do for the least integer.
    return (murmur2(key) & 0x7FFFFFFF) % partitions
