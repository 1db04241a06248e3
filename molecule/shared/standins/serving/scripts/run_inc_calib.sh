#!/bin/sh
# Stand-in for the vendor's INC calibration: it needs a model and at least one card, and leaves measurement files.
set -eu
cd "$(dirname "$0")"
[ "$#" = 2 ] && [ "$1" = --model ] || { echo "Usage: run_inc_calib.sh --model DIR" >&2; exit 1; }
[ -r "$2/config.json" ] || { echo "$2/config.json: not found" >&2; exit 1; }
ls /dev/accel/accel[0-9]* >/dev/null 2>&1 || { echo "RuntimeError: synStatus=26 [Generic failure] Device acquire failed." >&2; exit 1; }
mkdir -p nc_workspace_measure_kvcache
for card in /dev/accel/accel[0-9]*; do
  echo "{}" >"nc_workspace_measure_kvcache/inc_measure_output_hooks_maxabs_${card##*accel}_8.json"
done
