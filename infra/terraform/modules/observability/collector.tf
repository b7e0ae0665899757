# Each agent and compactor has a collector (AWS Distro for OpenTelemetry) beside it, which reads /metrics and writes to
# managed Prometheus. It is not essential: if it fails, the task keeps running.

locals {
  # the job names of infra/prometheus/prometheus.yml, which the alert rules and the dashboard select by
  scrape_jobs = { agent = "siltstone-agents", compactor = "siltstone-compactors" }

  collector_configs = { for process, job in local.scrape_jobs : process => {
    receivers = {
      prometheus = {
        config = {
          scrape_configs = [{
            job_name        = job
            scrape_interval = "15s"
            static_configs  = [{ targets = ["localhost:9644"] }]
            # otherwise every instance would be called localhost
            relabel_configs = [{ target_label = "instance", replacement = "$${env:HOSTNAME}" }]
          }]
        }
      }
    }
    processors = {
      # adds the task's ARN and zone, which become labels
      resourcedetection = { detectors = ["ecs"] }
      batch             = {}
    }
    extensions = {
      sigv4auth = { region = data.aws_region.current.id, service = "aps" }
    }
    exporters = {
      prometheusremotewrite = {
        endpoint                         = var.monitoring.collector_image == null ? "" : "${aws_prometheus_workspace.this[0].prometheus_endpoint}api/v1/remote_write"
        auth                             = { authenticator = "sigv4auth" }
        resource_to_telemetry_conversion = { enabled = true }
      }
    }
    service = {
      extensions = ["sigv4auth"]
      pipelines = {
        metrics = {
          receivers  = ["prometheus"]
          processors = ["resourcedetection", "batch"]
          exporters  = ["prometheusremotewrite"]
        }
      }
    }
  } }

  collectors = { for process, job in local.scrape_jobs : process => var.monitoring.collector_image == null ? [] : [{
    name                   = "collector"
    image                  = var.monitoring.collector_image
    essential              = false
    readonlyRootFilesystem = true
    memory                 = 256
    environment            = [{ name = "AOT_CONFIG_CONTENT", value = yamlencode(local.collector_configs[process]) }]
    logConfiguration       = local.log_configurations[process]
  }] }
}
