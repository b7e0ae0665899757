{{/* What agents and compactors have in common. Each takes: list PROCESS (agent, compactor) VALUES $ */}}

{{/* Of pods that are neither: list COMPONENT $ */}}
{{- define "siltstone.otherMetadata" -}}
{{- $others := (index . 1).Values.others -}}
labels: {{ include "siltstone.selector" (index . 1) | nindent 2 }}
  app.kubernetes.io/component: {{ index . 0 }}
  {{- with $others.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $others.podAnnotations }}
annotations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "siltstone.podMetadata" -}}
{{- $process := index . 0 -}}
{{- $values := index . 1 -}}
{{- $root := index . 2 -}}
labels: {{ include "siltstone.selector" $root | nindent 2 }}
  app.kubernetes.io/component: {{ $process }}
  {{- with $values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  siltstone/settings: {{ include (print $root.Template.BasePath "/settings.yaml") $root | sha256sum }}
  {{- if and $root.Values.external.type (eq $process "agent") }}
  siltstone/external: {{ $root.Values.external | toJson | sha256sum }}
  {{- end }}
  {{- with $values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/*
Kubernetes kills a pod when this time is over. In drain.notice.ms a stopping agent sends its clients to the others, in
drain.timeout.ms a process finishes its work: an agent stores and acknowledges what it has received, a compactor gives
its merges back.
*/}}
{{- define "siltstone.graceSeconds" -}}
{{- $process := index . 0 -}}
{{- $settings := (index . 2).Values.settings | default dict -}}
{{/* not by `default`, to which the number 0 is empty */}}
{{- $notice := ternary (index $settings "drain.notice.ms") "100000" (hasKey $settings "drain.notice.ms") | int64 -}}
{{- $timeout := ternary (index $settings "drain.timeout.ms") "30000" (hasKey $settings "drain.timeout.ms") | int64 -}}
{{- $drain := div (add (ternary $notice 0 (eq $process "agent")) $timeout 999) 1000 -}}
{{- $given := (index . 1).terminationGracePeriodSeconds | int64 -}}
{{- if and $given (le $given $drain) }}
{{- fail (printf "%ss.terminationGracePeriodSeconds: above %d, the seconds in which a process drains (drain.notice.ms, drain.timeout.ms)" $process $drain) }}
{{- end -}}
{{ $given | default (add $drain 30) }}
{{- end }}

{{/* On which nodes pods run: VALUES */}}
{{- define "siltstone.nodes" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- range $name := list "nodeSelector" "tolerations" "affinity" }}
{{- with get $ $name }}
{{ $name }}: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "siltstone.placement" -}}
{{- $process := index . 0 -}}
{{- $values := index . 1 -}}
{{- $root := index . 2 -}}
terminationGracePeriodSeconds: {{ include "siltstone.graceSeconds" . }}
{{- include "siltstone.nodes" $values }}
topologySpreadConstraints:
{{- range $of, $key := dict "zone" "topology.kubernetes.io/zone" "host" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: {{ get $values.spread $of }}
    labelSelector:
      matchLabels: {{ include "siltstone.selector" $root | nindent 8 }}
        app.kubernetes.io/component: {{ $process }}
{{- end }}
{{- end }}

{{- define "siltstone.secretName" -}}
{{- $process := index . 0 -}}
{{ required (printf "secrets.%s: a Secret with PGPASSWORD" $process) (get (index . 2).Values.secrets $process) }}
{{- end }}

{{/* Keys for the store, if the Secret has some: list SECRET */}}
{{- define "siltstone.awsEnv" -}}
{{- $secret := index . 0 -}}
{{- range $key := list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" }}
- name: {{ $key }}
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: {{ $key }}, optional: true}}
{{- end }}
{{- end }}

{{/* Of the Secret, only keys of AWS become variables. The password is a file, which Kubernetes renews. */}}
{{- define "siltstone.env" -}}
{{- $process := index . 0 -}}
{{- $root := index . 2 -}}
- name: SILTSTONE_METADATA_URL
  value: {{ include "siltstone.metadataUrl" (list (get $root.Values.postgres $process) $root) }}&password_file=/etc/siltstone/password/PGPASSWORD
{{ include "siltstone.awsEnv" (list (include "siltstone.secretName" .)) }}
{{- with (index . 1).extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "siltstone.container" -}}
{{- $values := index . 1 -}}
{{- $root := index . 2 -}}
{{/* The migration is a hook before all of this. Where others migrate, a pod has ten minutes to wait for it. */}}
startupProbe:
  httpGet: {path: /startupz, port: metrics, scheme: {{ include "siltstone.metricsScheme" $root }}}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 120
livenessProbe:
  httpGet: {path: /healthz, port: metrics, scheme: {{ include "siltstone.metricsScheme" $root }}}
  periodSeconds: 10
  timeoutSeconds: 5
resources: {{ toYaml $values.resources | nindent 2 }}
{{ include "siltstone.containerSecurity" $root }}
{{- end }}

{{- define "siltstone.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: password, mountPath: /etc/siltstone/password, readOnly: true}
{{- include "siltstone.postgresMount" (index . 2) }}
{{- with (index . 1).extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "siltstone.volumes" -}}
- {name: tmp, emptyDir: {sizeLimit: {{ (index . 1).tmpSizeLimit }}}}
- name: password
  secret: {secretName: {{ include "siltstone.secretName" . }}, defaultMode: 0440, items: [{key: PGPASSWORD, path: PGPASSWORD}]}
{{- include "siltstone.postgresVolume" (index . 2) }}
{{- with (index . 1).extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
