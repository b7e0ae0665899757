"""The S3 store, and the meaning of its buckets' settings and of its errors. Only this room imports the AWS client."""
