# Write your own.
region = "eu-central-1"
image  = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/siltstone:0.1.0"
