"""The S3 store, and what its buckets and errors mean. The AWS client is imported here alone."""
