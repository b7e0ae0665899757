# Network, bucket and Postgres are there already.
name            = "check-brought"
image           = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/siltstone@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
client_cidrs    = ["10.0.0.0/8"]
existing_bucket = "a-bucket-of-mine"

existing_network = {
  vpc_id     = "vpc-0123456789abcdef0"
  subnet_ids = ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"]
}

existing_postgres = {
  host              = "postgres.example.internal"
  database          = "siltstone"
  user              = "siltstone"
  secret_arn        = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:postgres-AbCdEf"
  security_group_id = "sg-0123456789abcdef0"
}

monitoring = {
  alarm_emails = ["on-call@example.com"]
}

listener = {
  tls_secret_arn = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:listener-AbCdEf"
  authentication = "SCRAM"
  super_users    = ["User:admin"]
}

tags                 = { team = "platform" }
permissions_boundary = "arn:aws:iam::123456789012:policy/boundary"
