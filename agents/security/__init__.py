"""What an agent knows and decides about its clients: who they are, what they may do, how much they may do."""
