"""Bugs of TLS: whoever shows any certificate is let in, or what was renewed is not used."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ZONE = "tests/unit/agents/zone/test_zone_tls.py"
_METRICS = "tests/unit/siltstone/processes/monitoring/test_metrics_tls.py"

TLS = (
    Mutant(
        name="any-certificate-of-the-authority-is-an-agents",
        file="agents/zone/tls.py",
        text="    if not shown & names:\n",
        replacement="    if not shown:\n",
        tests=(
            f"{_ZONE}::test_a_certificate_that_is_no_agents_is_not_served",
            f"{_ZONE}::test_nobody_is_asked_who_is_no_agent",
        ),
    ),
    Mutant(
        name="what-was-renewed-is-not-used",
        file="runtime/tls/certificates.py",
        text='self._stamps, self._refusal, self._current = stamps, "", renewed',
        replacement='self._stamps, self._refusal = stamps, ""',
        tests=(
            f"{_ZONE}::test_the_authority_changes_under_load_and_no_block_is_lost",
            f"{_METRICS}::test_new_files_are_used_by_new_connections_authorities_included",
        ),
    ),
    Mutant(
        name="a-handshake-counts-as-proof-before-it-is-over",
        file="agents/zone/tls_connection.py",
        text="        while ciphertext and self._is_open:\n",
        replacement="        self._owner.proved(self)\n        while ciphertext and self._is_open:\n",
        tests=(f"{_ZONE}::test_an_agent_is_served_among_any_number_of_sockets_that_prove_nothing",),
    ),
    Mutant(
        name="metrics-are-shown-without-a-certificate",
        file="siltstone/processes/monitoring/metrics_tls.py",
        text="request.path not in OPEN_PATHS",
        replacement="request.path in OPEN_PATHS",
        tests=(f"{_METRICS}::test_with_them_only_health_is_for_everybody",),
    ),
)
