"""The room of merges L0 -> L1 -> L2, dedupe, retention and the janitor. Empty until its issue is built."""
