{{/* What all replicas run: the pod of the Deployment, and the predictor of KServe. */}}
{{- define "eulerlora.labels" -}}
app.kubernetes.io/name: eulerlora
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "eulerlora.replicas" -}}
{{ .Values.replicas | default (empty .Values.audit.size | ternary 2 1) }}
{{- end }}

{{- define "eulerlora.pod" -}}
{{- $settings := .Values.settings | default dict -}}
{{- $uploadS := get $settings "EULERLORA_SERVE_BODIES__UPLOAD_TIMEOUT_S" | default "30" -}}
{{- $deadlineS := get $settings "EULERLORA_SERVE_DEADLINE_S" | default "10" -}}
{{- $stopS := addf 20 5 (float64 $uploadS) (float64 $deadlineS) | ceil -}}{{/* 20 s of drain, 5 s of margin */}}
{{- $settings = merge (dict) $settings (dict "EULERLORA_SERVE_LIFE__GRACE_S" (toString $stopS)) -}}
{{- with .Values.ingress -}}
{{- $added := dict -}}
{{- if .host -}}
{{- $hosts := list .host $.Release.Name -}}
{{- range list "" ".svc" ".svc.cluster.local" -}}
{{- $hosts = append $hosts (printf "%s.%s%s" $.Release.Name $.Release.Namespace .) -}}
{{- end -}}
{{- $_ := set $added "EULERLORA_SERVE_ALLOWED_HOSTS" (join "," $hosts) -}}
{{- end -}}
{{- if .proxies -}}
{{- $_ := set $added "EULERLORA_SERVE_TRUSTED_PROXIES" .proxies -}}
{{- end -}}
{{- range $name, $value := $added -}}
{{- $_ := set $settings $name (list $value (get $settings $name) | compact | join ",") -}}
{{- end -}}
{{- end -}}
{{- $ready := .Values.kserve.enabled | ternary "/v2/health/ready" "/readyz" -}}
{{- $live := .Values.kserve.enabled | ternary "/v2/health/live" "/livez" -}}
automountServiceAccountToken: false
enableServiceLinks: false # they would add variables such as EULERLORA_PORT
{{- $graceS := get $settings "EULERLORA_SERVE_LIFE__GRACE_S" | float64 }}
terminationGracePeriodSeconds: {{ addf 10 $graceS | ceil }} # 5 s before the signal, 5 s of reserve
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .Values.userId }}
  runAsGroup: {{ .Values.userId }}
  fsGroup: {{ .Values.userId }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "eulerlora.labels" . | nindent 8 }}
{{- if .Values.gpu }}
tolerations:
  - key: nvidia.com/gpu
    operator: Exists
    effect: NoSchedule
{{- end }}
containers:
  - name: {{ .Values.kserve.enabled | ternary "kserve-container" "eulerlora" }}
    image: {{ .Values.image }}
    command:
      - eulerlora
      - serve
      {{- range .Values.checkpoints }}
      - {{ . }}
      {{- end }}
      {{- if .Values.kserve.storageUri }}
      - {{ .Release.Name }}=/mnt/models
      {{- end }}
      - --host=0.0.0.0
      - --port=8000
      - --keys=/etc/eulerlora/keys.jsonl
      {{- if .Values.audit.size }}
      - --audit=/var/lib/eulerlora/audit.jsonl
      - --audit-secret=/etc/eulerlora/audit.secret
      {{- end }}
      - --require-sandbox
      - --log-format=json
      - --drain-s=20
      {{- if not .Values.gpu }}
      - --device=cpu
      {{- end }}
      {{- range .Values.options }}
      - {{ . }}
      {{- end }}
    env:
      {{- if not .Values.gpu }}
      - name: OMP_NUM_THREADS
        value: {{ .Values.cpu | quote }}
      {{- end }}
      {{- with .Values.kserve.storageUri }}
      - name: STORAGE_URI # `storageUri` of a predictor with a container of its own
        value: {{ . }}
      {{- end }}
      {{- range $name, $value := $settings }}
      - name: {{ $name }}
        value: {{ $value | quote }}
      {{- end }}
    ports:
      - name: http
        containerPort: 8000
    startupProbe: # the model is loaded, warmed up and checked with a known answer
      httpGet:
        path: {{ $ready }}
        port: http
      periodSeconds: 2
      timeoutSeconds: 2
      failureThreshold: 120
    readinessProbe:
      httpGet:
        path: {{ $ready }}
        port: http
      periodSeconds: 5
      timeoutSeconds: 2
      failureThreshold: 2
    livenessProbe:
      httpGet:
        path: {{ $live }}
        port: http
      periodSeconds: 10
      timeoutSeconds: 5
      failureThreshold: 3
    lifecycle:
      preStop: # until all proxies have removed the pod from their endpoints
        sleep:
          seconds: 5
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities:
        drop: [ALL]
    resources:
      requests:
        cpu: {{ .Values.cpu }}
        memory: {{ .Values.memory }}
      limits:
        memory: {{ .Values.memory }}
        {{- if .Values.gpu }}
        nvidia.com/gpu: 1
        {{- else }}
        cpu: {{ .Values.cpu }}
        {{- end }}
    volumeMounts:
      - name: tmp
        mountPath: /tmp
      - name: secret
        mountPath: /etc/eulerlora
        readOnly: true
      {{- if .Values.checkpointsClaim }}
      - name: checkpoints
        mountPath: /checkpoints
        readOnly: true
      {{- end }}
      {{- if .Values.audit.size }}
      - name: audit
        mountPath: /var/lib/eulerlora
      {{- end }}
volumes:
  - name: tmp
    emptyDir:
      sizeLimit: {{ .Values.volumeForTmp }}
  - name: secret
    secret:
      secretName: {{ .Values.secret }}
      defaultMode: 0440
      items:
        - key: keys.jsonl
          path: keys.jsonl
        {{- if .Values.audit.size }}
        - key: audit.secret
          path: audit.secret
        {{- end }}
  {{- with .Values.checkpointsClaim }}
  - name: checkpoints
    persistentVolumeClaim:
      claimName: {{ . }}
      readOnly: true
  {{- end }}
  {{- if .Values.audit.size }}
  - name: audit
    persistentVolumeClaim:
      claimName: {{ .Release.Name }}-audit
  {{- end }}
{{- end }}
