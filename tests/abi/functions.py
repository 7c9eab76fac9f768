"""docs/functions.md: one table of all functions of the C interface, made from the comments in the headers.

functions.py ROOT            says whether the file is what the headers give, and whether every comment is complete
functions.py ROOT --update   writes the file
"""

import pathlib
import re
import sys

from interface import Interface

# In the order in which an engine meets them.
HEADERS = [
    *("base", "device", "host", "source", "runtime", "contents", "parts", "streaming", "members"),
    *("residency", "graph", "spill", "activations", "occupancy", "helpers", "control", "telemetry"),
]
# base.h says of these that any call may return them.
ANY_CALL = {"SH_ERROR_INVALID_STRUCT", "SH_ERROR_FORKED", "SH_ERROR_OUT_OF_HOST_MEMORY", "SH_ERROR_INTERNAL"}

HEAD = """# All functions

`./dev gen` writes this table from the comments in `include/stagehand/`. The comments have the details.

- **Blocks** says when the calling thread may wait for the device, for a file, or for a thread of the library.
- **Threads**: every function may be called from any thread, and from several at once, except as said.
- **Statuses** lists what the function returns beside `SH_OK`. Every function that returns a status may also return
  `SH_ERROR_INVALID_STRUCT`, `SH_ERROR_INVALID_HANDLE`, `SH_ERROR_INVALID_ARGUMENT`, `SH_ERROR_FORKED`,
  `SH_ERROR_OUT_OF_HOST_MEMORY` and `SH_ERROR_INTERNAL`. The table leaves out the prefix `SH_ERROR_`.
"""


class Function:
    def __init__(self, name, comment):
        self.name = name
        text = " ".join(line.strip().removeprefix("*").strip() for line in comment.splitlines())
        parts = re.split(r"(?=@\w+|\\since)", text)
        self.summary = parts[0].strip()
        self.tags = [re.match(r"[@\\](\w+)\s*(.*)", part, re.S).groups() for part in parts[1:]]

    def tag(self, name):
        return next((text.strip() for tag, text in self.tags if tag == name), None)

    def statuses(self):
        return [text.split()[0] for tag, text in self.tags if tag == "retval"]


def functions(root):
    for header in HEADERS:
        text = (root / f"include/stagehand/{header}.h").read_text()
        for comment, name in re.findall(
            r"/\*\*((?:(?!\*/).)*)\*/\s*SH_API [^;(]*?\b(sh_\w+)\([^;]*;", text, flags=re.S
        ):
            yield header, Function(name, comment)


def table(root):
    lines = [HEAD]
    before = None
    for header, function in functions(root):
        if header != before:
            lines += [
                "" if before else None,
                f"## {header}.h\n",
                "| function | blocks | threads | statuses |",
                "|---|---|---|---|",
            ]
            before = header
        statuses = ", ".join(
            f"`{status.removeprefix('SH_ERROR_')}`" for status in function.statuses() if status != "SH_OK"
        )
        cells = [f"`{function.name}`", function.tag("blocks") or "?", function.tag("threads") or "any", statuses or "–"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(line for line in lines if line is not None) + "\n"


def problems(root):
    interface = Interface(root / "include")
    known = {name for name in interface.constants if name.startswith(("SH_ERROR_", "SH_OK", "SH_NOT_READY", "SH_KEPT"))}
    seen = set()
    for header, function in functions(root):
        seen.add(function.name)
        statuses = function.statuses()
        returns_status = interface.functions[function.name].startswith("sh_status")
        if not function.tag("blocks"):
            yield f"{function.name}: its comment has no @blocks"
        if returns_status and "SH_OK" not in statuses:
            yield f"{function.name}: its comment has no @retval SH_OK"
        if not returns_status and statuses:
            yield f"{function.name}: it returns no status, but its comment has @retval"
        for status in statuses:
            if status not in known:
                yield f"{function.name}: there is no {status}"
            if status in ANY_CALL:
                yield f"{function.name}: base.h says already that any call may return {status}"
            if statuses.count(status) > 1:
                yield f"{function.name}: {status} is told twice"
    # What initializes a struct is told once, at the first of them.
    for name in interface.functions:
        if name not in seen and name not in interface.init_functions:
            yield f"{name}: it has no comment"


def main():
    root = pathlib.Path(sys.argv[1])
    page = root / "docs/functions.md"
    text = table(root)
    if "--update" in sys.argv[2:]:
        if not page.exists() or page.read_text() != text:
            page.write_text(text)
            print("docs/functions.md written")
        return 0
    found = list(problems(root))
    if not page.exists() or page.read_text() != text:
        found.append("docs/functions.md is not what the headers give: run ./dev gen")
    print(*(found or [f"{text.count('| `sh_')} functions are told"]), sep="\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
