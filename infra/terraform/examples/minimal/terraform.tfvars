# Write your own.
region              = "eu-central-1"
image               = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/siltstone@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
listener_secret_arn = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:listener-AbCdEf"
admin_secret_arn    = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:admin-AbCdEf"
alarm_emails        = ["on-call@example.com"]
