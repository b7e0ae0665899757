"""OAUTHBEARER (RFC 7628, KIP-255, KIP-768): clients prove who they are by a token that somebody else has signed."""
