{{- define "siltstone.labels" -}}
app.kubernetes.io/name: siltstone
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "siltstone.selector" -}}
app.kubernetes.io/name: siltstone
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "siltstone.image" -}}
{{- if not (regexMatch "^sha256:[0-9a-f]{64}$" .Values.image.digest) }}
{{- fail "image.digest: sha256:..., as `docker push` prints it; a tag is not accepted" }}
{{- end -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- end }}

{{/* metadata.url for a role of Postgres: list ROLE $ */}}
{{- define "siltstone.metadataUrl" -}}
{{- $values := (index . 1).Values -}}
{{- $address := required "postgres.address: HOST:PORT/DB" $values.postgres.address -}}
{{- $ca := ternary "/etc/siltstone/postgres/ca.pem" "/opt/siltstone/rds-ca.pem" (ne $values.postgres.caConfigMap "") -}}
postgresql://{{ index . 0 }}@{{ $address }}?sslmode=verify-full&sslrootcert={{ $ca }}
{{- end }}

{{/* Settings and credentials of agents and compactors: list PROCESS $ */}}
{{- define "siltstone.envFrom" -}}
{{- $process := index . 0 -}}
{{- $root := index . 1 -}}
envFrom:
  - configMapRef: {name: {{ $root.Release.Name }}-settings}
  - secretRef: {name: {{ required (printf "secrets.%s: a Secret with PGPASSWORD" $process) (get $root.Values.secrets $process) }}}
{{- end }}

{{- define "siltstone.postgresMount" -}}
{{- if .Values.postgres.caConfigMap }}
- {name: postgres-ca, mountPath: /etc/siltstone/postgres, readOnly: true}
{{- end }}
{{- end }}

{{- define "siltstone.postgresVolume" -}}
{{- with .Values.postgres.caConfigMap }}
- {name: postgres-ca, configMap: {name: {{ . }}}}
{{- end }}
{{- end }}

{{- define "siltstone.podSecurity" -}}
automountServiceAccountToken: false
{{/* In a release named `siltstone`, the variables of service links would look like settings, and be refused. */}}
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "siltstone.containerSecurity" -}}
securityContext:
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "siltstone.metricsScheme" -}}
{{ if index .Values.settings "metrics.tls.cert.file" }}HTTPS{{ else }}HTTP{{ end }}
{{- end -}}
