#!/bin/sh
# Runs the tests of debian/tests in a bare Debian. Each test gets the packages that it names, and they are removed again
# after it. `./dev deb` runs this program in a new root. /packages has the packages as a repository, and /source the
# sources.
set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
echo 'deb [trusted=yes] file:/packages ./' >/etc/apt/sources.list.d/packages.list
apt-get update -qq
dpkg-query -W -f '${Package}\n' | sort >/before
failed=
for test in $(sed -n 's/^Tests: //p' /source/debian/tests/control); do
    needs=$(sed -n "/^Tests: $test\$/,/^\$/s/^Depends: //p" /source/debian/tests/control | tr -d ,)
    code=0
    (cd /source && apt-get install -y -qq --no-install-recommends $needs >/tmp/install.log 2>&1) || code=$?
    if [ $code = 0 ]; then
        work=$(mktemp -d)
        (cd /source && AUTOPKGTEST_TMP=$work "debian/tests/$test" >"/tmp/$test.log" 2>&1) || code=$?
    else
        cp /tmp/install.log "/tmp/$test.log"
    fi
    case $code in
        0) echo "$test: passed ($needs)" ;;
        77) echo "$test: skipped" ;;
        *) echo "$test: FAILED"; tail -n 30 "/tmp/$test.log"; failed="$failed $test" ;;
    esac
    dpkg-query -W -f '${Package}\n' | sort | comm -13 /before - | xargs -r apt-get purge -y -qq >/dev/null 2>&1 ||
        { echo "the packages of $test cannot be removed"; failed="$failed $test"; }
done
[ -z "$failed" ]
