locals {
  log_configurations = { for process in local.log_groups : process => {
    logDriver = "awslogs"
    options = {
      awslogs-group         = aws_cloudwatch_log_group.this[process].name
      awslogs-region        = data.aws_region.current.id
      awslogs-stream-prefix = "siltstone"
      # An agent must not block on CloudWatch. If the buffer below is full, log lines are lost instead.
      mode            = "non-blocking"
      max-buffer-size = "8m"
    }
  } }
}
