"""Topics as this agent knows them: the cache, ids looked up once, entries of Metadata answers, changes of configs."""
