# Write your own.
region               = "eu-central-1"
image                = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/siltstone@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
collector_image      = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/aws-otel-collector:v0.43.3"
kms_key_arn          = "arn:aws:kms:eu-central-1:123456789012:key/6f1f3c1e-8a41-4a0c-9d3b-2f6f0c7f4f10"
alarm_topic_arns     = ["arn:aws:sns:eu-central-1:123456789012:on-call"]
listener_secret_arn  = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:listener-AbCdEf"
admin_secret_arn     = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:admin-AbCdEf"
probe_secret_arn     = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:probe-AbCdEf"
permissions_boundary = "arn:aws:iam::123456789012:policy/boundary"
