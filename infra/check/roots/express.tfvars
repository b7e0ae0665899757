# A directory bucket for L0 files, in a network that is made here, with merges on Spark.
name         = "check-express"
image        = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/siltstone@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
client_cidrs = ["10.0.0.0/8"]
spark        = {}

network = {
  availability_zones = ["eu-central-1a", "eu-central-1b"]
}

object_store = {
  second_bucket = "quick--euc1-az1--x-s3"
}

monitoring = {
  alarm_emails = ["on-call@example.com"]
}

listener = {
  tls_secret_arn = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:listener-AbCdEf"
  authentication = "SCRAM"
  super_users    = ["User:admin"]
}
