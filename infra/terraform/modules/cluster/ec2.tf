# Hosts for `launch_type = "EC2"`. Every task needs a network interface of its own, and the host keeps one for itself.
# So most .large types, which have three interfaces, run two tasks; that is also their number of vCPUs.

locals {
  ami_architecture = var.cpu_architecture == "ARM64" ? "arm64/" : ""
  ami_parameter    = "/aws/service/ecs/optimized-ami/amazon-linux-2023/${local.ami_architecture}recommended/image_id"
}

resource "aws_security_group" "hosts" {
  count = local.on_ec2 ? 1 : 0

  name        = "${var.name}-hosts"
  description = "Hosts of tasks: nobody may connect"
  vpc_id      = var.vpc_id

  tags = merge(var.tags, { Name = "${var.name}-hosts" })
}

resource "aws_vpc_security_group_egress_rule" "hosts_https" {
  count = local.on_ec2 ? 1 : 0

  security_group_id = aws_security_group.hosts[0].id
  description       = "APIs of AWS, images"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  cidr_ipv4         = "0.0.0.0/0"

  tags = var.tags
}

resource "aws_launch_template" "hosts" {
  count = local.on_ec2 ? 1 : 0

  name                   = "${var.name}-hosts"
  image_id               = "resolve:ssm:${local.ami_parameter}"
  instance_type          = var.instance_type
  update_default_version = true
  vpc_security_group_ids = [aws_security_group.hosts[0].id]

  user_data = base64encode(<<-EOT
    #!/bin/sh
    cat >> /etc/ecs/ecs.config <<EOF
    ECS_CLUSTER=${var.name}
    ECS_AWSVPC_BLOCK_IMDS=true
    EOF
  EOT
  )

  iam_instance_profile {
    arn = aws_iam_instance_profile.hosts[0].arn
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  block_device_mappings {
    device_name = "/dev/xvda"

    ebs {
      volume_type           = "gp3"
      volume_size           = 40
      encrypted             = "true"
      delete_on_termination = "true"
    }
  }

  dynamic "tag_specifications" {
    for_each = toset(["instance", "volume", "network-interface"])

    content {
      resource_type = tag_specifications.value
      tags          = merge(var.tags, { Name = "${var.name}-host" })
    }
  }

  tags = var.tags
}

resource "aws_autoscaling_group" "hosts" {
  count = local.on_ec2 ? 1 : 0

  name                = "${var.name}-hosts"
  min_size            = 0
  max_size            = var.hosts_max
  vpc_zone_identifier = var.subnet_ids
  # otherwise the autoscaling group could end a host that runs tasks; ECS chooses an empty one
  protect_from_scale_in = true
  # `terraform destroy` would wait for hosts that nobody ends, because they are protected
  force_delete = !var.deletion_protection

  # A changed launch template (another image of the system, another type) replaces the hosts, one after the other. ECS
  # moves their tasks first.
  instance_refresh {
    strategy = "Rolling"

    preferences {
      min_healthy_percentage       = 100
      max_healthy_percentage       = 110
      instance_warmup              = 120
      skip_matching                = true
      scale_in_protected_instances = "Refresh"
    }
  }

  launch_template {
    id      = aws_launch_template.hosts[0].id
    version = aws_launch_template.hosts[0].latest_version
  }

  dynamic "tag" {
    for_each = var.tags

    content {
      key                 = tag.key
      value               = tag.value
      propagate_at_launch = true
    }
  }

  tag {
    key                 = "Name"
    value               = "${var.name}-host"
    propagate_at_launch = true
  }

  # ECS adds this tag to a group that it manages; declared here, because Terraform would remove it again
  tag {
    key                 = "AmazonECSManaged"
    value               = "true"
    propagate_at_launch = true
  }

  lifecycle {
    ignore_changes = [desired_capacity]
  }
}

resource "aws_ecs_capacity_provider" "ec2" {
  count = local.on_ec2 ? 1 : 0

  # a name may not begin with aws, ecs or fargate
  name = "hosts-of-${var.name}"

  auto_scaling_group_provider {
    auto_scaling_group_arn         = aws_autoscaling_group.hosts[0].arn
    managed_draining               = "ENABLED"
    managed_termination_protection = "ENABLED"

    managed_scaling {
      status          = "ENABLED"
      target_capacity = 100
    }
  }

  tags = var.tags
}

data "aws_iam_policy_document" "hosts_trust" {
  count = local.on_ec2 ? 1 : 0

  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["ec2.amazonaws.com"]
    }
  }
}

resource "aws_iam_role" "hosts" {
  count = local.on_ec2 ? 1 : 0

  name                 = "${var.name}-host"
  description          = "Hosts of tasks: what the ECS agent needs"
  permissions_boundary = var.permissions_boundary
  assume_role_policy   = data.aws_iam_policy_document.hosts_trust[0].json

  tags = var.tags
}

resource "aws_iam_role_policy_attachment" "hosts" {
  count = local.on_ec2 ? 1 : 0

  role       = aws_iam_role.hosts[0].name
  policy_arn = "arn:${data.aws_partition.current.partition}:iam::aws:policy/service-role/AmazonEC2ContainerServiceforEC2Role"
}

resource "aws_iam_instance_profile" "hosts" {
  count = local.on_ec2 ? 1 : 0

  name = "${var.name}-host"
  role = aws_iam_role.hosts[0].name

  tags = var.tags
}
