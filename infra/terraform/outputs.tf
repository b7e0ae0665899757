output "bootstrap_servers" {
  description = "Bootstrap servers for Kafka clients. Only addresses in client_cidrs can connect."
  value       = module.agents.bootstrap_servers
}

output "migrate_command" {
  description = "Command that updates the metadata schema, as each rollout of agents does by itself. For a migration that failed, once its cause is mended."
  value       = local.run_task
}

output "doctor_command" {
  description = "Command that checks whether bucket, Postgres and clocks are fit for use; its output is in the log group of admin."
  value       = "${local.run_task} --overrides '{\"containerOverrides\":[{\"name\":\"admin\",\"command\":[\"doctor\"]}]}'"
}

output "admin_command" {
  description = "Shell code that defines ecs_siltstone, which runs any `siltstone` command beside the cluster: eval \"$(terraform output -raw admin_command)\"; ecs_siltstone fsck --adopt."
  value       = local.admin_function
}

output "restart_commands" {
  description = "Commands that replace all tasks, one after the other, with agents first: for a new certificate of the listener."
  value       = [for service in local.services : "${local.set_count} ${service} --force-new-deployment"]
}

output "stop_commands" {
  description = "Commands that stop every agent and compactor, wait until they are gone, and cancel merges on EMR; start_commands undo it."
  value = concat(
    [local.scaling.off],
    [for service in local.services : "${local.set_count} ${service} --desired-count 0"],
    [local.wait],
    local.cancel_merges,
  )
}

output "start_commands" {
  description = "Commands for after stop_commands: they start the compactors and the least number of agents, and autoscaling."
  value = [
    "${local.set_count} ${module.compactor.service_name} --desired-count ${var.compactors}",
    "${local.set_count} ${module.agents.service_name} --desired-count ${var.agents.count_min}",
    local.wait,
    local.scaling.on,
  ]
}

output "spark_upload_commands" {
  description = "Commands that upload the merge program and its archive for EMR Serverless. Run them once, and with each upgrade. Empty without Spark."
  value = flatten([for submission in module.spark[*].submission : [
    for url in compact([submission.entry_url, submission.archive_url]) : "aws s3 cp ${basename(url)} ${url}"
  ]])
}

output "object_store_url" {
  description = "object.store.url of all processes."
  value       = local.environment["SILTSTONE_OBJECT_STORE_URL"]
}

output "metadata_urls" {
  description = "metadata.url by process; the passwords are in the secrets."
  value       = module.metadata.urls
}

output "metadata_secret_arns" {
  description = "Secrets with the passwords of Postgres, by process."
  value       = module.metadata.secret_arns
}

output "new_passwords_command" {
  description = "Command that gives the roles of agents and compactors new passwords, in their secrets and in Postgres. No task needs a restart."
  value       = "${local.run_task} --overrides '${jsonencode({ containerOverrides = [{ name = "admin", command = local.new_passwords }] })}'"
}

output "bucket_policy" {
  description = "The policy of the bucket that is made. Give it to an existing bucket: without it, a role that may write can overwrite records."
  value       = module.storage.bucket_policy
}

output "network" {
  description = "The network of the tasks. Add routes to clients in other networks (peering, transit gateway) to route_table_ids."
  value = {
    vpc_id                  = module.network.vpc_id
    subnet_ids              = module.network.subnet_ids
    route_table_ids         = module.network.route_table_ids
    task_security_group_id  = module.network.task_security_group_id
    agent_security_group_id = module.agents.security_group_id
    admin_security_group_id = module.agents.admin_security_group_id
  }
}

output "roles" {
  description = "IAM roles by purpose; only the compactor's may delete records."
  value = {
    agent     = module.agents.role_arn
    compactor = module.compactor.role_arn
    merge     = one(module.spark[*].submission.job_role_arn)
  }
}

output "log_groups" {
  description = "Log groups by process."
  value       = module.observability.log_group_names
}

output "prometheus_endpoint" {
  description = "The managed Prometheus; null without monitoring.collector_image."
  value       = module.observability.workspace_endpoint
}

output "alarm_topic_arns" {
  description = "The topics that receive alarms: subscribe to the one that is made."
  value       = module.observability.alarm_topic_arns
}

output "quotas_needed" {
  description = "What the account's quotas must allow in this region, at most: compare with Service Quotas before the first apply."
  value = merge(
    {
      # a rollout of agents runs half of them twice, one of compactors all
      tasks_vcpus        = var.agents.count_max + ceil(var.agents.count_max / 2) + 2 * var.compactors + 3
      network_interfaces = var.agents.count_max + ceil(var.agents.count_max / 2) + 2 * var.compactors + 3 + length(local.endpoint_services) * length(module.network.subnet_ids)
    },
    var.spark == null ? {} : { emr_serverless_vcpus = var.spark.vcpu_max },
  )
}
