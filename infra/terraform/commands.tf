# Commands for the operator, with the names of this cluster filled in. outputs.tf shows them.

locals {
  region   = data.aws_region.current.id
  services = [module.agents.service_name, module.compactor.service_name]
  of_ecs   = "--region ${local.region} --cluster ${module.cluster.name}"

  run_task = join(" ", [
    "aws ecs run-task ${local.of_ecs}",
    "--task-definition ${module.cluster.admin_task_family} --network-configuration",
    "'awsvpcConfiguration={subnets=[${join(",", module.network.subnet_ids)}],securityGroups=[${join(",", local.admin_groups)}]}'",
  ])
  admin_groups = [module.network.task_security_group_id, module.agents.admin_security_group_id]

  # A shell function that runs one `siltstone` command as a task. It passes the words of the command as JSON, waits for
  # the task, prints its log, and returns its exit code. ADMIN_CPU and ADMIN_MIB make one run larger, because `rebuild`
  # holds the whole catalogue in memory.
  admin_function = <<-EOT
    ecs_siltstone() (
      words=$(printf '%s\n' "$@" | sed 's/["\\]/\\&/g; s/.*/"&",/' | tr -d '\n')
      task=$(${local.run_task} --overrides '{"cpu":"'"$${ADMIN_CPU:-512}"'","memory":"'"$${ADMIN_MIB:-1024}"'","containerOverrides":[{"name":"admin","command":['"$${words%,}"'],"environment":[{"name":"SILTSTONE_BOOTSTRAP","value":"${module.agents.bootstrap_servers}"}]}]}' --query 'tasks[0].taskArn' --output text) || exit 1
      case $task in arn:*) echo "$task" >&2 ;; *) echo 'no task was started' >&2; exit 1 ;; esac
      told() { aws ecs describe-tasks ${local.of_ecs} --tasks "$task" --query "tasks[0].$1" --output text; }
      until [ "$(told lastStatus)" = STOPPED ]; do sleep 5; done
      aws logs filter-log-events --region ${local.region} --log-group-name ${module.observability.log_group_names["admin"]} --log-stream-names "siltstone/admin/$${task##*/}" --query 'events[].[message]' --output text
      code=$(told 'containers[?name==`"admin"`].exitCode | [0]')
      case $code in [0-9]*) exit "$code" ;; *) told stoppedReason >&2; exit 1 ;; esac
    )
  EOT

  # Suspend autoscaling before the agents are stopped, or it starts them again. While it is suspended, the number of
  # agents may be below its minimum.
  scalable_target = join(" ", [
    "aws application-autoscaling register-scalable-target --region ${local.region} --service-namespace ecs",
    "--scalable-dimension ecs:service:DesiredCount --resource-id service/${module.cluster.name}/${module.agents.service_name}",
  ])
  scaling = { for scaling, suspended in { off = true, on = false } : scaling => join(" ", [
    local.scalable_target, "--suspended-state",
    join(",", [for what in ["DynamicScalingIn", "DynamicScalingOut", "ScheduledScaling"] : "${what}Suspended=${suspended}"]),
  ]) }
  set_count = "aws ecs update-service ${local.of_ecs} --service"
  wait      = "aws ecs wait services-stable ${local.of_ecs} --services ${join(" ", local.services)}"

  # Stopping the compactors does not stop their merges on EMR: these would go on writing into the bucket.
  cancel_merges = [for submission in module.spark[*].submission : join(" ", [
    "for job in $(aws emr-serverless list-job-runs --region ${local.region} --application-id ${submission.application_id}",
    "--states SUBMITTED PENDING SCHEDULED RUNNING QUEUED --query 'jobRuns[].id' --output text);",
    "do aws emr-serverless cancel-job-run --region ${local.region} --application-id ${submission.application_id} --job-run-id \"$job\"; done",
  ])]

  new_passwords = ["migrate", "--agent", module.metadata.roles["agent"], "--compactor", module.metadata.roles["compactor"], "--new-passwords"]
}
