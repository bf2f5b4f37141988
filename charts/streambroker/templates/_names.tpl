{{- define "streambroker.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- /* What all names begin with. Short enough for the longest ending that is put behind it. */ -}}
{{- define "streambroker.fullname" -}}
{{- $name := include "streambroker.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Names of what has no namespace: two releases of one name in two namespaces do not meet. */ -}}
{{- define "streambroker.clustername" -}}
{{- printf "%s:%s" .Release.Namespace (include "streambroker.fullname" .) -}}
{{- end -}}

{{- define "streambroker.selector" -}}
app.kubernetes.io/name: {{ include "streambroker.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: broker
{{- end -}}

{{- define "streambroker.own" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/name: {{ include "streambroker.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: streambroker
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "streambroker.labels" -}}
{{- include "streambroker.labelswith" (list . dict) -}}
{{- end -}}

{{- /* The chart's labels, and those of a map where they say nothing: (list root map). */ -}}
{{- define "streambroker.labelswith" -}}
{{- $root := index . 0 -}}
{{- toYaml (merge (include "streambroker.own" $root | fromYaml) (index . 1) $root.Values.commonLabels) -}}
{{- end -}}

{{- define "streambroker.serviceaccount" -}}
{{- $own := ternary (include "streambroker.fullname" .) "default" .Values.serviceAccount.create -}}
{{- default $own .Values.serviceAccount.name -}}
{{- end -}}

{{- define "streambroker.lease" -}}
{{- default (include "streambroker.fullname" .) .Values.lease.name -}}
{{- end -}}

{{- /* Not empty where the broker makes the key. */ -}}
{{- define "streambroker.keybybroker" -}}
{{- if and .Values.key.byBroker (not .Values.key.create) }}true{{ end -}}
{{- end }}

{{- define "streambroker.key" -}}
{{- default (printf "%s-key" (include "streambroker.fullname" .)) .Values.key.name -}}
{{- end -}}

{{- /* Of the webhook's Service, and of the Secret with its certificate. */ -}}
{{- define "streambroker.webhook" -}}
{{- printf "%s-webhook" (include "streambroker.fullname" .) -}}
{{- end -}}

{{- define "streambroker.webhookconfiguration" -}}
{{- printf "%s.%s" (include "streambroker.fullname" .) .Release.Namespace -}}
{{- end -}}

{{- /* YAML reads a bare `off` as false. */ -}}
{{- define "streambroker.tls" -}}
{{- $mode := .Values.tls.mode | toString -}}
{{- eq $mode "false" | ternary "off" $mode -}}
{{- end -}}

{{- define "streambroker.tlssecret" -}}
{{- if eq (include "streambroker.tls" .) "secret" -}}
{{- required "tls.secretName: name the Secret with the certificate (tls.mode is secret)" .Values.tls.secretName -}}
{{- else -}}
{{- default (printf "%s-tls" (include "streambroker.fullname" .)) .Values.tls.secretName -}}
{{- end -}}
{{- end -}}

{{- define "streambroker.dnsnames" -}}
{{- $service := include "streambroker.fullname" . -}}
{{- $inside := printf "%s.%s" $service .Release.Namespace -}}
{{- concat (list $service $inside (printf "%s.svc" $inside) (printf "%s.svc.cluster.local" $inside)) .Values.tls.dnsNames | toJson -}}
{{- end -}}

{{- define "streambroker.agenttls" -}}
{{- $mode := .Values.agentTls.mode | toString -}}
{{- if eq $mode "auto" -}}
{{- include "streambroker.roles" . | fromJsonArray | empty | ternary "off" "self-signed" -}}
{{- else -}}
{{- eq $mode "false" | ternary "off" $mode -}}
{{- end -}}
{{- end -}}

{{- define "streambroker.agentsecret" -}}
{{- default (printf "%s-agent-tls" (include "streambroker.fullname" .)) .Values.agentTls.secretName -}}
{{- end -}}

{{- define "streambroker.clientsecret" -}}
{{- $given := .Values.agentTls.secretName -}}
{{- $given | empty | ternary (printf "%s-agent-client" (include "streambroker.fullname" .)) (printf "%s-client" $given) -}}
{{- end -}}

{{- define "streambroker.scheme" -}}
{{- eq (include "streambroker.tls" .) "off" | ternary "http" "https" -}}
{{- end -}}

{{- define "streambroker.image" -}}
{{- $registry := required "image.registry: name the registry that has the image, for instance --set image.registry=registry.example.com/streams (the project has none of its own: make images builds the image, see docs/kubernetes.md)" .Values.image.registry -}}
{{- $name := printf "%s/%s" $registry .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $name .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- /* `own`, `*`, or names with commas between them, as the command line takes them. */ -}}
{{- define "streambroker.watched" -}}
{{- kindIs "slice" .Values.watchNamespaces | ternary .Values.watchNamespaces (list .Values.watchNamespaces) | join "," -}}
{{- end -}}

{{- /* The namespaces in which the broker has a Role, as a JSON list; empty for all. */ -}}
{{- define "streambroker.roles" -}}
{{- if kindIs "slice" .Values.watchNamespaces -}}
{{- .Values.watchNamespaces | toJson -}}
{{- else if eq .Values.watchNamespaces "own" -}}
{{- list .Release.Namespace | toJson -}}
{{- else -}}
[]
{{- end -}}
{{- end -}}

{{- define "streambroker.podsecurity" -}}
runAsNonRoot: true
runAsUser: {{ .Values.runAsUser }}
runAsGroup: {{ .Values.runAsUser }}
fsGroup: {{ .Values.runAsUser }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "streambroker.containersecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* The port at which the pods behind a URL listen: (list URL PORT), where port 0 is that of the URL. */}}
{{- define "streambroker.receiverport" -}}
{{- $url := urlParse (index . 0) }}
{{- index . 1 | default (regexFind ":[0-9]+$" $url.host | trimPrefix ":") | default (ternary 443 80 (eq $url.scheme "https")) }}
{{- end }}
