"""The room of merges and tables that run on Spark. Empty until its issue is built."""
