#!/bin/sh
# A compiler before C++17 is told so in its first message.
#   too_old.sh INCLUDE_DIR COMPILER...
set -u
include=$1
shift
failed=0
for header in stagehand error; do
    said=$(printf '#include <stagehand/%s.hpp>\n' "$header" |
        LC_ALL=C "$@" -x c++ -std=c++14 -I"$include" -fsyntax-only - 2>&1)
    case $(printf '%s\n' "$said" | grep -m 1 error) in
        *"stagehand/$header.hpp needs C++17"*) ;;
        *) printf 'stagehand/%s.hpp as C++14: %s\n' "$header" "$said" | head -n 5; failed=1 ;;
    esac
done
exit $failed
