#!/bin/sh
# Builds the Debian packages twice, in a clean system of the same Debian, and compares them. `./dev deb` runs this
# program in a new root that is thrown away afterwards. /build has:
#   libstagehand_VERSION.orig.tar.xz and source/, in; packages/, out; cuda-include/, if the plugin for CUDA is wanted
set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 DEB_BUILD_OPTIONS="nocheck parallel=$(nproc)"
profile=
if [ -d /build/cuda-include ]; then
    profile=pkg.libstagehand.cuda
    export STAGEHAND_CUDA_INCLUDE=/build/cuda-include
fi
apt-get build-dep -y -qq --no-install-recommends ${profile:+-P $profile} /build/source >/build/build-dep.log 2>&1 ||
    { tail -n 20 /build/build-dep.log; exit 1; }

# build NAME: the packages, from the sources in a folder of that name.
build() {
    mkdir "/build/$1"
    cp /build/*.orig.tar.xz "/build/$1"
    cp -a /build/source "/build/$1/libstagehand"
    (cd "/build/$1/libstagehand" && dpkg-buildpackage -us -uc ${profile:+-P$profile} >"../build.log" 2>&1) ||
        { tail -n 60 "/build/$1/build.log"; exit 1; }
}
build first
# Whatever may differ between two machines and must not show.
(export TZ=Asia/Tokyo LANG=C USER=another HOME=/nowhere && umask 0077 && build second-build)
mkdir /build/packages
failed=0
for file in /build/first/*.deb /build/first/*.dsc /build/first/*.tar.xz; do
    if ! cmp "$file" "/build/second-build/${file##*/}"; then failed=1; fi
done
[ $failed = 0 ] && echo "both builds have equal bytes"
cp /build/first/*.deb /build/first/*.dsc /build/first/*.tar.xz /build/first/*.changes /build/first/*.buildinfo \
    /build/first/build.log /build/packages/
exit $failed
