# ---- what runs

variable "name" {
  description = "Name of this Siltstone cluster, and prefix of the names of all its resources."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,18}[a-z0-9]$", var.name)) && !can(regex("--", var.name))
    error_message = "name must be 2 to 20 lower-case letters, digits and single hyphens, and begin with a letter: load balancers and buckets take no more."
  }
}

variable "image" {
  description = "Image of Siltstone with its digest, in a registry that the VPC can reach: ECR of this region if this module makes the VPC."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z0-9.:/_-]+@sha256:[0-9a-f]{64}$", var.image))
    error_message = "image must name a digest (REPOSITORY@sha256:...), which docker push prints: what a tag names can be replaced, and tasks that start later must be of the same release."
  }
}

variable "cpu_architecture" {
  description = "Processor architecture of the image and of everything that runs it: X86_64 or ARM64."
  type        = string
  default     = "X86_64"
  nullable    = false

  validation {
    condition     = contains(["X86_64", "ARM64"], var.cpu_architecture)
    error_message = "cpu_architecture must be X86_64 or ARM64."
  }
}

variable "launch_type" {
  description = "FARGATE, or EC2 to run tasks on instances of this account (instance_type)."
  type        = string
  default     = "FARGATE"
  nullable    = false

  validation {
    condition     = contains(["FARGATE", "EC2"], var.launch_type)
    error_message = "launch_type must be FARGATE or EC2."
  }
}

variable "instance_type" {
  description = "Type of the instances if launch_type is EC2. A .large runs two agents: it has two vCPUs, and a network interface for each."
  type        = string
  default     = "m7i.large"
  nullable    = false

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]*\\.[a-z0-9-]+$", var.instance_type))
    error_message = "instance_type must be an EC2 instance type, like m7i.large."
  }
}

variable "agents" {
  description = "Number of agents, with one vCPU each: the least, the most, the average processor use (percent) that autoscaling aims at, and the memory of each (MiB)."
  type = object({
    count_min   = optional(number, 3)
    count_max   = optional(number, 12)
    cpu_percent = optional(number, 55)
    memory_mib  = optional(number, 3072)
  })
  default  = {}
  nullable = false

  validation {
    condition     = var.agents.count_min >= 1 && var.agents.count_max >= var.agents.count_min && floor(var.agents.count_min) == var.agents.count_min && floor(var.agents.count_max) == var.agents.count_max
    error_message = "agents.count_min must be a whole number of 1 or more, and agents.count_max a whole number no smaller than it."
  }
  validation {
    condition     = var.agents.cpu_percent >= 20 && var.agents.cpu_percent <= 80
    error_message = "agents.cpu_percent must be 20 to 80: above 80, agents would be overloaded while a new one starts."
  }
  validation {
    condition     = contains([2048, 3072, 4096, 5120, 6144, 7168, 8192], var.agents.memory_mib)
    error_message = "agents.memory_mib must be 2048 to 8192 in steps of 1024: the sizes that Fargate offers with one vCPU."
  }
}

variable "compactors" {
  description = "Number of compactors. One is enough until its core is fully used. While a compactor is being replaced, merging and deletion wait, and nothing is lost. With 0, nothing is merged or deleted, and live L0 files pile up. At 100 MiB/s producers are delayed after 5 minutes and refused after 23; at other loads: `siltstone cost --mib-s N`."
  type        = number
  default     = 1
  nullable    = false

  validation {
    condition     = var.compactors >= 0 && var.compactors <= 50 && floor(var.compactors) == var.compactors
    error_message = "compactors must be a whole number from 0 to 50."
  }
}

variable "settings" {
  description = "More settings of all agents and compactors (docs/settings.md), by their dotted names: {\"produce.linger.ms\" = \"100\"}."
  type        = map(string)
  default     = {}
  nullable    = false

  validation {
    condition     = alltrue([for name in keys(var.settings) : can(regex("^[a-z0-9]+(\\.[a-z0-9]+)*$", name)) && !can(regex("^(listener|zone)\\.", name))])
    error_message = "settings takes the dotted names of docs/settings.md, like produce.linger.ms, but not those of listeners: see listener."
  }
  validation {
    condition = length(setintersection(keys(var.settings), [
      "listen", "advertised.host", "advertised.bootstrap", "insecure", "acl.mode", "super.users", "allow.everyone.if.no.acl.found", "object.store.url", "metadata.url", "agent.zone",
      "drain.notice.ms", "drain.timeout.ms", "metrics.listen", "metrics.insecure", "log.format", "log.level", "log.figures.interval.ms", "spark.submitter", "spark.emr.application.id", "spark.emr.role.arn",
      "spark.emr.entry.url", "spark.archive.url",
    ])) == 0
    error_message = "settings must not contain a setting that follows from other variables (listen, advertised.host, advertised.bootstrap, insecure, acl.mode, super.users, allow.everyone.if.no.acl.found, object.store.url, metadata.url, agent.zone, drain.notice.ms, drain.timeout.ms, metrics.listen, metrics.insecure, log.format, log.level, log.figures.interval.ms, spark.submitter, spark.emr.*, spark.archive.url)."
  }
  validation {
    # a task with a name that Siltstone does not know would not start
    condition     = alltrue([for name in keys(var.settings) : contains(local.setting_names, name)])
    error_message = "settings must have names of docs/settings.md. There is no ${join(", ", [for name in keys(var.settings) : name if !contains(local.setting_names, name)])}."
  }
}

variable "spark" {
  description = "EMR Serverless for merges that are too large for a compactor: its release, an image that contains Siltstone (null: use an archive), and the most vCPUs. Null: no EMR Serverless."
  type = object({
    release_label = optional(string, "emr-spark-8.0.0")
    image         = optional(string)
    vcpu_max      = optional(number, 64)
  })
  default = null

  validation {
    condition     = var.spark == null || can(regex("^emr-(spark-)?[0-9]+\\.[0-9]+\\.[0-9]+(-.+)?$", var.spark.release_label))
    error_message = "spark.release_label must be an EMR release, like emr-spark-8.0.0."
  }
  validation {
    condition     = var.spark == null || try(var.spark.vcpu_max >= 8, false)
    error_message = "spark.vcpu_max must be 8 or more: a driver and an executor take four each."
  }
}

# ---- the network

variable "network" {
  description = "The VPC to make, without a route to the internet: its zones (one subnet each) and its addresses. Null if existing_network is given."
  type = object({
    availability_zones = list(string)
    vpc_cidr           = optional(string, "10.90.0.0/16")
  })
  default = null

  validation {
    condition     = (var.network == null) != (var.existing_network == null)
    error_message = "Set exactly one of network (to make a VPC) and existing_network."
  }
  validation {
    condition     = var.network == null || try(length(distinct(var.network.availability_zones)) >= 2 && length(var.network.availability_zones) <= 6, false)
    error_message = "network.availability_zones must name two to six zones; Postgres needs two, and three are advised."
  }
  validation {
    condition     = var.network == null || can(regex("^(10|172\\.(1[6-9]|2[0-9]|3[01])|192\\.168)\\..*/(1[6-9]|2[0-2])$", cidrsubnet(var.network.vpc_cidr, 0, 0)))
    error_message = "network.vpc_cidr must be private addresses, /16 to /22."
  }
}

variable "existing_network" {
  description = "An existing VPC: private subnets in at least two zones, and the route tables for the S3 gateway endpoint to make (empty: the endpoint already exists)."
  type = object({
    vpc_id          = string
    subnet_ids      = list(string)
    route_table_ids = optional(list(string), [])
  })
  default = null

  validation {
    condition     = var.existing_network == null || try(length(var.existing_network.subnet_ids) >= 2, false)
    error_message = "existing_network.subnet_ids must name at least two subnets, in different zones."
  }
}

variable "listener" {
  description = "How agents meet clients, always over TLS: the secret whose JSON has `certificate` and `key` (PEM; also `ca` for CERTIFICATE), how clients prove who they are (SCRAM: user and password; CERTIFICATE: a certificate of that ca), the principals that may do everything, like User:admin; and the secret of one of them, whose JSON has `client.properties` and the files that it names, with which commands by hand connect to agents (null: they cannot)."
  type = object({
    tls_secret_arn   = string
    authentication   = string
    super_users      = list(string)
    admin_secret_arn = optional(string)
  })
  nullable = false

  validation {
    condition     = can(regex("^arn:[a-z-]+:secretsmanager:", var.listener.tls_secret_arn))
    error_message = "listener.tls_secret_arn must be the ARN of a secret in Secrets Manager; do not put the key itself here."
  }
  validation {
    condition     = contains(["SCRAM", "CERTIFICATE"], var.listener.authentication)
    error_message = "listener.authentication must be SCRAM or CERTIFICATE."
  }
  validation {
    condition     = alltrue([for principal in var.listener.super_users : can(regex("^User:[^;]+$", principal)) && !contains(["User:*", "User:ANONYMOUS"], principal)])
    error_message = "listener.super_users must be principals like User:admin, without semicolons; neither everybody nor those who did not prove who they are."
  }
  validation {
    condition     = var.listener.admin_secret_arn == null || can(regex("^arn:[a-z-]+:secretsmanager:", var.listener.admin_secret_arn))
    error_message = "listener.admin_secret_arn must be the ARN of a secret in Secrets Manager; do not put the password itself here."
  }
}

variable "client_cidrs" {
  description = "Private addresses from which Kafka clients connect."
  type        = list(string)
  nullable    = false

  validation {
    condition = length(var.client_cidrs) > 0 && alltrue([for cidr in var.client_cidrs : can(cidrhost(cidr, 0)) && can(regex(
      "^(10\\.[0-9.]+/([89]|[12][0-9]|3[0-2])|172\\.(1[6-9]|2[0-9]|3[01])\\.[0-9.]+/(1[2-9]|2[0-9]|3[0-2])|192\\.168\\.[0-9.]+/(1[6-9]|2[0-9]|3[0-2])|100\\.(6[4-9]|[7-9][0-9]|1[01][0-9]|12[0-7])\\.[0-9.]+/(1[0-9]|2[0-9]|3[0-2]))$", cidr,
    ))])
    error_message = "client_cidrs must be private addresses (10/8, 172.16/12, 192.168/16, 100.64/10), at least one range: clients connect to the agents' own addresses, which are private."
  }
}

variable "metrics_cidrs" {
  description = "Private addresses from which Prometheus reads /metrics of agents and compactors. Empty: no access."
  type        = list(string)
  default     = []
  nullable    = false

  validation {
    condition = alltrue([for cidr in var.metrics_cidrs : can(cidrhost(cidr, 0)) && can(regex(
      "^(10\\.[0-9.]+/([89]|[12][0-9]|3[0-2])|172\\.(1[6-9]|2[0-9]|3[01])\\.[0-9.]+/(1[2-9]|2[0-9]|3[0-2])|192\\.168\\.[0-9.]+/(1[6-9]|2[0-9]|3[0-2])|100\\.(6[4-9]|[7-9][0-9]|1[01][0-9]|12[0-7])\\.[0-9.]+/(1[0-9]|2[0-9]|3[0-2]))$", cidr,
    ))])
    error_message = "metrics_cidrs must be private addresses: /metrics shows the cluster's activity to every reader."
  }
}

# ---- the records

variable "existing_bucket" {
  description = "Name of an existing bucket in this region, whose configuration is not changed. Null: a bucket is made."
  type        = string
  default     = null

  validation {
    condition     = var.existing_bucket == null || can(regex("^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", var.existing_bucket))
    error_message = "existing_bucket must be the name of a bucket, not its ARN or URL."
  }
}

variable "prefix" {
  description = "Prefix of the records in the bucket. Nothing else may lie under it."
  type        = string
  default     = "log"
  nullable    = false

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9_-]*(/[a-z0-9][a-z0-9_-]*)*$", var.prefix))
    error_message = "prefix must be lower-case letters, digits, _ and -, without slashes at its ends."
  }
}

variable "object_store" {
  description = "Client of the store (obstore needs an image with the extra fast-s3), and a second bucket for L0 files that is there already, such as an S3 Express directory bucket (docs/operations/second-store.md). second_writes = false: new L0 files go to the first bucket."
  type = object({
    client        = optional(string, "aioboto3")
    second_bucket = optional(string)
    second_prefix = optional(string, "log")
    second_writes = optional(bool, true)
  })
  default  = {}
  nullable = false

  validation {
    condition     = contains(["aioboto3", "obstore"], var.object_store.client)
    error_message = "object_store.client must be aioboto3 or obstore."
  }

  validation {
    condition     = var.object_store.second_bucket == null || can(regex("^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", var.object_store.second_bucket))
    error_message = "object_store.second_bucket must be the name of a bucket, not its ARN or URL."
  }

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9_-]*(/[a-z0-9][a-z0-9_-]*)*$", var.object_store.second_prefix))
    error_message = "object_store.second_prefix must be lower-case letters, digits, _ and -, without slashes at its ends."
  }
}

variable "noncurrent_days" {
  description = "Days for which the bucket that is made keeps deleted objects, as a protection against accidents. 0: it is not versioned, and deleted objects are gone at once."
  type        = number
  default     = 0
  nullable    = false

  validation {
    condition     = var.noncurrent_days >= 0 && floor(var.noncurrent_days) == var.noncurrent_days
    error_message = "noncurrent_days must be a whole number, 0 or more."
  }
}

variable "kms_key_arn" {
  description = "ARN of your KMS key for objects, Postgres and its secret. Null: keys that AWS manages."
  type        = string
  default     = null

  validation {
    condition     = var.kms_key_arn == null || can(regex("^arn:[a-z-]+:kms:[a-z0-9-]+:[0-9]{12}:key/.+$", var.kms_key_arn))
    error_message = "kms_key_arn must be the ARN of a key (not of an alias)."
  }
}

# ---- the metadata

variable "postgres" {
  description = "The Postgres to make in RDS. Without multi_az, a failed zone stops everything, and a failed volume loses acknowledged records. engine_version is a major version (16), or a minor one (16.10): RDS upgrades nothing by itself. Times are UTC; a change that restarts Postgres waits for the maintenance window."
  type = object({
    instance_class       = optional(string, "db.m7g.large")
    engine_version       = optional(string, "16")
    maintenance_window   = optional(string, "sun:03:00-sun:04:00")
    backup_window        = optional(string, "01:00-02:00")
    performance_insights = optional(bool, true)
    storage_gib          = optional(number, 100)
    multi_az             = optional(bool, true)
  })
  default  = {}
  nullable = false

  validation {
    condition     = can(regex("^db\\.[a-z0-9-]+\\.[a-z0-9]+$", var.postgres.instance_class))
    error_message = "postgres.instance_class must be an RDS instance class, like db.m7g.large."
  }
  validation {
    condition     = can(regex("^(1[5-9]|2[0-9])(\\.[0-9]+)?$", var.postgres.engine_version))
    error_message = "postgres.engine_version must be a major version, 15 or newer, or a minor one of it, like 16.10."
  }
  validation {
    condition     = can(regex("^[a-z]{3}:[0-9]{2}:[0-9]{2}-[a-z]{3}:[0-9]{2}:[0-9]{2}$", var.postgres.maintenance_window)) && can(regex("^[0-9]{2}:[0-9]{2}-[0-9]{2}:[0-9]{2}$", var.postgres.backup_window))
    error_message = "postgres.maintenance_window must be like sun:03:00-sun:04:00, and postgres.backup_window like 01:00-02:00."
  }
  validation {
    condition     = var.postgres.storage_gib >= 20 && var.postgres.storage_gib <= 16384
    error_message = "postgres.storage_gib must be 20 to 16384."
  }
}

variable "existing_postgres" {
  description = "An existing Postgres (15 or newer, not Aurora, no pooler in between): its address, the schema's owner, the secret whose JSON has its `password`, its security group, which gets a rule for our tasks, and the CA certificates in the image that verify it. Null: a Postgres is made."
  type = object({
    host              = string
    port              = optional(number, 5432)
    database          = string
    user              = string
    secret_arn        = string
    security_group_id = string
    ca_path           = optional(string, "/opt/siltstone/rds-ca.pem")
  })
  default = null

  validation {
    condition     = var.existing_postgres == null || can(regex("^/[A-Za-z0-9._/-]+$", var.existing_postgres.ca_path))
    error_message = "existing_postgres.ca_path must be the absolute path, in the image, of the CA certificates that verify it."
  }
  validation {
    condition     = var.existing_postgres == null || can(regex("^arn:[a-z-]+:secretsmanager:", var.existing_postgres.secret_arn))
    error_message = "existing_postgres.secret_arn must be the ARN of a secret in Secrets Manager; do not put the password itself here."
  }
}

# ---- monitoring, and protection against deletion

variable "monitoring" {
  description = <<-EOT
    What is told of the cluster, and to whom.
    log_retention_days: days for which CloudWatch keeps the logs, those of Postgres too.
    alarm_topic_arns: SNS topics that receive alarms. Their policies must let CloudWatch, EventBridge and, with a collector, managed Prometheus publish. Empty: a topic is made, see the output alarm_topic_arns.
    alarm_emails: addresses that are subscribed to the topic that is made; each must confirm.
    group_lag_s: alarm when a consumer group has not read a record of this age, in seconds. 0: no alarm.
    collector_image: image of the AWS Distro for OpenTelemetry, in a registry that the VPC can reach. It runs beside each task and writes metrics to a managed Prometheus, which evaluates all alert rules of infra/prometheus. Null: neither is made, and CloudWatch watches the figures that tasks write into their logs.
    probe_secret_arn: secret whose JSON has `client.properties` and the files that it names, by which a task connects as a Kafka client, writes records and reads them back. Null: no such task.
    restore_drill_schedule: when the metadata are rebuilt from the bucket, for comparison, as EventBridge writes it: rate(7 days), cron(0 4 ? * SUN *). Null: never.
  EOT
  type = object({
    log_retention_days     = optional(number, 30)
    alarm_topic_arns       = optional(list(string), [])
    alarm_emails           = optional(list(string), [])
    group_lag_s            = optional(number, 900)
    collector_image        = optional(string)
    probe_secret_arn       = optional(string)
    restore_drill_schedule = optional(string, "rate(7 days)")
  })
  default  = {}
  nullable = false

  validation {
    condition     = contains([1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1827, 3653], var.monitoring.log_retention_days)
    error_message = "monitoring.log_retention_days must be one of the numbers that CloudWatch allows: 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1827, 3653."
  }
  validation {
    condition     = alltrue([for arn in var.monitoring.alarm_topic_arns : can(regex("^arn:[a-z-]+:sns:", arn))])
    error_message = "monitoring.alarm_topic_arns must be ARNs of SNS topics."
  }
  validation {
    condition     = length(var.monitoring.alarm_emails) == 0 || length(var.monitoring.alarm_topic_arns) == 0
    error_message = "monitoring.alarm_emails are for the topic that is made: with alarm_topic_arns, subscribe them to yours."
  }
  validation {
    condition     = alltrue([for address in var.monitoring.alarm_emails : can(regex("^[^@ ]+@[^@ ]+$", address))])
    error_message = "monitoring.alarm_emails must be mail addresses."
  }
  validation {
    condition     = var.monitoring.group_lag_s >= 0
    error_message = "monitoring.group_lag_s must be 0 or more seconds."
  }
  validation {
    condition     = var.monitoring.collector_image == null || can(regex("[:@]", var.monitoring.collector_image))
    error_message = "monitoring.collector_image must name a tag or a digest."
  }
  validation {
    condition     = var.monitoring.probe_secret_arn == null || can(regex("^arn:[a-z-]+:secretsmanager:", var.monitoring.probe_secret_arn))
    error_message = "monitoring.probe_secret_arn must be the ARN of a secret in Secrets Manager; do not put the password itself here."
  }
  validation {
    condition     = var.monitoring.restore_drill_schedule == null || can(regex("^(rate|cron)\\(.+\\)$", var.monitoring.restore_drill_schedule))
    error_message = "monitoring.restore_drill_schedule must be like rate(7 days) or cron(0 4 ? * SUN *)."
  }
}

variable "tags" {
  description = "Tags of everything that can have some, beside the provider's default_tags."
  type        = map(string)
  default     = {}
  nullable    = false

  validation {
    condition     = !contains(keys(var.tags), "Name")
    error_message = "tags must not contain Name, which each resource has for itself."
  }
}

variable "permissions_boundary" {
  description = "ARN of the policy that bounds the rights of every role that is made. Null: none."
  type        = string
  default     = null

  validation {
    condition     = var.permissions_boundary == null || can(regex("^arn:[a-z-]+:iam::([0-9]{12}|aws):policy/.+$", var.permissions_boundary))
    error_message = "permissions_boundary must be the ARN of a policy."
  }
}

variable "deletion_protection" {
  description = "Whether Postgres, the load balancer and a bucket with objects in it refuse to be deleted. False: `terraform destroy` deletes every record."
  type        = bool
  default     = true
  nullable    = false
}
