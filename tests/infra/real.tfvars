# What a test applies with the real provider: everything but a bucket and a Postgres, for which the provider waits minutes.
name            = "check-real"
image           = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/siltstone@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
client_cidrs    = ["10.0.0.0/8"]
metrics_cidrs   = ["10.20.5.0/24"]
launch_type     = "EC2"
existing_bucket = "a-bucket-of-mine"
kms_key_arn     = "arn:aws:kms:eu-central-1:123456789012:key/6f1f3c1e-8a41-4a0c-9d3b-2f6f0c7f4f10"

network = {
  availability_zones = ["eu-central-1a", "eu-central-1b"]
}

existing_postgres = {
  host              = "postgres.example.internal"
  database          = "siltstone"
  user              = "siltstone"
  secret_arn        = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:postgres-AbCdEf"
  security_group_id = "sg-0123456789abcdef0"
}

object_store = {
  second_bucket = "quick--euc1-az1--x-s3"
}

listener = {
  tls_secret_arn = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:listener-AbCdEf"
  authentication = "CERTIFICATE"
  super_users    = ["User:CN=admin,O=Example"]
}

monitoring = {
  alarm_emails     = ["on-call@example.com"]
  collector_image  = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/aws-otel-collector:v0.43.3"
  probe_secret_arn = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:probe-AbCdEf"
}

tags                 = { team = "platform" }
permissions_boundary = "arn:aws:iam::123456789012:policy/boundary"
deletion_protection  = false
