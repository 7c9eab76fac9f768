"""Prints Debian's list of the symbols of libstagehand0, which it takes from the version script.

debian_symbols.py MAP
"""

import pathlib
import re
import sys


def symbols(text):
    """Yields each symbol with its node, and each node as a symbol of its own."""
    for node, body in re.findall(r"^([\w.]+) \{(.*?)^\}", text, flags=re.S | re.M):
        yield node, node
        for name in re.findall(r"^    (\w+);", body, flags=re.M):
            yield name, node


def main():
    print("libstagehand.so.0 libstagehand0 #MINVER#")
    print("* Build-Depends-Package: libstagehand-dev")
    for name, node in sorted(symbols(pathlib.Path(sys.argv[1]).read_text())):
        print(f" {name}@{node} {node.rpartition('_')[2]}")


if __name__ == "__main__":
    main()
