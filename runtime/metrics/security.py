"""Metrics of security: who came in, who did not, what ACLs denied, and what the audit log could not tell.

Nothing that a client chose is a label: no user, host or resource. The audit log has those.
"""

from __future__ import annotations

from runtime.metrics.declared import Declarations

CERTIFICATE = "certificate"
"""As a `mechanism`: a client's certificate of TLS."""


class SecurityMetrics:
    def __init__(self, declarations: Declarations) -> None:
        self.authentications_total = declarations.counter(
            "authentications_total",
            "Times that a client proved who it is, again on the same connection included, by SASL mechanism or by"
            " `certificate`.",
            "mechanism",
        )
        self.authentications_refused_total = declarations.counter(
            "authentications_refused_total",
            "Connections closed for want of such a proof: `credentials` (an unknown user, a wrong password, a token or"
            " certificate that is not good; not told apart here), `mechanism` (the listener does not have it),"
            " `protocol` (no SASL, or out of turn), `changed` (another user or mechanism than before), `expired` (not"
            " proved again in time), `store_away` (what is known of users may be too old) or `error`. Mechanism `none`:"
            " before one was chosen.",
            "mechanism",
            "reason",
        )
        self.acl_denials_total = declarations.counter(
            "acl_denials_total",
            "Operations on resources that no ACL allowed, told by the audit log or not; with mode `shadow` they were"
            " carried out.",
            "resource_type",
            "operation",
            "mode",
        )
        self.audit_events_dropped_total = declarations.counter(
            "audit_events_dropped_total",
            "Events that the audit log counts without telling whom they are about: lines over `log.burst.lines`"
            " (`burst`), denials over 1,000 kinds in ten seconds (`kinds`).",
            "reason",
        )

        self.postgres_password_age_seconds = declarations.gauge(
            "postgres_password_age_seconds",
            "Age of the password of Postgres, where `metadata.url` names a secret of AWS; 0 elsewhere.",
        )

    def expect_mechanism(self, mechanism: str) -> None:
        """Begin its series at 0: Prometheus sees no rise in a series that begins with its first event."""
        self.authentications_total.labels(mechanism=mechanism)
        self.authentications_refused_total.labels(mechanism=mechanism, reason="credentials")
