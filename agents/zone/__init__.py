"""One GET per block and zone: the agents of a zone serve each other the blocks that they hold (docs/design.md, 4)."""
