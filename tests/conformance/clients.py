"""The clients, in the order of the table."""

from __future__ import annotations

from collections.abc import Sequence

from tests.conformance.aiokafka_client import Aiokafka
from tests.conformance.confluent import Confluent
from tests.conformance.contract import Client
from tests.conformance.kafka_python import KafkaPython
from tests.conformance.kcat import Kcat
from tests.conformance.programs import FranzGo, Java, Sarama

CLIENTS: Sequence[Client] = (Confluent(), Aiokafka(), KafkaPython(), Kcat(), Java(), FranzGo(), Sarama())
