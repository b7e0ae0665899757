# Scales by processor time: an agent can use only one core, and settings limit everything else that it uses.

resource "aws_appautoscaling_target" "this" {
  service_namespace  = "ecs"
  scalable_dimension = "ecs:service:DesiredCount"
  resource_id        = "service/${var.task.cluster_name}/${aws_ecs_service.this.name}"
  min_capacity       = var.size.count_min
  max_capacity       = var.size.count_max

  tags = var.tags
}

resource "aws_appautoscaling_policy" "cpu" {
  name               = "${var.name}-agents-cpu"
  policy_type        = "TargetTrackingScaling"
  service_namespace  = aws_appautoscaling_target.this.service_namespace
  scalable_dimension = aws_appautoscaling_target.this.scalable_dimension
  resource_id        = aws_appautoscaling_target.this.resource_id

  target_tracking_scaling_policy_configuration {
    target_value       = var.size.cpu_percent
    scale_out_cooldown = 120
    # long, because an agent that is taken away moves its clients, and they should not be moved again soon
    scale_in_cooldown = 1800

    predefined_metric_specification {
      predefined_metric_type = "ECSServiceAverageCPUUtilization"
    }
  }
}
