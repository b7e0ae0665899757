{{/* The beginning of every object's name. The longest end, -agent-99-external, must fit into 63 characters. */}}
{{- define "siltstone.name" -}}
{{- $plain := ternary (printf "%s-%s" .Release.Name .Values.nameOverride) .Release.Name (ne .Values.nameOverride "") -}}
{{- $name := .Values.fullnameOverride | default $plain -}}
{{- if gt (len $name) 45 }}
{{- fail (printf "fullnameOverride: at most 45 characters, unlike %s" $name) }}
{{- end -}}
{{ $name }}
{{- end }}

{{- define "siltstone.labels" -}}
{{ include "siltstone.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "siltstone.selector" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default "siltstone" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "siltstone.image" -}}
{{- if not (regexMatch "^sha256:[0-9a-f]{64}$" .Values.image.digest) }}
{{- fail "image.digest: sha256:..., as `docker push` prints it; a tag is not accepted" }}
{{- end -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- end }}

{{/* Refuses what is no port: list NAME DIGITS */}}
{{- define "siltstone.checkPort" -}}
{{- if not (regexMatch "^0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$" (index . 1)) }}
{{- fail (printf "%s: there is no port %s; ports are 1 to 65535" (index . 0) (index . 1)) }}
{{- end -}}
{{- end }}

{{/* metadata.url for a role of Postgres: list ROLE $ */}}
{{- define "siltstone.metadataUrl" -}}
{{- $values := (index . 1).Values -}}
{{- $address := required "postgres.address: HOST:PORT/DB" $values.postgres.address -}}
{{- include "siltstone.checkPort" (list "postgres.address" (regexFind ":[0-9]+/" $address | trimAll ":/")) -}}
{{- $ca := ternary "/etc/siltstone/postgres/ca.pem" "/opt/siltstone/rds-ca.pem" (ne $values.postgres.caConfigMap "") -}}
postgresql://{{ index . 0 }}@{{ $address }}?sslmode=verify-full&sslrootcert={{ $ca }}
{{- end }}

{{/* Where clients inside begin to ask. */}}
{{- define "siltstone.bootstrap" -}}
{{ include "siltstone.name" . }}-bootstrap.{{ .Release.Namespace }}.svc:9092
{{- end }}

{{/* The URL of a store, which is to be one that agents read: list NAME URL. No message has a value that may be a key. */}}
{{- define "siltstone.storeUrl" -}}
{{- $name := index . 0 -}}
{{- $parts := splitList "?" (index . 1) -}}
{{- if not (regexMatch "^s3://[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9](/[^/.?#\\s][^/?#\\s]*)*/?$" (first $parts)) }}
{{- fail (printf "%s: s3://BUCKET/PREFIX?region=REGION, without keys; nothing else is a store of agents on Kubernetes" $name) }}
{{- end -}}
{{- $seen := dict -}}
{{- range $each := splitList "&" (rest $parts | join "?") -}}
{{- $key := splitList "=" $each | first -}}
{{- if hasKey $seen $key }}
{{- fail (printf "%s: %s is there twice; leave one" $name $key) }}
{{- else if eq $key "region" }}
{{- if not (regexMatch "^region=[a-z0-9][a-z0-9-]{0,62}$" $each) }}
{{- fail (printf "%s: the region has no name that there can be; write one such as region=eu-central-1" $name) }}
{{- end }}
{{- else if eq $key "endpoint" }}
{{- include "siltstone.checkEndpoint" (list $name (trimPrefix "endpoint=" $each | replace "%3A" ":" | replace "%2F" "/")) }}
{{- else if eq $key "client" }}
{{- if not (has $each (list "client=aioboto3" "client=obstore")) }}
{{- fail (printf "%s: there is no such client; write client=obstore, or leave it out" $name) }}
{{- end }}
{{- else if $each }}
{{- $shown := ternary (print $key "=") "something in it" (and (contains "=" $each) (regexMatch "^[A-Za-z0-9_.-]{1,30}$" $key)) }}
{{- fail (printf "%s: %s is no parameter; there are region=, endpoint= and client=" $name $shown) }}
{{- end -}}
{{- $_ := set $seen $key true -}}
{{- end -}}
{{- if not (hasKey $seen "region") }}
{{- fail (printf "%s: no region; append %sregion=REGION, such as eu-central-1, or what a server that is not AWS's calls its own (mostly us-east-1)" $name (ternary "&" "?" (gt (len $parts) 1))) }}
{{- end -}}
{{ index . 1 }}
{{- end }}

{{/* Refuses what is no server's address: list NAME ENDPOINT */}}
{{- define "siltstone.checkEndpoint" -}}
{{- if not (regexMatch "^https?://[A-Za-z0-9.-]+(:[0-9]+)?/?$" (index . 1)) }}
{{- fail (printf "%s: the endpoint is no server's address; write endpoint=https://HOST:PORT, without a path and without keys" (index . 0)) }}
{{- end -}}
{{- with regexFind ":[0-9]+/?$" (index . 1) -}}
{{- include "siltstone.checkPort" (list (index $ 0) (trimAll ":/" .)) -}}
{{- end -}}
{{- end }}

{{/* Ports of the stores, with a comma between: those of their endpoints, unless networkPolicy.storePort says another. */}}
{{- define "siltstone.storePorts" -}}
{{- $ports := list -}}
{{- range $url := compact (list .Values.objectStoreUrl .Values.produceStore.url) -}}
{{- $endpoint := regexFind "endpoint=[^&]*" $url | replace "%3A" ":" | replace "%2F" "/" | trimSuffix "/" -}}
{{- $usual := ternary "80" "443" (hasPrefix "endpoint=http:" $endpoint) -}}
{{- $ports = append $ports (regexFind ":[0-9]+$" $endpoint | trimPrefix ":" | default $usual) -}}
{{- end -}}
{{- if .Values.networkPolicy.storePort -}}
{{ .Values.networkPolicy.storePort }}
{{- else -}}
{{ $ports | uniq | join "," }}
{{- end -}}
{{- end }}

{{/* A value of a setting as text. Numbers of YAML are floats to Helm, which would print 1000000 as 1e+06. */}}
{{- define "siltstone.text" -}}
{{ ternary . (toJson .) (kindIs "string" .) }}
{{- end }}

{{/* How many agents there may be at most: so many get addresses of their own outside. */}}
{{- define "siltstone.agentsMax" -}}
{{- $autoscaling := .Values.agents.autoscaling -}}
{{ ternary $autoscaling.maxReplicas .Values.agents.replicas (ne $autoscaling.type "") | int }}
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
  {{- with .Values.podSecurityContext }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "siltstone.containerSecurity" -}}
securityContext:
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "siltstone.metricsScheme" -}}
{{ if index (.Values.settings | default dict) "metrics.tls.cert.file" }}HTTPS{{ else }}HTTP{{ end }}
{{- end -}}
