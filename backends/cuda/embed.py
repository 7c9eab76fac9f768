"""Writes a header with the text of a program for GPUs: embed.py NAME.ptx NAME_ptx.h declares kNameProgram."""

import pathlib
import sys

source, header = (pathlib.Path(path) for path in sys.argv[1:])
constant = "k" + source.stem.title().replace("_", "") + "Program"
text = source.read_text(encoding="utf-8")
header.write_text(f'#pragma once\n\nconstexpr char {constant}[] = R"(\n{text})";\n', encoding="utf-8")
