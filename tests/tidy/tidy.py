"""House rules that a machine can check: file lengths, first lines, layers, unfinished marks, prints in the library,
Markdown links.

tidy.py ROOT [FILE...]
"""

import pathlib
import re
import subprocess
import sys

LONGEST_FILE = 500
LONGEST_LINE = 120
# But for a text that stands alone: in one piece it can be searched for.
TEXT_ALONE = re.compile(r"\s*(r?f?\"[^\"]*\"|r?f?'[^']*')[,)]*$|.*\bmatch=r?\".*\",$")
LONGEST_FUNCTION = 70  # of C and C++, in lines
SOURCES = {".c", ".cpp", ".h", ".hpp", ".py", ".rs", ".sh"}
SCRIPTS = {"dev", ".ci/run"}  # in shell, without an ending
TEXTS = SOURCES | {".md", ".build", ".map", ".toml", ".txt", ".yml", ".json", ""}
# Written by a program, that long.
GENERATED = {
    "bindings/rust/libstagehand-sys/src/bindings.rs",
    "bindings/python/src/cdef.h",
    "bindings/python/libstagehand/_generated.py",
}
# Written so that this file does not find itself.
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
SAYS_NOTHING = re.compile(r"\s*(//+|/\*+|\*|#) The same\b")
# The library never prints and never ends the process; the log's own sink is the one exception.
PRINTS = re.compile(
    r"\b(std::cout|std::cerr|std::clog|stdout|stderr)\b|\b(printf|puts|putchar|perror|abort|exit|_exit|quick_exit|terminate)\s*\("
)
MAY_PRINT = {"lib/base/log.cpp"}
LIBRARY = ("lib/", "backends/", "control/")
# What has one owner in the library: the calls, the owner, and other files that make them.
OWNED = [
    (r"\b(strto\w+|ato[ifl]l?|sto(i|l|ll|ul|ull|f|d|ld)|v?f?s?scanf|from_chars)\s*\(", "lib/base/number.h", set()),
    (r"\bv?sn?printf\s*\(", "lib/base/plain_format.h", set()),
    (r"\b(fputs|fputc|fwrite|v?[fd]printf|ofstream|fdopen)\b", "lib/platform/output_file.h", MAY_PRINT),
]
# Calls that open a descriptor, which platform::Descriptor takes in the same statement.
OPENS = re.compile(
    r"\bopen(at)?\(.*\bO_|\bsocket\(.*\bSOCK_|\bF_DUPFD"
    r"|(?<!\w)(::)?(accept4?|eventfd|memfd_create|pipe2?|epoll_create1?|timerfd_create|dup)\("
)
# Writes that may raise a signal, unless NoSignals or a flag keeps them from it.
RAISES = re.compile(
    r"(?<!\w)::(write|send)\(|(?<![\w.>])(pwrite|writev|pwritev2?|ftruncate|fallocate|send|send(to|msg|file))\("
)


def files(root):
    listed = subprocess.run(
        ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
    )
    if listed.returncode != 0:
        print("not a git checkout")
        sys.exit(77)
    names = [name for name in listed.stdout.split("\0") if name]
    return [name for name in names if (pathlib.Path(root) / name).is_file()]


def without_comments(text):
    text = re.sub(r'"(\\.|[^"\\\n])*"', '""', text)
    return re.sub(
        r"/\*.*?\*/", lambda match: "\n" * match.group(0).count("\n"), re.sub(r"//[^\n]*", "", text), flags=re.S
    )


def check_columns(name, lines):
    for number, line in enumerate(lines, 1):
        if len(line) > LONGEST_LINE and name not in GENERATED and not TEXT_ALONE.match(line):
            yield f"{name}:{number}: {len(line)} columns, more than {LONGEST_LINE}"


def check_source(root, name, lines, text):
    kind = pathlib.PurePath(name).suffix
    if len(lines) > LONGEST_FILE and name not in GENERATED:
        yield f"{name}: {len(lines)} lines, more than {LONGEST_FILE}: divide it"
    for number, line in enumerate(lines, 1):
        if "\t" in line:
            yield f"{name}:{number}: a tab"
        if SAYS_NOTHING.match(line) and name not in GENERATED:
            yield f"{name}:{number}: a comment that opens so does not say what it is about"
    # A source beside a header of its name is told about there; a unit test is about what its name says.
    told_elsewhere = name.endswith("_test.cpp") or (
        kind in {".c", ".cpp"} and pathlib.Path(root, name).with_suffix(".h").exists()
    )
    if (
        kind in {".c", ".cpp", ".h", ".hpp", ".rs"}
        and not told_elsewhere
        and not text.startswith(("//", "/*", "#![doc"))
    ):
        yield f"{name}: the first line does not say what the file owns"
    if name.startswith("lib/") and kind == ".h" and "#pragma once" not in text:
        yield f"{name}: no #pragma once"
    if name.startswith(("lib/", "backends/")) and kind in {".cpp", ".h"} and name not in MAY_PRINT:
        for number, line in enumerate(without_comments(text).splitlines(), 1):
            if PRINTS.search(line):
                yield f"{name}:{number}: the library prints or ends the process: {line.strip()}"


def check_owned(name, text):
    """Numbers, files and descriptors go through one place each: locales, signals and closed standard streams matter."""
    lines = without_comments(text).splitlines()
    for number, line in enumerate(lines, 1):
        for calls, owner, others in OWNED:
            if re.search(calls, line) and name != owner and name not in others:
                yield f"{name}:{number}: {owner} does this: {line.strip()}"
        near = "".join(lines[max(0, number - 2) : number + 2])
        if OPENS.search(line) and "Descriptor" not in near and name != "lib/platform/descriptor.h":
            yield f"{name}:{number}: platform::Descriptor does not own what this opens: {line.strip()}"
        if RAISES.search(line) and "NoSignals" not in text and "MSG_NOSIGNAL" not in near:
            yield f"{name}:{number}: this write may raise a signal: {line.strip()}"


# A definition's first line, as clang-format leaves it: outside of functions, and no block of its own.
BEGINS = re.compile(
    r"( {0,4})(?! )(?!.*\b(if|for|while|switch|else|do|catch|try|namespace|class|struct|enum|union|extern)\b)"
    r".*\).*\{$"
)


def check_functions(name, lines):
    for number, line in enumerate(lines):
        begins = BEGINS.match(line)
        if not begins:
            continue
        length = next((k for k, end in enumerate(lines[number:], 1) if end.startswith(begins.group(1) + "}")), 0)
        if length > LONGEST_FUNCTION:
            yield f"{name}:{number + 1}: a function of {length} lines, more than {LONGEST_FUNCTION}: divide it"


def check_links(root, name, text):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in target and not (pathlib.Path(root, name).parent / target).exists():
            yield f"{name}: the link to {target} leads nowhere"


def check(root, name):
    kind = pathlib.PurePath(name).suffix
    if kind not in TEXTS or name == "LICENSE":
        return
    try:
        text = pathlib.Path(root, name).read_text()
    except UnicodeDecodeError:
        if kind in SOURCES:
            yield f"{name}: not UTF-8"
        return
    lines = text.splitlines()
    if kind in SOURCES or kind in {".md", ".build", ".toml"}:
        for number, line in enumerate(lines, 1):
            if UNFINISHED.search(line):
                yield f"{name}:{number}: unfinished: {line.strip()}"
            if line != line.rstrip():
                yield f"{name}:{number}: blanks at the end of the line"
        if text and not text.endswith("\n"):
            yield f"{name}: no newline at the end"
    if kind in SOURCES or name in SCRIPTS:
        yield from check_columns(name, lines)
    if kind in SOURCES:
        yield from check_source(root, name, lines, text)
    if kind in {".c", ".cpp", ".h", ".hpp"}:
        yield from check_functions(name, lines)
    if kind in {".cpp", ".h"} and name.startswith(LIBRARY):
        yield from check_owned(name, text)
    if kind == ".md":
        yield from check_links(root, name, text)


LAYERS = "docs/architecture.md"


def layers(text):
    """The tables of layers: for the folders of lib/ and of lib/core/, the folders that each of them knows."""
    tables = re.findall(r"\| folder \| job \| knows \|\n\|[-|]+\|\n((?:\|.*\n)+)", text)
    return [
        {row.split("`")[1].rstrip("/"): set(re.findall(r"[a-z]+", row.rsplit("|", 2)[1])) for row in table.splitlines()}
        for table in tables
    ]


def check_layers(root, names):
    """No file includes one of a layer that its own does not know, and layers know only those in the rows below."""
    tables = layers(pathlib.Path(root, LAYERS).read_text())
    if len(tables) != 2:
        yield f"{LAYERS}: {len(tables)} tables of layers, where lib/ and lib/core/ have one each"
        return
    for folder, include, knows in zip(("lib/", "lib/core/"), ("", "core/"), tables):
        rows = list(knows)
        for place, layer in enumerate(rows):
            if upwards := knows[layer] & set(rows[: place + 1]):
                yield f"{LAYERS}: {folder}{layer}/ knows a layer that is not below it: {' '.join(sorted(upwards))}"
        for name in names:
            layer = name.removeprefix(folder).split("/")[0]
            if not name.startswith(folder) or name.count("/") == folder.count("/"):
                continue
            if pathlib.PurePath(name).suffix not in {".cpp", ".h"}:
                continue
            if layer not in knows:
                yield f"{name}: {LAYERS} has no row for {folder}{layer}/"
                continue
            text = pathlib.Path(root, name).read_text()
            for other in re.findall(rf'^#include "{include}(\w+)/', text, re.M):
                if other in knows and other not in {layer, "base"} and other not in knows[layer]:
                    yield f"{name}: includes a file of {include}{other}/, which {LAYERS} does not allow"


MOST_GROUPS, MOST_OBJECTS = 4, 8
# In these folders each source has a header of its name.
CLASS_FOLDERS = "lib/core/(movement|occupancy|plan|runtime|spill)/"


def check_groups(root, names):
    """A class of the core is not continued in a file of another name. One of a runtime takes at most four groups of
    objects, and uses at most eight objects of them, of which the gate and the share count as one each.
    """
    folder = "lib/core/runtime/"
    table = re.findall(rf"\| \[`(\w+)`\]\(\.\./(lib/core/\w+/\w+\.h)\)", pathlib.Path(root, LAYERS).read_text())
    groups = {group: pathlib.Path(root, header).read_text() for group, header in table}
    objects = dict(line for text in groups.values() for line in re.findall(r"^    ([A-Z]\w+) (\w+);", text, re.M))
    if len(objects) < MOST_OBJECTS:
        yield f"{LAYERS}: its table of groups has {len(objects)} objects"
    for name in names:
        path = pathlib.Path(root, name)
        if not re.match(CLASS_FOLDERS, name) or path.suffix != ".cpp":
            continue
        if not path.with_suffix(".h").exists():
            yield f"{name}: continues a class of another file: make what it does a class"
            continue
        if not name.startswith(folder):
            continue
        text = path.read_text() + path.with_suffix(".h").read_text()
        taken = {kind for kind in re.findall(r"^    (?:const )?(\w+)& \w+;", text, re.M)}
        if len(taken & set(groups)) > MOST_GROUPS:
            yield f"{name}: takes {len(taken & set(groups))} groups, more than {MOST_GROUPS}"
        used = set(re.findall(r"\b(?:memory|movers|step_order)_?\.(\w+)\b(?!\()|\b(gate|share)(?:_\b|\.)", text))
        used = {first or second for first, second in used if first in objects.values() or second}
        used |= {objects[kind] for kind in taken & set(objects)}
        if len(used) > MOST_OBJECTS:
            yield f"{name}: uses {len(used)} objects, more than {MOST_OBJECTS}: {' '.join(sorted(used))}"


def check_built(root, names):
    """Every source is named in a build file: a test that is not would never run, and a module not be installed."""
    builds = {}
    for name in names:
        path = pathlib.PurePath(name)
        if path.name in {"meson.build", "CMakeLists.txt"}:
            text = pathlib.Path(root, name).read_text()
            if path.suffix == ".txt":
                text = re.sub(r"[\w.]+\.(c|cpp)\b", r"'\g<0>'", text)
            builds[path.parent] = builds.get(path.parent, "") + text
    for name in names:
        path = pathlib.PurePath(name)
        in_package = name.startswith("bindings/python/libstagehand/") and path.suffix == ".py"
        if path.suffix not in {".c", ".cpp"} and not in_package:
            continue
        text = "\n".join(builds.get(folder, "") for folder in path.parents)
        # Programs of a list are named without their ending; what another folder uses, with its path.
        short = re.sub(r"_(test|fuzz|bench)$", "", path.stem)
        known = re.search(rf"['/]{re.escape(path.name)}'|'{re.escape(path.stem)}'|'{re.escape(short)}'", text)
        # A folder below may build it in another way.
        below = any(path.parent in folder.parents and f"../{path.name}'" in other for folder, other in builds.items())
        if (
            not known
            and not below
            and not any(f"{path.parent.name}/{path.name}'" in other for other in builds.values())
        ):
            yield f"{name}: no build file names it"


def check_crates(root, names):
    """Every Rust source is part of a crate: cargo takes lib.rs, build.rs, tests and benches by their places, and others
    where they are named.
    """
    for name in names:
        path = pathlib.PurePath(name)
        if path.suffix != ".rs" or path.name in {"lib.rs", "build.rs"} or path.parent.name in {"tests", "benches"}:
            continue
        module, folder = (path.parent.name, path.parent.parent) if path.name == "mod.rs" else (path.stem, path.parent)
        others = [
            pathlib.Path(root, other).read_text()
            for other in names
            if pathlib.PurePath(other).parent == folder and other != name
        ]
        if not any(re.search(rf"^\s*(pub )?mod {module};|^path = \"{path.name}\"", text, re.M) for text in others):
            yield f"{name}: no crate has it"


def check_documented(root, names):
    """Every variable that the library reads is told to those who set it, and those of its own everywhere."""
    told = pathlib.Path(root, "docs/environment.md").read_text()
    for name in names:
        if pathlib.PurePath(name).suffix in {".c", ".cpp", ".h"}:
            for variable in re.findall(r'getenv\("(\w+)"\)', pathlib.Path(root, name).read_text()):
                if variable not in told and (name.startswith(LIBRARY) or variable.startswith("STAGEHAND_")):
                    yield f"{name}: docs/environment.md does not tell of {variable}"


def main():
    root = sys.argv[1]
    names = sys.argv[2:] or files(root)
    problems = [problem for name in names for problem in check(root, name)]
    if len(sys.argv) == 2:
        problems += check_built(root, names)
        problems += check_layers(root, names)
        problems += check_groups(root, names)
        problems += check_crates(root, names)
        problems += check_documented(root, names)
    print(*(problems or [f"{len(names)} files are tidy"]), sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
