"""`siltstone cost`: what a load costs a month, and the same load on Kafka."""
