"""The end of every partition as this agent knows it: the follower, the index of all live files, and parked readers."""
