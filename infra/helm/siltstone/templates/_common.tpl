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
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Settings and credentials of agents and compactors. */}}
{{- define "siltstone.envFrom" -}}
envFrom:
  - configMapRef: {name: {{ .Release.Name }}-settings}
  {{- with .Values.secretName }}
  - secretRef: {name: {{ . }}}
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
