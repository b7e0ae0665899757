"""Merges L0 -> L1 -> L2, dedupe, retention and deletion: the compactor process."""
