"""Writes the C source of the extension module libstagehand.torch._reader, which calls the reader of model files.

build_reader.py HEADER OUT.c
"""

import pathlib
import sys

import cffi

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from gen_cdef import declarations  # noqa: E402  (needs the path)

header, out = sys.argv[1:]
builder = cffi.FFI()
builder.cdef(declarations(pathlib.Path(header).read_text()))
builder.set_source("libstagehand.torch._reader", '#include "model/c_reader.h"', py_limited_api=True)
builder.emit_c_code(out)
