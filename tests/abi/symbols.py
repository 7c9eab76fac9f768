"""The version map names exactly the functions of the headers, and the library exports exactly what the map names.

symbols.py map INCLUDE_DIR MAP
symbols.py exports MAP LIBRARY SONAME
"""

import re
import subprocess
import sys

from interface import Interface

# The libraries that the library may need at run time. Sanitizers add others.
ALLOWED = re.compile(
    r"(libc|libm|libgcc_s|libstdc\+\+|libpthread|libdl|liburing|libasan|libubsan|libtsan|ld-linux[\w-]*)\.so\b.*"
)


def map_nodes(path):
    """{symbol: node} and what is wrong with the map."""
    text = re.sub(r"/\*.*?\*/", "", open(path).read(), flags=re.S)
    symbols, problems = {}, []
    for node, body in re.findall(r"([\w.]+)\s*\{(.*?)\}", text, flags=re.S):
        section = None
        for word in re.findall(r"[^\s;]+", body):
            if word in ("global:", "local:"):
                section = word
            elif section == "local:":
                if word != "*":
                    problems.append(f"{node} hides {word} by name")
            elif not re.fullmatch(r"\w+", word):
                problems.append(f"{node} exports the pattern {word}")
            elif word in symbols:
                problems.append(f"{word} occurs twice")
            else:
                symbols[word] = node
    return symbols, problems


def difference(left, left_name, right, right_name):
    return [f"{name} is in {left_name}, not in {right_name}" for name in sorted(set(left) - set(right))] + [
        f"{name} is in {right_name}, not in {left_name}" for name in sorted(set(right) - set(left))
    ]


def tool(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def check_exports(map_path, library, soname):
    symbols, problems = map_nodes(map_path)
    exported = {}
    for line in tool("nm", "-D", "--defined-only", "--with-symbol-versions", library).splitlines():
        _, kind, name = line.split(maxsplit=2)
        name, _, node = name.partition("@@")
        if kind == "A" and node == name.partition("@")[0] or kind == "A" and not node:
            continue  # the node itself
        exported[name] = node
        if symbols.get(name, node) != node:
            problems.append(f"{name} is exported by {node}, in the map it is in {symbols[name]}")
    problems += difference(exported, "the library", symbols, "the map")
    dynamic = tool("readelf", "-d", library)
    if f"[{soname}]" not in dynamic:
        problems.append(f"the soname is not {soname}")
    for needed in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
        if not ALLOWED.fullmatch(needed):
            problems.append(f"the library needs {needed}")
    return problems, len(exported)


def main():
    if sys.argv[1] == "map":
        symbols, problems = map_nodes(sys.argv[3])
        functions = Interface(sys.argv[2]).functions
        problems += difference(functions, "the headers", symbols, "the map")
        count = len(symbols)
    else:
        problems, count = check_exports(*sys.argv[2:])
    print(*(problems or [f"{count} symbols, as they should be"]), sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
