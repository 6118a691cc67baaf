{{/* The release's name, with the chart's in it, once. */}}
{{- define "sparsed.name" -}}
{{- if contains "sparsed" .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-sparsed" .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "sparsed.selector" -}}
app.kubernetes.io/name: sparsed
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "sparsed.labels" -}}
{{ include "sparsed.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "sparsed.image" -}}
{{- $tag := .Values.image.tag | default (printf "%s%s" .Chart.AppVersion (ternary "-cuda" "" .Values.gpu.enabled)) -}}
{{ .Values.image.repository }}:{{ $tag }}
{{- end -}}

{{/* Where other nodes of a cluster, and clients that they send there, reach a pod. */}}
{{- define "sparsed.podAddress" -}}
$(POD_NAME).{{ include "sparsed.name" . }}-headless.{{ .Release.Namespace }}.svc:7470
{{- end -}}

{{/* By which a pod drains itself; as words of a shell. */}}
{{- define "sparsed.drain" -}}
sparsectl --server="$POD_NAME.{{ include "sparsed.name" . }}-headless.{{ .Release.Namespace }}.svc:7470"{{ if .Values.cluster.tokenSecret }} --tls-ca=/etc/sparsed/tls/ca.crt --token-file=/etc/sparsed/cluster/token{{ end }} cluster drain "$POD_NAME"
{{- end -}}

{{/* The server's configuration file: what the chart decides, and .Values.config over it. */}}
{{- define "sparsed.config" -}}
{{- if not (or .Values.access.insecure (and .Values.access.secret .Values.tls.secret)) -}}
{{- fail "name the secrets access.secret and tls.secret, or set access.insecure=true: whoever the network policy lets in may then read, replace and delete every matrix" -}}
{{- end -}}
{{- if and .Values.tls.clientCa (not .Values.tls.secret) -}}
{{- fail "tls.clientCa: the authorities are in tls.secret, which is empty" -}}
{{- end -}}
{{- if .Values.cluster.etcd -}}
{{- if and .Values.access.secret (not .Values.cluster.tokenSecret) -}}
{{- fail "name the secret cluster.tokenSecret: with access.secret the nodes of a cluster know each other by it" -}}
{{- end -}}
{{- if and .Values.cluster.tokenSecret (not .Values.tls.secret) -}}
{{- fail "cluster.tokenSecret: nodes show it over TLS alone; name the secret tls.secret, with ca.crt in it" -}}
{{- end -}}
{{- if and (gt (int .Values.cluster.replicas) 1) (not .Values.persistence.enabled) -}}
{{- fail "cluster.replicas: copies are on disks, which persistence.enabled=false does not have; set it to 1" -}}
{{- end -}}
{{- if and .Values.podDisruptionBudget.enabled (gt (int .Values.cluster.replicas) 1) (ge (int .Values.podDisruptionBudget.maxUnavailable) (int .Values.cluster.replicas)) -}}
{{- fail "podDisruptionBudget.maxUnavailable: as many pods as have each matrix (cluster.replicas) may not be away at once" -}}
{{- end -}}
{{- if and (gt (int .Values.cluster.drainSeconds) 0) (le (int .Values.terminationGracePeriodSeconds) (add 30 (int .Values.cluster.drainSeconds))) -}}
{{- fail "terminationGracePeriodSeconds: cluster.drainSeconds and 30 s for ending are to fit into it" -}}
{{- end -}}
{{- end -}}
{{- $config := dict "listen" (list "0.0.0.0:7470") "metrics_listen" "0.0.0.0:7471" -}}
{{- if .Values.persistence.enabled -}}
{{- $_ := set $config "data_dir" "/var/lib/sparsed" -}}
{{- else -}}
{{- $_ := set $config "in_memory" true -}}
{{- end -}}
{{- if .Values.gpu.enabled -}}
{{- $devices := list -}}
{{- range $number := until (int .Values.gpu.count) -}}
{{- $devices = append $devices (printf "cuda:%d" $number) -}}
{{- end -}}
{{- $_ := set $config "devices" $devices -}}
{{- end -}}
{{- if .Values.access.insecure -}}
{{- $_ := set $config "insecure" true -}}
{{- end -}}
{{- if .Values.access.secret -}}
{{- $_ := set $config "access_file" "/etc/sparsed/access/access.yaml" -}}
{{- end -}}
{{- if .Values.tls.secret -}}
{{- $_ := set $config "tls_certificate" "/etc/sparsed/tls/tls.crt" -}}
{{- $_ := set $config "tls_key" "/etc/sparsed/tls/tls.key" -}}
{{- if .Values.tls.clientCa -}}
{{- $_ := set $config "tls_client_ca" "/etc/sparsed/tls/ca.crt" -}}
{{- end -}}
{{- end -}}
{{- with .Values.cluster -}}
{{- if .etcd -}}
{{- $_ := set $config "etcd" .etcd -}}
{{- $_ := set $config "replicas" (int .replicas) -}}
{{- if .tokenSecret -}}
{{- $_ := set $config "cluster_token_file" "/etc/sparsed/cluster/token" -}}
{{- $_ := set $config "cluster_ca" "/etc/sparsed/tls/ca.crt" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml (mergeOverwrite $config (deepCopy .Values.config)) -}}
{{- end -}}
