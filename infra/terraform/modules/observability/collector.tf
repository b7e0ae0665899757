# A collector (AWS Distro for OpenTelemetry) beside each agent and compactor, which reads its /metrics and writes them to
# managed Prometheus. A collector that fails takes no agent with it.

locals {
  # as in infra/prometheus/prometheus.yml: rules and dashboard go by these
  scrape_jobs = { agent = "siltstone-agents", compactor = "siltstone-compactors" }

  collector_configs = { for process, job in local.scrape_jobs : process => {
    receivers = {
      prometheus = {
        config = {
          scrape_configs = [{
            job_name        = job
            scrape_interval = "15s"
            static_configs  = [{ targets = ["localhost:9644"] }]
            # every target is called localhost: the task's own name tells them apart
            relabel_configs = [{ target_label = "instance", replacement = "$${env:HOSTNAME}" }]
          }]
        }
      }
    }
    processors = {
      # the task's ARN and zone, which become labels
      resourcedetection = { detectors = ["ecs"] }
      batch             = {}
    }
    extensions = {
      sigv4auth = { region = data.aws_region.current.region, service = "aps" }
    }
    exporters = {
      prometheusremotewrite = {
        endpoint                         = var.collector_image == null ? "" : "${aws_prometheus_workspace.this[0].prometheus_endpoint}api/v1/remote_write"
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

  collectors = { for process, job in local.scrape_jobs : process => var.collector_image == null ? [] : [{
    name                   = "collector"
    image                  = var.collector_image
    essential              = false
    readonlyRootFilesystem = true
    memory                 = 256
    environment            = [{ name = "AOT_CONFIG_CONTENT", value = yamlencode(local.collector_configs[process]) }]
    logConfiguration       = local.log_configurations[process]
  }] }
}
