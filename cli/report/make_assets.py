"""Writes the texts of a report's page as C++: report/page.h declares them.

make_assets.py OUTPUT STYLE KIT SCRIPT LICENCE [D3]
"""

import pathlib
import re
import sys


def literal(text):
    """The bytes as string literals. Compilers limit one literal's length, and join neighbours."""
    escaped = {ord("\\"): "\\\\", ord('"'): '\\"', ord("\n"): "\\n", ord("?"): "\\?"}
    data = text.encode()
    lines = []
    for begin in range(0, len(data), 100):
        part = data[begin : begin + 100]
        # Octal escapes have three digits, so that the character behind one is not taken for a digit.
        lines.append('"' + "".join(escaped.get(b, chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in part) + '"')
    return "\n    ".join(lines or ['""'])


def main():
    output, style, kit, script, licence, *plotting = sys.argv[1:]
    texts = {
        "page_style": pathlib.Path(style).read_text(encoding="utf-8"),
        "page_script": "".join(pathlib.Path(path).read_text(encoding="utf-8") for path in (kit, script)),
        "plotting_licence": pathlib.Path(licence).read_text(encoding="utf-8"),
        "plotting_script": "",
        "plotting_version": "",
    }
    if plotting:
        text = pathlib.Path(plotting[0]).read_text(encoding="utf-8")
        version = re.search(r'version:\s*"(\d+)\.([\d.]+)"', text)
        if not version or version[1] != "3":
            sys.exit(f"{plotting[0]}: not version 3 of D3")
        if "</script" in text.lower() or "<!--" in text:
            sys.exit(f"{plotting[0]}: cannot be put into a page")
        texts["plotting_script"] = text
        texts["plotting_version"] = f"{version[1]}.{version[2]}"
    code = '#include "report/page.h"\n\nnamespace stagehand::cli {\n\n'
    for name, text in texts.items():
        code += f"const std::string_view {name}(\n    {literal(text)},\n    {len(text.encode())});\n\n"
    pathlib.Path(output).write_text(code + "}  // namespace stagehand::cli\n", encoding="ascii")


if __name__ == "__main__":
    main()
