"""Reads the public C headers: constants, structs, functions, callbacks. The headers are
written plainly on purpose, so this reader is short.

As a program it writes the C sources that the tests of this folder compile:
    interface.py layout INCLUDE_DIR OUT.c   prints the value of every constant and the offset of every field
    interface.py init INCLUDE_DIR OUT.c     compares every SH_X_INIT with sh_x_init()
"""

import pathlib
import re
import sys


class Interface:
    def __init__(self, include_dir):
        self.folder = pathlib.Path(include_dir) / "stagehand"
        self.constants = []  # names, enum values and numeric macros
        self.structs = {}  # name -> [(type, field)]
        self.functions = {}  # name -> signature without parameter names
        self.callbacks = {}  # name -> signature
        self.inits = {}  # SH_X_INIT -> struct
        self.init_functions = {}  # sh_x_init -> struct
        for header in sorted(self.folder.glob("*.h")):
            self._read(header.read_text())

    def _read(self, text):
        text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
        text = re.sub(r"\\\n", " ", text)
        for name, value in re.findall(r"^#define (SH_\w+) +(.+?)\s*$", text, flags=re.M):
            if re.fullmatch(r"[0-9][0-9a-fxA-FX]*", value):
                self.constants.append(name)
            elif value.startswith("{"):
                self.inits[name] = re.match(r"\{\s*sizeof\((\w+)\)", value).group(1)
        text = re.sub(r"^#.*$", " ", text, flags=re.M)
        text = text.replace("SH_MUST_CHECK", " ")
        for body in re.findall(r"\benum\s*\{(.*?)\}", text, flags=re.S):
            self.constants += re.findall(r"\b(SH_\w+)\s*=", body)
        for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text, flags=re.S):
            self.structs[name] = [self._field(f) for f in body.split(";") if f.strip()]
        for result, name, parameters in re.findall(r"SH_API\s+([\w\s*]+?)\s*\b(sh_\w+)\s*\(([^)]*)\);", text):
            signature = self._signature(result, parameters)
            self.functions[name] = signature
        for name, struct in re.findall(r"static inline void (sh_\w+_init)\((\w+)\* \w+\)", text):
            self.init_functions[name] = struct
        for result, name, parameters in re.findall(r"typedef ([\w\s*]+?)\(\*(\w+)\)\(([^)]*)\);", text):
            self.callbacks[name] = self._signature(result, parameters)

    @staticmethod
    def _field(declaration):
        declaration = " ".join(declaration.split())
        pointer = re.fullmatch(r"(.+?) ?\(\*(\w+)\)\((.*)\)", declaration)
        if pointer:
            return Interface._signature(pointer.group(1), pointer.group(3)), pointer.group(2)
        match = re.fullmatch(r"(.+?)\s*\b(\w+)(\[\d+\])?", declaration)
        return (match.group(1).replace(" *", "*") + (match.group(3) or "")), match.group(2)

    @staticmethod
    def _signature(result, parameters):
        parts = []
        # A parameter that is itself a function pointer holds no comma in these headers.
        for parameter in " ".join(parameters.split()).split(","):
            parameter = parameter.strip()
            if "(*" in parameter:
                parameter = re.sub(r"\(\*\w+\)", "(*)", parameter)
            elif re.search(r"\w[\s*]+\w+$", parameter):
                parameter = re.sub(r"\w+$", "", parameter).strip()
            parts.append(parameter)
        return f"{' '.join(result.split())} ({', '.join(parts)})"


INCLUDES = "#include <stagehand/stagehand.h>\n#include <stagehand/backend.h>\n#include <stdio.h>\n#include <string.h>\n"


def layout_program(interface):
    lines = [INCLUDES, "int main(void) {"]
    for name in interface.constants:
        lines.append(f'    printf("constant {name} %lld\\n", (long long)({name}));')
    for struct, fields in interface.structs.items():
        lines.append(f'    printf("struct {struct} %zu\\n", sizeof({struct}));')
        for kind, field in fields:
            lines.append(
                f'    printf("field {struct}.{field} %zu %zu {kind}\\n", offsetof({struct}, {field}),'
                f" sizeof((({struct} *)0)->{field}));"
            )
    return "\n".join(lines + ["    return 0;", "}", ""])


def init_program(interface):
    lines = [INCLUDES, "int main(void) {", "    int failures = 0;"]
    by_struct = {struct: function for function, struct in interface.init_functions.items()}
    for macro, struct in interface.inits.items():
        function = by_struct.get(struct)
        if function is None:
            sys.exit(f"{macro} has no function that does the same")
        lines += [
            "    {",
            f"        const {struct} by_macro = {macro};",
            f"        {struct} by_function;",
            "        memset(&by_function, 0x5a, sizeof by_function);",
            f"        {function}(&by_function);",
            "        if (by_macro.struct_size != sizeof by_macro || memcmp(&by_macro, &by_function, sizeof by_macro) != 0) {",
            f'            fprintf(stderr, "{macro} and {function}() differ\\n");',
            "            ++failures;",
            "        }",
            "    }",
        ]
    return "\n".join(lines + ["    return failures != 0;", "}", ""])


if __name__ == "__main__":
    what, include_dir, out = sys.argv[1:]
    program = {"layout": layout_program, "init": init_program}[what](Interface(include_dir))
    pathlib.Path(out).write_text(program)
