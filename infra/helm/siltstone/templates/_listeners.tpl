{{/* How a listener knows its clients, always over TLS: list NAME (DEFAULT, EXTERNAL) AUTHENTICATION FOLDER WHERE */}}
{{- define "siltstone.listenerEnv" -}}
{{- $name := index . 0 -}}
{{- $authentication := index . 1 -}}
{{- $folder := index . 2 -}}
{{- if eq $authentication "SCRAM" }}
- {name: SILTSTONE_LISTENER_{{ $name }}_PROTOCOL, value: SASL_SSL}
{{- else if eq $authentication "CERTIFICATE" }}
- {name: SILTSTONE_LISTENER_{{ $name }}_PROTOCOL, value: SSL}
- {name: SILTSTONE_LISTENER_{{ $name }}_TLS_CLIENT_AUTH, value: required}
- {name: SILTSTONE_LISTENER_{{ $name }}_TLS_CA_FILE, value: {{ $folder }}/ca.crt}
{{- else }}
{{- fail (printf "%s.authentication: SCRAM or CERTIFICATE" (index . 3)) }}
{{- end }}
- {name: SILTSTONE_LISTENER_{{ $name }}_TLS_CERT_FILE, value: {{ $folder }}/tls.crt}
- {name: SILTSTONE_LISTENER_{{ $name }}_TLS_KEY_FILE, value: {{ $folder }}/tls.key}
{{- end }}

{{/* The listener for clients outside. Its address and its port are in a file for each agent (external.yaml). */}}
{{- define "siltstone.externalEnv" -}}
{{- $external := .Values.external -}}
{{- $folder := ternary "/etc/siltstone/external-tls" "/etc/siltstone/tls" (ne $external.tlsSecret "") -}}
{{- $authentication := $external.authentication | default .Values.listener.authentication -}}
{{ include "siltstone.listenerEnv" (list "EXTERNAL" $authentication $folder "external") | trim }}
{{- with $external.proxyProtocolFrom }}
- {name: SILTSTONE_LISTENER_EXTERNAL_PROXY_PROTOCOL_FROM, value: {{ join "," . | quote }}}
{{- end }}
{{- if include "siltstone.isAtNode" . }}
- name: NODE_ADDRESS
  valueFrom: {fieldRef: {fieldPath: status.hostIP}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
{{/* Port 0: the port that the agent listens on, which is that of its node. */}}
- name: SILTSTONE_LISTENER_EXTERNAL_ADVERTISED
  value: {{ $external.host | default "$(NODE_ADDRESS)" | replace "{node}" "$(NODE_NAME)" }}:0
{{- end }}
{{- end }}

{{/* Not empty if clients outside are told the node of an agent, which is known when the pod starts. */}}
{{- define "siltstone.isAtNode" -}}
{{- $external := .Values.external -}}
{{- if and (eq $external.type "NodePort") (not $external.hosts) (or (not $external.host) (contains "{node}" $external.host)) -}}
yes
{{- end -}}
{{- end }}

{{/* The host at which clients outside reach an agent: list ORDINAL $ */}}
{{- define "siltstone.externalHost" -}}
{{- $external := (index . 1).Values.external -}}
{{- $ordinal := index . 0 -}}
{{- if $external.hosts -}}
{{- if ge $ordinal (len $external.hosts) }}
{{- fail (printf "external.hosts: %s names, one for each agent that there may be" (include "siltstone.agentsMax" (index . 1))) }}
{{- end -}}
{{ index $external.hosts $ordinal }}
{{- else -}}
{{- if and (ne $external.type "NodePort") (not (contains "{ordinal}" $external.host)) }}
{{- fail "external.host: the name of each agent, with {ordinal} in it; or list the names in external.hosts" }}
{{- end -}}
{{ $external.host | replace "{ordinal}" (toString $ordinal) }}
{{- end -}}
{{- end }}

{{/* The port on which an agent listens for clients outside. At nodes each agent has its own: list ORDINAL $ */}}
{{- define "siltstone.externalPort" -}}
{{- $external := (index . 1).Values.external -}}
{{ ternary (add $external.port (index . 0)) 9094 (eq $external.type "NodePort") }}
{{- end }}
