#!/bin/sh
# Compiles each header alone, twice included, without a warning.
#   compile_alone.sh LANGUAGE STANDARD INCLUDE_DIR HEADER... -- COMPILER...
set -u
language=$1 standard=$2 include=$3
shift 3
headers=
while [ "$1" != -- ]; do
    headers="$headers $1"
    shift
done
shift
failed=0
for header in $headers; do
    printf '#include <stagehand/%s>\n#include <stagehand/%s>\nint nothing;\n' "$header" "$header" |
        "$@" -x "$language" -std="$standard" -I"$include" -Wall -Wextra -pedantic -Werror -Wundef -fsyntax-only - ||
        { echo "stagehand/$header is not clean as $standard"; failed=1; }
done
exit $failed
