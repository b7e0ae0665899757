# What follows from the variables, as the outputs tell it. Nothing is made: the provider is mocked.

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

run "as_it_comes" {
  command = apply

  assert {
    condition     = output.object_store_url == "s3://silt-123456789012-eu-central-1/log?region=eu-central-1"
    error_message = "the bucket has the account and the region in its name: ${output.object_store_url}"
  }
  assert {
    condition     = endswith(output.bootstrap_servers, ":9092")
    error_message = "clients connect to port 9092: ${output.bootstrap_servers}"
  }
  assert {
    condition = alltrue([for url in values(output.metadata_urls) :
      can(regex("^postgresql://[a-z_]+@.+:5432/siltstone\\?sslmode=verify-full&sslrootcert=/opt/siltstone/rds-ca.pem(&|$)", url))
    ])
    error_message = "every process verifies Postgres by the authority of RDS"
  }
  assert {
    condition     = length(distinct(values(output.metadata_secret_arns))) == 3
    error_message = "owner, agents and compactors have a password each"
  }
  assert {
    condition     = output.log_groups == { admin = "/siltstone/silt/admin", agent = "/siltstone/silt/agent", compactor = "/siltstone/silt/compactor" }
    error_message = "log groups are named after the cluster and the process"
  }
  assert {
    condition     = output.prometheus_endpoint == null && output.roles.merge == null && output.spark_upload_commands == []
    error_message = "neither Prometheus nor Spark is made unless it is asked for"
  }
  assert {
    condition     = strcontains(output.migrate_command, "--task-definition silt-admin ") && strcontains(output.migrate_command, "--region eu-central-1 --cluster silt")
    error_message = "commands name the cluster and its region: ${output.migrate_command}"
  }
  assert {
    condition     = length(output.alarm_topic_arns) == 1
    error_message = "a topic is made, where none is named"
  }
  assert {
    condition     = length(output.network.subnet_ids) == 2 && length(output.network.route_table_ids) == 1
    error_message = "each zone has a subnet, and all share a table of routes"
  }
  assert {
    condition     = strcontains(output.start_commands[0], "silt-compactor --desired-count 1") && strcontains(output.start_commands[1], "silt-agents --desired-count 3")
    error_message = "everything starts in the numbers of the variables"
  }
}

run "with_spark_metrics_and_a_second_store" {
  command = apply

  variables {
    spark        = {}
    monitoring   = { collector_image = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/aws-otel-collector:v0.43.3" }
    object_store = { client = "obstore", second_bucket = "quick--euc1-az1--x-s3" }
    compactors   = 2
  }

  assert {
    condition     = output.object_store_url == "s3://silt-123456789012-eu-central-1/log?region=eu-central-1&client=obstore"
    error_message = "another client is named in the URL: ${output.object_store_url}"
  }
  assert {
    condition     = output.prometheus_endpoint != null && output.roles.merge != null && length(output.spark_upload_commands) == 2
    error_message = "Prometheus and Spark are made where they are asked for"
  }
  assert {
    condition     = strcontains(output.stop_commands[length(output.stop_commands) - 1], "cancel-job-run")
    error_message = "merges on EMR are cancelled when everything stops"
  }
  assert {
    condition     = strcontains(output.start_commands[0], "silt-compactor --desired-count 2")
    error_message = "everything starts in the numbers of the variables"
  }
}

run "with_what_is_there_already" {
  command = apply

  variables {
    network          = null
    existing_network = { vpc_id = "vpc-0123456789abcdef0", subnet_ids = ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"] }
    existing_bucket  = "records"
    prefix           = "silt/log"
    existing_postgres = {
      host              = "postgres.example.internal"
      port              = 6432
      database          = "records"
      user              = "owner"
      secret_arn        = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:postgres-AbCdEf"
      security_group_id = "sg-0123456789abcdef0"
      ca_path           = "/etc/ca.pem"
    }
  }

  assert {
    condition     = output.object_store_url == "s3://records/silt/log?region=eu-central-1"
    error_message = "the bucket is the one that was given: ${output.object_store_url}"
  }
  assert {
    condition     = startswith(output.metadata_urls["owner"], "postgresql://owner@postgres.example.internal:6432/records?sslmode=verify-full&sslrootcert=/etc/ca.pem")
    error_message = "Postgres is the one that was given: ${output.metadata_urls["owner"]}"
  }
  assert {
    condition     = output.metadata_secret_arns["owner"] == "arn:aws:secretsmanager:eu-central-1:123456789012:secret:postgres-AbCdEf"
    error_message = "the owner's password is the one that was given"
  }
  assert {
    condition     = output.network.vpc_id == "vpc-0123456789abcdef0" && length(output.network.route_table_ids) == 0
    error_message = "the network is the one that was given, with its own way to S3"
  }
}
