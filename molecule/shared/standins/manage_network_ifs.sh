#!/bin/sh
# Stand-in for Habana's manage_network_ifs.sh: brings the ports of the cards down and up, and shows them. A driver that
# was loaded has its ports down until they were brought down and up. GAUDI_SIM_ROOT is put before the paths, for tests.
ports=${GAUDI_SIM_ROOT:-}/run/gaudi-sim/ports
[ -n "${GAUDI_SIM_ROOT:-}" ] || [ "$(id -u)" = 0 ] || { echo "must be run as root" >&2; exit 1; }
[ -d "${GAUDI_SIM_ROOT:-}/sys/module/habanalabs" ] || { echo "no interfaces were found" >&2; exit 1; }
case "$1" in
  --down) echo cleared >"$ports" ;;
  --up) [ "$(cat "$ports" 2>/dev/null)" = cleared ] && echo up >"$ports"; exit 0 ;;
  --status) if [ "$(cat "$ports" 2>/dev/null)" = up ]; then echo "accel0: 24 ports up"; else echo "accel0: 24 ports down"; fi ;;
  *) echo "usage: manage_network_ifs.sh --up|--down|--status" >&2; exit 1 ;;
esac
