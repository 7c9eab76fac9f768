#!/bin/sh
# AMD's real driver library on a machine without a GPU of AMD's: the hip backend says what is wrong, and the others
# work. without_gpu.sh PLUGIN-FOLDER LOADER-PROBE [STAGEHAND-COMMAND]. 77: not such a machine.
set -u
PATH=$PATH:/sbin:/usr/sbin
ldconfig -p | grep -q 'libamdhip64\.so' || { echo "libamdhip64.so is not installed"; exit 77; }
[ ! -e /dev/kfd ] || { echo "there may be a GPU of AMD's"; exit 77; }
STAGEHAND_BACKEND_PATH=$1
export STAGEHAND_BACKEND_PATH
header=$(dirname "$0")/../../include/stagehand/base.h
unavailable=$(awk '/SH_ERROR_BACKEND_UNAVAILABLE *=/ { sub(/,.*/, "", $3); print $3 }' "$header")
[ -n "$unavailable" ] || { echo "base.h does not tell SH_ERROR_BACKEND_UNAVAILABLE"; exit 1; }

list=$("$2" --list) || { echo "$2 --list failed"; exit 1; }
line=$(printf '%s\n' "$list" | grep '^hip|')
case $line in
    "hip|$unavailable|0|0|$1/stagehand-hip.so|"*hipErrorNoDevice*) ;;
    *) printf 'the list says: %s\n' "$line"; exit 1 ;;
esac
[ $# -lt 3 ] && exit 0
told=$("$3" devices) || { echo "stagehand devices failed"; exit 1; }
printf '%s\n' "$told" | grep -A 1 '^hip .*does not work' | grep -q hipErrorNoDevice ||
    { printf '%s\n' "$told"; exit 1; }
printf '%s\n' "$told" | grep -q '^host  built in  8 devices' || { printf '%s\n' "$told"; exit 1; }
