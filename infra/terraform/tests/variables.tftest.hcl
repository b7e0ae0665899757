# Each run gives wrong values to many variables at once, and each of them must be refused. A variable with several
# validations is in several runs: the first run breaks the first validation of each, and so on. infra/check counts them.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  name         = "silt"
  image        = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/siltstone@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
  client_cidrs = ["10.0.0.0/8"]
  network      = { availability_zones = ["eu-central-1a", "eu-central-1b"] }
  listener = {
    tls_secret_arn = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:listener-AbCdEf"
    authentication = "SCRAM"
    super_users    = ["User:admin"]
  }
}

run "first" {
  command = plan

  variables {
    name                 = "Silt"
    image                = "siltstone:latest"
    cpu_architecture     = "amd64"
    launch_type          = "LAMBDA"
    instance_type        = "large"
    agents               = { count_min = 3, count_max = 2 }
    compactors           = 1.5
    settings             = { "SILTSTONE_LOG_LEVEL" = "debug" }
    spark                = { release_label = "latest" }
    network              = null
    client_cidrs         = ["0.0.0.0/0"]
    metrics_cidrs        = ["10.0.0.0/4"]
    existing_bucket      = "arn:aws:s3:::records"
    prefix               = "/log"
    object_store         = { client = "boto3" }
    noncurrent_days      = -1
    kms_key_arn          = "arn:aws:kms:eu-central-1:123456789012:alias/siltstone"
    postgres             = { instance_class = "m7g.large" }
    existing_postgres    = { host = "postgres", database = "siltstone", user = "siltstone", secret_arn = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:postgres", security_group_id = "sg-0123456789abcdef0", ca_path = "ca.pem" }
    monitoring           = { log_retention_days = 31 }
    tags                 = { Name = "silt" }
    permissions_boundary = "boundary"
    listener             = { tls_secret_arn = "-----BEGIN PRIVATE KEY-----", authentication = "SCRAM", super_users = ["User:admin"] }
  }

  expect_failures = [
    var.name, var.image, var.cpu_architecture, var.launch_type, var.instance_type, var.agents, var.compactors, var.settings,
    var.spark, var.network, var.client_cidrs, var.metrics_cidrs, var.existing_bucket, var.prefix, var.object_store,
    var.noncurrent_days, var.kms_key_arn, var.postgres, var.existing_postgres, var.monitoring, var.tags,
    var.permissions_boundary, var.listener,
  ]
}

run "second" {
  command = plan

  variables {
    agents            = { cpu_percent = 95 }
    settings          = { "insecure" = "true" }
    spark             = { vcpu_max = 4 }
    network           = { availability_zones = ["eu-central-1a"] }
    object_store      = { second_bucket = "s3://quick" }
    postgres          = { engine_version = "14" }
    existing_postgres = { host = "postgres", database = "siltstone", user = "siltstone", secret_arn = "a password", security_group_id = "sg-0123456789abcdef0" }
    monitoring        = { alarm_topic_arns = ["on-call"] }
    listener          = { tls_secret_arn = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:listener-AbCdEf", authentication = "NONE", super_users = ["User:admin"] }
  }

  expect_failures = [
    var.agents, var.settings, var.spark, var.network, var.object_store, var.postgres, var.existing_postgres, var.monitoring,
    var.listener,
  ]
}

run "third" {
  command = plan

  variables {
    agents       = { memory_mib = 3000 }
    settings     = { "produce.linger.ms" = "100", "produce.lingers.ms" = "100" }
    network      = { availability_zones = ["eu-central-1a", "eu-central-1b"], vpc_cidr = "52.0.0.0/16" }
    object_store = { second_prefix = "log/" }
    postgres     = { backup_window = "at night" }
    monitoring   = { alarm_topic_arns = ["arn:aws:sns:eu-central-1:123456789012:on-call"], alarm_emails = ["on-call@example.com"] }
    listener     = { tls_secret_arn = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:listener-AbCdEf", authentication = "SCRAM", super_users = ["User:ANONYMOUS"] }
  }

  expect_failures = [var.agents, var.settings, var.network, var.object_store, var.postgres, var.monitoring, var.listener]
}

run "fourth" {
  command = plan

  variables {
    postgres   = { storage_gib = 10 }
    monitoring = { alarm_emails = ["on-call"] }
    listener   = { tls_secret_arn = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:listener-AbCdEf", authentication = "SCRAM", super_users = ["User:admin"], admin_secret_arn = "hunter2" }
  }

  expect_failures = [var.postgres, var.monitoring, var.listener]
}

run "fifth" {
  command = plan

  variables {
    monitoring = { group_lag_s = -1 }
  }

  expect_failures = [var.monitoring]
}

run "sixth" {
  command = plan

  variables {
    monitoring = { collector_image = "collector" }
  }

  expect_failures = [var.monitoring]
}

run "seventh" {
  command = plan

  variables {
    monitoring = { probe_secret_arn = "sasl.password=hunter2" }
  }

  expect_failures = [var.monitoring]
}

run "eighth" {
  command = plan

  variables {
    monitoring = { restore_drill_schedule = "weekly" }
  }

  expect_failures = [var.monitoring]
}

# network depends on it, and is not looked at where it is refused
run "one_subnet" {
  command = plan

  variables {
    network          = null
    existing_network = { vpc_id = "vpc-0123456789abcdef0", subnet_ids = ["subnet-0123456789abcdef0"] }
  }

  expect_failures = [var.existing_network]
}

run "an_image_of_another_region" {
  command = plan

  variables {
    image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/siltstone@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
  }

  expect_failures = [data.aws_region.current]
}

run "a_certificate_of_another_region" {
  command = plan

  variables {
    listener = {
      tls_secret_arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:listener-AbCdEf"
      authentication = "SCRAM"
      super_users    = ["User:admin"]
    }
  }

  expect_failures = [data.aws_region.current]
}

run "an_administrator_of_another_region" {
  command = plan

  variables {
    listener = {
      tls_secret_arn   = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:listener-AbCdEf"
      admin_secret_arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:admin-AbCdEf"
      authentication   = "SCRAM"
      super_users      = ["User:admin"]
    }
  }

  expect_failures = [data.aws_region.current]
}

run "a_probe_of_another_region" {
  command = plan

  variables {
    monitoring = { probe_secret_arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:probe-AbCdEf" }
  }

  expect_failures = [data.aws_region.current]
}

run "a_topic_of_another_region" {
  command = plan

  variables {
    monitoring = { alarm_topic_arns = ["arn:aws:sns:us-east-1:123456789012:on-call"] }
  }

  expect_failures = [data.aws_region.current]
}

run "a_key_of_another_region" {
  command = plan

  variables {
    kms_key_arn = "arn:aws:kms:us-east-1:123456789012:key/6f1f3c1e-8a41-4a0c-9d3b-2f6f0c7f4f10"
  }

  expect_failures = [data.aws_region.current]
}

run "a_password_of_another_region" {
  command = plan

  variables {
    existing_postgres = {
      host              = "postgres.example.internal"
      database          = "siltstone"
      user              = "siltstone"
      secret_arn        = "arn:aws:secretsmanager:us-east-1:123456789012:secret:postgres-AbCdEf"
      security_group_id = "sg-0123456789abcdef0"
    }
  }

  expect_failures = [data.aws_region.current]
}
