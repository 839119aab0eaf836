#!/bin/sh
# The health check of a container: sh ready.sh FILE. Does the service's last word that it is ready still count?
# Its file says until when, in seconds since the machine started. Only what the shell can do by itself: a check that
# starts a Python costs a hundred times as much, and every container is asked for ever.
read -r end <"${1:?expected the file of LPSFED_*_READY_FILE}" || exit 1
read -r now _ </proc/uptime || exit 1
[ "${now%.*}" -lt "$end" ] && exit 0
echo "ready: expected the service's word of this moment, got one that ended at $end s, now $now s" >&2
exit 1
