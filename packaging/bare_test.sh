#!/bin/sh
# Runs the line of docs/install.md for one way to install, as it stands. `./dev bare` runs this program in a new root.
#   /release   the files of a release, and a model
#   /source    the sources
set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PIP_CERT=/etc/ssl/certs/ca-certificates.crt
way=$1 page=/source/docs/install.md

# block LANGUAGE: the block of that language in the way's section.
block() {
    sed -n "/^## $way\$/,/^## /p" $page | sed -n "/^\`\`\`$1\$/,/^\`\`\`\$/p" | sed '/^```/d'
}

cd /release
cp /source/examples/stream_file/stream_file.cpp /source/examples/stream_file/stream_file.py .
case $way in
    CMake) mkdir cmake && block cmake >cmake/CMakeLists.txt ;;
    Meson)
        mkdir -p meson/subprojects/packagefiles
        block meson >meson/meson.build
        cp stagehand.wrap meson/subprojects
        cp stagehand-*.tar.xz meson/subprojects/packagefiles
        ;;
    cargo)
        mkdir -p cargo/src
        cp /source/bindings/rust/examples/stream_file.rs cargo/src/main.rs
        block toml >cargo/Cargo.toml
        for crate in *.crate; do tar -xf "$crate"; done
        ;;
esac
line=$(block sh)
[ -n "$line" ] || { echo "$way: no line in $page"; exit 1; }
# The last line of a comparison: of the command, or of the examples.
if sh -e -c "$line" >log 2>&1 && found=$(grep -E 'step 2: .* equal the file|verified +all equal' log); then
    echo "$way: $found"
else
    echo "$way: FAILED"
    tail -n 40 log
    exit 1
fi
