# Values for examples/minimal against an emulator: see endpoints_override.tf.example.
region = "us-east-1"
image  = "000000000000.dkr.ecr.us-east-1.amazonaws.com/siltstone:0.1.0"
