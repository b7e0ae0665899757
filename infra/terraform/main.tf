# Siltstone on AWS: calls every module, and passes the outputs of one to the others.

locals {
  code_prefix = "${var.prefix}-code" # beside the prefix of the records, because nothing else may be below it

  # APIs that tasks, and ECS itself, need: in a VPC without internet access each is reached through an endpoint
  endpoint_services = toset(concat(
    ["ecr.api", "ecr.dkr", "logs", "secretsmanager"],
    var.launch_type == "EC2" ? ["ecs", "ecs-agent", "ecs-telemetry"] : [],
    var.spark == null ? [] : ["emr-serverless"],
    var.monitoring.collector_image == null ? [] : ["aps-workspaces"],
  ))

  # The regions of images in ECR, read from the host name of the registry: ACCOUNT.dkr.ecr.REGION.amazonaws.com, or
  # ACCOUNT.dkr-ecr.REGION.on.aws.
  registry_regions = flatten([
    for image in compact([var.image, var.monitoring.collector_image]) : try(regex("^[0-9]{12}\\.dkr[.-]ecr(?:-fips)?\\.([a-z0-9-]+)\\.", image), [])
  ])

  # What is asked for in the region of the cluster alone: secrets and the key by ECS, S3 and RDS, topics by CloudWatch
  regional_arns = compact(concat(
    [var.listener.tls_secret_arn, var.listener.admin_secret_arn, var.monitoring.probe_secret_arn],
    [try(var.existing_postgres.secret_arn, null), var.kms_key_arn],
    var.monitoring.alarm_topic_arns,
  ))

  setting_names = split("\n", trimspace(file("${path.module}/settings.txt"))) # written by infra/check

  environment = merge(
    { for name, value in var.settings : "SILTSTONE_${upper(replace(name, ".", "_"))}" => value },
    {
      SILTSTONE_OBJECT_STORE_URL = "s3://${module.storage.bucket}/${var.prefix}?${local.url_query}"
      # Figures and health alone, which the load balancer and Prometheus ask for without credentials. Here the security
      # groups decide who can connect.
      SILTSTONE_METRICS_INSECURE = "true"
      SILTSTONE_METRICS_LISTEN   = "0.0.0.0:9644"
      SILTSTONE_LOG_FORMAT       = "json"
      # the alarms read them in the log
      SILTSTONE_LOG_FIGURES_INTERVAL_MS = "60000"
    },
    local.second == null ? {} : {
      SILTSTONE_PRODUCE_STORE_URL    = "s3://${var.object_store.second_bucket}/${var.object_store.second_prefix}?${local.url_query}"
      SILTSTONE_PRODUCE_STORE_WRITES = tostring(var.object_store.second_writes)
    },
  )
  # the settings and secrets of each process: all connect to the same Postgres, each under a role of its own
  environments = { for process, url in module.metadata.urls : process => merge(local.environment, { SILTSTONE_METADATA_URL = url }) }

  url_query = join("&", concat(
    ["region=${data.aws_region.current.id}"],
    var.object_store.client == "aioboto3" ? [] : ["client=${var.object_store.client}"],
  ))

  # The name of a directory bucket says what it is. Its only right is to open a session, for all of its objects.
  is_directory = endswith(coalesce(var.object_store.second_bucket, "none"), "--x-s3")
  second_arn = local.is_directory ? (
    "arn:${data.aws_partition.current.partition}:s3express:${data.aws_region.current.id}:${data.aws_caller_identity.current.account_id}:bucket/${var.object_store.second_bucket}"
  ) : "arn:${data.aws_partition.current.partition}:s3:::${coalesce(var.object_store.second_bucket, "none")}"
  second = var.object_store.second_bucket == null ? null : {
    arn          = local.second_arn
    objects_arn  = "${local.second_arn}/${var.object_store.second_prefix}"
    is_directory = local.is_directory
  }

  bucket = {
    arn         = module.storage.bucket_arn
    objects_arn = "${module.storage.bucket_arn}/${var.prefix}"
    kms_key_arn = var.kms_key_arn
    second      = local.second
  }

  task = {
    cluster_arn        = module.upkeep.cluster_arn
    cluster_name       = module.cluster.name
    execution_role_arn = module.cluster.execution_role_arn
    trust_policy       = module.cluster.trust_policy
    capacity_provider  = module.cluster.capacity_provider
    launch_type        = var.launch_type
    cpu_architecture   = var.cpu_architecture
    image              = var.image
    subnet_ids         = module.network.subnet_ids
    security_group_id  = module.network.task_security_group_id
  }
  tasks = { for process in ["agent", "compactor"] : process => merge(local.task, {
    environment  = local.environments[process]
    password_arn = module.metadata.secret_arns[process]
  }) }
}

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

data "aws_region" "current" {
  lifecycle {
    # without this check, an image in another region (or a misspelt region) shows only when no task starts
    postcondition {
      condition     = var.network == null || alltrue([for region in local.registry_regions : region == self.id])
      error_message = "image and collector_image must lie in ECR of the provider's region (${self.id}): the VPC made here can reach no other registry."
    }
    postcondition {
      condition     = alltrue([for arn in local.regional_arns : split(":", arn)[3] == self.id])
      error_message = "Secrets, key and topics must lie in the provider's region (${self.id}), where the cluster looks for them. These do not: ${join(", ", [for arn in local.regional_arns : arn if split(":", arn)[3] != self.id])}."
    }
  }
}

module "network" {
  source = "./modules/network"

  name               = var.name
  existing           = var.existing_network
  tags               = var.tags
  availability_zones = var.existing_network == null ? var.network.availability_zones : []
  vpc_cidr           = var.existing_network == null ? var.network.vpc_cidr : null
  endpoint_services  = local.endpoint_services
}

module "storage" {
  source = "./modules/storage"

  name                = var.name
  existing_bucket     = var.existing_bucket
  tags                = var.tags
  prefix              = var.prefix
  second_is_directory = local.is_directory
  kms_key_arn         = var.kms_key_arn
  noncurrent_days     = var.noncurrent_days
  deletion_protection = var.deletion_protection
  vpc_id              = module.network.vpc_id
  route_table_ids     = module.network.route_table_ids
}

module "metadata" {
  source = "./modules/metadata"

  name                   = var.name
  existing               = var.existing_postgres
  instance               = var.postgres
  log_retention_days     = var.monitoring.log_retention_days
  tags                   = var.tags
  vpc_id                 = module.network.vpc_id
  subnet_ids             = module.network.subnet_ids
  task_security_group_id = module.network.task_security_group_id
  kms_key_arn            = var.kms_key_arn
  deletion_protection    = var.deletion_protection
}

module "cluster" {
  source = "./modules/cluster"

  name             = var.name
  launch_type      = var.launch_type
  instance_type    = var.instance_type
  hosts_max        = var.agents.count_max + var.compactors + 1 # a host runs two tasks, but a deployment runs twice the tasks
  cpu_architecture = var.cpu_architecture
  vpc_id           = module.network.vpc_id
  subnet_ids       = module.network.subnet_ids
  image            = var.image
  # with these two secrets, `migrate` makes both roles, and their passwords
  environment = merge(local.environments["owner"], {
    AGENT_PGPASSWORD_SECRET     = module.metadata.secret_arns["agent"]
    COMPACTOR_PGPASSWORD_SECRET = module.metadata.secret_arns["compactor"]
  })
  secrets              = { PGPASSWORD = "${module.metadata.secret_arns["owner"]}:password::" }
  client_secret_arn    = var.listener.admin_secret_arn
  role_secret_arns     = [for process in ["agent", "compactor"] : module.metadata.secret_arns[process]]
  deletion_protection  = var.deletion_protection
  tags                 = var.tags
  permissions_boundary = var.permissions_boundary
  migrate              = ["migrate", "--agent", module.metadata.roles["agent"], "--compactor", module.metadata.roles["compactor"]]
  secret_arns          = compact([module.metadata.secret_arns["owner"], var.listener.tls_secret_arn, var.listener.admin_secret_arn, var.monitoring.probe_secret_arn])
  log_group_arns       = module.observability.log_group_arns
  log_configuration    = module.observability.log_configurations["admin"]
  bucket               = local.bucket
}

module "agents" {
  source = "./modules/agents"

  name                   = var.name
  task                   = local.tasks["agent"]
  tags                   = var.tags
  permissions_boundary   = var.permissions_boundary
  bucket                 = local.bucket
  vpc_id                 = module.network.vpc_id
  subnet_ids             = module.network.subnet_ids
  client_cidrs           = var.client_cidrs
  listener               = var.listener
  metrics_cidrs          = var.metrics_cidrs
  size                   = var.agents
  sidecars               = module.observability.collectors["agent"]
  metrics_workspace_arns = module.observability.workspace_arns
  log_configuration      = module.observability.log_configurations["agent"]
  deletion_protection    = var.deletion_protection
}

module "compactor" {
  source = "./modules/compactor"

  name                   = var.name
  task                   = local.tasks["compactor"]
  tags                   = var.tags
  permissions_boundary   = var.permissions_boundary
  bucket                 = local.bucket
  vpc_id                 = module.network.vpc_id
  metrics_cidrs          = var.metrics_cidrs
  tasks                  = var.compactors
  spark                  = one(module.spark[*].submission)
  sidecars               = module.observability.collectors["compactor"]
  metrics_workspace_arns = module.observability.workspace_arns
  log_configuration      = module.observability.log_configurations["compactor"]
}

module "spark" {
  source = "./modules/spark"
  count  = var.spark == null ? 0 : 1

  name                 = var.name
  bucket               = local.bucket
  bucket_name          = module.storage.bucket
  tags                 = var.tags
  permissions_boundary = var.permissions_boundary
  code_prefix          = local.code_prefix
  release_label        = var.spark.release_label
  image                = var.spark.image
  vcpu_max             = var.spark.vcpu_max
  cpu_architecture     = var.cpu_architecture
}

module "probe" {
  source = "./modules/probe"
  count  = var.monitoring.probe_secret_arn == null ? 0 : 1

  name                    = var.name
  task                    = local.task
  secret_arn              = var.monitoring.probe_secret_arn
  bootstrap_servers       = module.agents.bootstrap_servers
  admin_security_group_id = module.agents.admin_security_group_id
  log_configuration       = try(module.observability.log_configurations["probe"], null)
  tags                    = var.tags
  permissions_boundary    = var.permissions_boundary
}

module "upkeep" {
  source = "./modules/upkeep"

  name = var.name
  cluster = {
    arn               = module.cluster.arn
    name              = module.cluster.name
    capacity_provider = module.cluster.capacity_provider
  }
  admin_task_arn         = module.cluster.admin_task_arn
  admin_task_family      = module.cluster.admin_task_family
  admin_role_arns        = module.cluster.admin_role_arns
  agents_service_name    = "${var.name}-agents" # not of the module: its service begins after the rule that watches it
  subnet_ids             = module.network.subnet_ids
  security_group_ids     = [module.network.task_security_group_id]
  restore_drill_schedule = var.monitoring.restore_drill_schedule
  log_group_name         = module.observability.log_group_names["admin"]
  alarm_topic_arns       = module.observability.alarm_topic_arns
  tags                   = var.tags
  permissions_boundary   = var.permissions_boundary
}

module "observability" {
  source = "./modules/observability"

  name          = var.name
  monitoring    = var.monitoring
  agents_min    = var.agents.count_min
  load_balancer = module.agents.load_balancer
  database = var.existing_postgres != null ? null : {
    instance_identifier = module.metadata.instance_identifier
    storage_gib         = var.postgres.storage_gib
  }
  tags = var.tags
}
