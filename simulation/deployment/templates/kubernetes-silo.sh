#!/bin/sh
# Apply the manifests of the silo {{ name }}, hand its shard over where the volume has none, and wait until the client serves.
# Written by `lpsfed kubernetes --role silo`; it may be run again.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
run() { kubectl --namespace {{ namespace }} "$@"; }
state() { run get pod client-0 --ignore-not-found --output "jsonpath=$1"; }
waits() { [ -n "$(state '{.status.initContainerStatuses[?(@.name=="shard")].state.running.startedAt}')" ]; }
runs() { [ "$(state '{.status.phase}')" = Running ]; }

kubectl apply --kustomize "$here"
left={{ seconds }}
until waits || runs; do
  left=$((left - 1))
  [ "$left" -gt 0 ] || { echo "client-0: expected it to start within {{ seconds }} s; run: kubectl --namespace {{ namespace }} describe pod" >&2; exit 1; }
  sleep 1
done
if waits; then
  #: if catalogue
  run exec --stdin client-0 --container shard -- sh -c \
    'cat > /shards/catalogue.new && mv /shards/catalogue.new /shards/catalogue.txt' < "{{ catalogue }}"
  #: endif
  tar --create --directory "{{ shard }}" . | run exec --stdin client-0 --container shard -- sh -c \
    'rm -rf /shards/.arriving && mkdir /shards/.arriving && tar --extract --directory /shards/.arriving &&
     mv --no-target-directory /shards/.arriving "/shards/$LPSFED_CLIENT_NAME"'
fi
run rollout status statefulset/client --timeout=10m
