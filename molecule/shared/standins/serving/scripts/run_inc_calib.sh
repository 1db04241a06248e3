#!/bin/bash
# Stand-in for the vendor's INC calibration. Like it, it finds everything from the working directory, which must be the
# checkout, empties the folder of measurement files, loads its texts from a hub (HF_ENDPOINT), needs a card for every
# rank, and ends with status 0 whatever has happened, since its last command is a pipe into tee.
WORLD_SIZE=8
FP8_MODEL_PATH=""
while [[ $# -gt 0 ]]; do
  case $1 in
    --model) FP8_MODEL_PATH=$2; shift 2 ;;
    --wd) WORLD_SIZE=$2; shift 2 ;;
    --nprompts) shift 2 ;;
    *) echo "Unknown argument: $1"; exit 1 ;;
  esac
done

measure() {
  [[ -e ./scripts/run_inc_calib.sh ]] || { echo "python: can't open file '$PWD/scripts/run_example_tp.py': [Errno 2] No such file or directory"; return 2; }
  [[ -r $FP8_MODEL_PATH/config.json ]] || { echo "OSError: $FP8_MODEL_PATH does not appear to have a file named config.json."; return 1; }
  # Any answer will do: it is a hub that can be reached.
  local hub=${HF_ENDPOINT:-https://huggingface.co}
  local ask="__import__('urllib.request').request.urlopen('$hub/api/datasets/NeelNanda/pile-10k', timeout=10)"
  python -c "$ask" 2>&1 | grep -qE "^(urllib.error.URLError|TimeoutError|Connection)" &&
    { echo "ConnectionError: Couldn't reach 'NeelNanda/pile-10k' on the Hub ($hub)"; return 1; }
  local cards=(/dev/accel/accel[0-9]*)
  [[ -e ${cards[0]} && ${#cards[@]} -ge $WORLD_SIZE ]] || { echo "RuntimeError: synStatus=26 [Generic failure] Device acquire failed."; return 1; }
  mkdir -p scripts/nc_workspace_measure_kvcache
  for ((rank = 0; rank < WORLD_SIZE; rank++)); do
    echo "{}" >"scripts/nc_workspace_measure_kvcache/inc_measure_output_hooks_maxabs_${rank}_${WORLD_SIZE}.json"
  done
}

rm -rf ./scripts/nc_workspace_measure_kvcache
measure 2>&1 | tee "prepare.pile.512.log"
