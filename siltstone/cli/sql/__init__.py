"""`siltstone sql`: DuckDB over topics, read without an agent."""
