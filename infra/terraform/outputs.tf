output "bootstrap_servers" {
  description = "What Kafka clients are given. It is reached from client_cidrs alone."
  value       = module.agents.bootstrap_servers
}

output "migrate_command" {
  description = "Brings the metadata schema up to date: before the first start, and before each upgrade."
  value       = local.run_task
}

output "doctor_command" {
  description = "Asks whether bucket, Postgres and clocks are fit for use; the answer is in the log group of admin."
  value       = "${local.run_task} --overrides '{\"containerOverrides\":[{\"name\":\"admin\",\"command\":[\"doctor\"]}]}'"
}

output "admin_command" {
  description = "Defines ecs_siltstone in a shell, which runs any words of `siltstone` beside the cluster: eval \"$(terraform output -raw admin_command)\"; ecs_siltstone fsck --adopt."
  value       = local.admin_function
}

output "restart_commands" {
  description = "Replace all tasks, one after the other: after the first migrate, and after the password of Postgres was changed."
  value       = [for service in local.services : "${local.set_count} ${service} --force-new-deployment"]
}

output "stop_commands" {
  description = "End every agent and compactor, wait until they are gone, and cancel merges on EMR; start_commands undo it."
  value = concat(
    [local.scaling.off],
    [for service in local.services : "${local.set_count} ${service} --desired-count 0"],
    [local.wait],
    local.cancel_merges,
  )
}

output "start_commands" {
  description = "After stop_commands: compactors and the least number of agents, and autoscaling again."
  value = [
    "${local.set_count} ${module.compactor.service_name} --desired-count ${var.compactors}",
    "${local.set_count} ${module.agents.service_name} --desired-count ${var.agents.count_min}",
    local.wait,
    local.scaling.on,
  ]
}

output "spark_upload_commands" {
  description = "Put the program of merges, and its archive, where EMR Serverless finds them: once, and with each upgrade. Empty without Spark."
  value = flatten([for submission in module.spark[*].submission : [
    for url in compact([submission.entry_url, submission.archive_url]) : "aws s3 cp ${basename(url)} ${url}"
  ]])
}

output "object_store_url" {
  description = "object.store.url of all processes."
  value       = local.environment["SILTSTONE_OBJECT_STORE_URL"]
}

output "metadata_url" {
  description = "metadata.url of all processes; the password is in the secret."
  value       = module.metadata.url
}

output "metadata_secret_arn" {
  description = "Secret with the password of Postgres."
  value       = module.metadata.secret_arn
}

output "network" {
  description = "Where tasks run. Routes to clients of other networks (peering, transit gateway) belong in route_table_ids."
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
  description = "Roles by what they are for; only the compactor's may delete records."
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
  description = "Managed Prometheus; null without collector_image."
  value       = module.observability.workspace_endpoint
}
