{{- define "nsqx.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* The labels that select the pods of a component: dict "root" $ "component" "nsqd". */}}
{{- define "nsqx.selector" -}}
app.kubernetes.io/name: nsqx
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "nsqx.labels" -}}
{{ include "nsqx.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "nsqx.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The name of each nsqlookupd, which stays when its pod is replaced. */}}
{{- define "nsqx.lookupdHosts" -}}
{{- $name := include "nsqx.name" . -}}
{{- range $number := until (int .Values.nsqlookupd.replicas) }}
{{ $name }}-nsqlookupd-{{ $number }}.{{ $name }}-nsqlookupd.{{ $.Release.Namespace }}.svc.{{ $.Values.clusterDomain }}
{{- end }}
{{- end }}

{{- define "nsqx.podSecurity" -}}
runAsNonRoot: true
runAsUser: 4150
runAsGroup: 4150
fsGroup: 4150
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "nsqx.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Where the pods of a component run: dict "root" $ "component" "nsqd". Different nodes if possible. */}}
{{- define "nsqx.placement" -}}
{{- $values := index .root.Values .component }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
affinity:
{{- if $values.affinity }}
{{- toYaml $values.affinity | nindent 2 }}
{{- else }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- include "nsqx.selector" . | nindent 14 }}
{{- end }}
{{- end }}
