"""Writes the two files that the Python package takes from the C headers. cffi reads src/cdef.h.
libstagehand/_generated.py has the constants and the classes of results. Both files are committed.

    gen_cdef.py ROOT            writes the files
    gen_cdef.py ROOT --check    fails if a file differs from what the headers give
"""

import pathlib
import re
import sys

# The headers for engines; each one comes after the headers that it needs. backend.h is for backends.
HEADERS = [
    "version",
    "base",
    "host",
    "helpers",
    "device",
    "source",
    "contents",
    "runtime",
    "parts",
    "streaming",
    "members",
    "residency",
    "graph",
    "activations",
    "spill",
    "telemetry",
    "occupancy",
    "control",
]

# The class, its base, a pattern of the constants that are its members, and its docstring. The group of the pattern is
# the member's name.
ENUMS = [
    (
        "Status",
        "IntEnum",
        r"SH_(OK|NOT_READY|KEPT|ERROR_\w+)",
        "What a call returned. Values are grouped by hundreds, one exception class each.",
    ),
    ("LogLevel", "IntEnum", r"SH_LOG_(\w+)", "How much of the log is wanted."),
    ("DeviceFlag", "IntFlag", r"SH_DEVICE_((?!KIND_)\w+)", "What a device can do."),
    ("DeviceKind", "IntEnum", r"SH_DEVICE_KIND_(\w+)", "What kind of memory a device has: DLDeviceType in DLPack."),
    ("BlockFlag", "IntFlag", r"SH_BLOCK_(MUTABLE|WHOLE|UNORDERED|PIN|PACK)", "How a block was registered."),
    ("WeightFormat", "IntEnum", r"SH_FORMAT_(BF16|F16|F32|F8_E4M3|F8_E5M2)", "Formats of floating-point weights."),
    ("BlockState", "IntEnum", r"SH_BLOCK_(UNLOADED|STAGED|LOADING|READY|DRAINING)", "Where the bytes of a block are."),
    ("ViewFlag", "IntFlag", r"SH_VIEW_(\w+)", "What an acquire did."),
    (
        "ResidentPriority",
        "IntEnum",
        r"SH_PRIORITY_(\w+)",
        "Which reservations are given up when nothing else is left: secondary ones.",
    ),
    ("TicketState", "IntEnum", r"SH_TICKET_(\w+)", "Where the bytes of a saved tensor are."),
    ("Fate", "IntEnum", r"SH_FATE_(\w+)", "What becomes of a saved storage."),
    ("Contents", "IntEnum", r"SH_CONTENTS_(\w+)", "What becomes of the contents of an allocation in a pause."),
    (
        "OccupancyState",
        "IntEnum",
        r"SH_OCCUPANCY_(RUNNING|RELEASING|RELEASED|RESUMING|MIXED|LOST)",
        "Where the memory of a tag is.",
    ),
]

# Structs that the library fills in, with the classes for their values and the docstrings of the classes.
RESULTS = [
    ("sh_memory_info", "MemoryInfo", "Memory of a device, in bytes, at one moment."),
    ("sh_device_caps", "DeviceCaps", "What a device is and can do."),
    ("sh_backend_info", "BackendInfo", "A backend that was found, or was looked for in vain."),
    ("sh_block_state", "BlockInfo", "What is known of a block at one moment."),
    ("sh_plan_info", "PlanInfo", "A plan in figures."),
    ("sh_kind_info", "KindInfo", "A kind of step."),
    ("sh_set_info", "SetInfo", "What a set has, and how well it served."),
    ("sh_runtime_stats", "RuntimeStats", "Counters of a runtime."),
    ("sh_ticket_info", "TicketInfo", "What is known of a saved tensor at one moment."),
    ("sh_spiller_stats", "SpillerStats", "Counters of a spiller."),
    ("sh_activation_plan", "ActivationFigures", "What a plan for saved storages costs."),
    ("sh_occupancy_change", "OccupancyChange", "What a pause or a resume has done."),
    ("sh_occupancy_info", "OccupancyInfo", "A tag, or all tags of a device together."),
]
CLASS_OF_FIELD = {
    ("sh_device_caps", "flags"): "DeviceFlag",
    ("sh_block_state", "flags"): "BlockFlag",
    ("sh_block_state", "state"): "BlockState",
    ("sh_ticket_info", "state"): "TicketState",
    ("sh_activation_plan", "meets_target"): "bool",
    ("sh_occupancy_info", "state"): "OccupancyState",
}

ORIGIN = (
    "Written by bindings/python/gen_cdef.py from the headers in include/stagehand: change those, then run ./dev gen."
)


def code(folder, name):
    """Returns a header without its comments, which may name what is for backends."""
    return re.sub(r"/\*.*?\*/", "", (folder / f"{name}.h").read_text(), flags=re.S)


def declarations(text):
    """Returns the declarations of a header's code, without preprocessor lines."""
    text = re.sub(r"\\\n", " ", text)
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.S)
    text = re.sub(r"^#.*$", "", text, flags=re.M)
    text = text.replace("SH_API ", "").replace("SH_MUST_CHECK ", "")
    text = re.sub(r"^static inline .*?^}$", "", text, flags=re.S | re.M)  # a program's own, as the package's struct()
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join(line for line in lines if line)


def values(folder):
    """Returns {constant: value} for the enums, and for the macros that are numbers."""
    found = {}
    for name in HEADERS:
        text = code(folder, name)
        for constant, value in re.findall(r"^#define (SH_\w+) +([0-9][0-9a-fxA-FX]*)\s*$", text, flags=re.M):
            found[constant] = int(value, 0)
        for body in re.findall(r"\benum\s*\{(.*?)\}", text, flags=re.S):
            for constant, value in re.findall(r"\b(SH_\w+)\s*=\s*(-?\w+)", body):
                found[constant] = int(value, 0)
    return found


def cdef(folder, constants):
    parts = [f"/* {ORIGIN} */"]
    macros = [name for name in constants if re.search(rf"^#define {name} ", everything(folder), flags=re.M)]
    parts.append("\n".join(f"#define {name} {constants[name]:#x}" for name in macros))
    for name in HEADERS:
        body = declarations(code(folder, name))
        if body:
            parts.append(f"/* {name}.h */\n{body}")
    return "\n\n".join(parts) + "\n"


def everything(folder):
    return "\n".join(code(folder, name) for name in HEADERS)


def module(interface, constants):
    lines = [
        f'"""Constants and results of the C interface. {ORIGIN}"""',
        "from dataclasses import dataclass",
        "from enum import IntEnum, IntFlag",
        "",
    ]
    for name in ("SH_VERSION_MAJOR", "SH_VERSION_MINOR", "SH_VERSION_PATCH", "SH_ABI_VERSION", "SH_STREAM_HOST"):
        lines.append(
            f"{name.removeprefix('SH_')} = {constants[name]:#x}"
            if "STREAM" in name
            else f"{name.removeprefix('SH_')} = {constants[name]}"
        )
    for name, base, pattern, text in ENUMS:
        lines += ["", "", f"class {name}({base}):", f'    """{text}"""', ""]
        for constant, value in constants.items():
            if match := re.fullmatch(pattern, constant):
                lines.append(f"    {match.group(1)} = {value}")
    for struct, name, text in RESULTS:
        lines += ["", "", "@dataclass(frozen=True)", f"class {name}:", f'    """{text}"""', ""]
        for kind, field in interface.structs[struct]:
            if field not in ("struct_size", "reserved"):
                python = "str" if kind.startswith("char[") else CLASS_OF_FIELD.get((struct, field), "int")
                lines.append(f"    {field}: {python}")
    return "\n".join(lines) + "\n"


def main():
    root = pathlib.Path(sys.argv[1])
    sys.path.insert(0, str(root / "tests/abi"))
    from interface import Interface

    folder, package = root / "include/stagehand", root / "bindings/python"
    interface, constants = Interface(root / "include"), values(folder)
    texts = {
        package / "src/cdef.h": cdef(folder, constants),
        package / "libstagehand/_generated.py": module(interface, constants),
    }
    # Two programs read the headers: this one and tests/abi/interface.py. Both must find the same names.
    declared = texts[package / "src/cdef.h"]
    for name in [*interface.functions, *interface.structs, *interface.callbacks, *interface.constants]:
        backend_only = not re.search(rf"\b{name}\b", everything(folder))
        if not backend_only and not re.search(rf"\b{name}\b", declared):
            sys.exit(f"{name} is in the headers but not in cdef.h")
    different = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv[2:]:
        for path in different:
            print(f"{path.relative_to(root)} is not what the headers give: run ./dev gen")
        sys.exit(bool(different))
    for path in different:
        path.write_text(texts[path])
        print(f"{path.relative_to(root)} written")


if __name__ == "__main__":
    main()
