#!/usr/bin/env bash
# Freezes the interface as it is: copies the headers, and writes what abidiff compares. Run it once for each version
# that programs may be built with, before its release. List the version in meson.build then, and write a program.
# freeze.sh VERSION ROOT BUILD
set -euo pipefail
version=$1 root=$2 build=$3
folder=$root/tests/abi/frozen/$version
[ ! -e "$folder/include" ] || {
    echo "$folder is frozen already" >&2
    exit 1
}
ninja -C "$build" tests/abi/libstagehand-interface.so >/dev/null
mkdir -p "$folder/include/stagehand"
cp "$root"/include/stagehand/*.h "$folder/include/stagehand/"
abidw --exported-interfaces-only --headers-dir "$root/include" --drop-private-types --type-id-style hash \
    --no-comp-dir-path --no-corpus-path --no-show-locs --no-elf-needed \
    --out-file "$folder/libstagehand.abi" "$build/tests/abi/libstagehand-interface.so"
echo "$folder is written"
