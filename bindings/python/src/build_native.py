"""Writes the C source of the extension module libstagehand._native.

build_native.py CDEF HELPERS OUT.c
"""

import pathlib
import sys

import cffi

# Functions that the library calls. _callbacks.py defines them.
CALLBACKS = """
extern "Python" int32_t sh_py_fill(void *, uint64_t, uint64_t, void *);
extern "Python" int32_t sh_py_load(const sh_loaded_range *, void *);
extern "Python" void sh_py_launch(void *);
extern "Python" void sh_py_pressure(sh_runtime *, uint64_t, void *);
extern "Python" void sh_py_log(int32_t, const char *, void *);
extern "Python" int32_t sh_py_before_pause(const char *const *, uint64_t, char *, uint64_t, void *);
extern "Python" void sh_py_after_resume(const char *const *, uint64_t, void *);
"""
HELPERS = """
typedef struct sh_py_runtime {
    sh_runtime *handle;
    uint64_t cancelled;
} sh_py_runtime;
typedef struct sh_py_view {
    sh_view view;
    sh_py_runtime *runtime;
    uint64_t stream;
    uint64_t cancelled;
} sh_py_view;
int32_t sh_py_acquire(sh_py_runtime *runtime, uint64_t block, uint64_t stream, uint32_t flags, sh_py_view *out);
int32_t sh_py_acquire_many(sh_py_runtime *runtime, const uint64_t *blocks, uint64_t count, uint64_t stream,
                           uint32_t flags, sh_py_view **out);
int32_t sh_py_held(const sh_py_view *view);
int32_t sh_py_release(sh_py_view *view);
typedef struct sh_py_members {
    sh_view pool;
    sh_py_runtime *runtime;
    uint64_t set;
    uint64_t stream;
    uint64_t cancelled;
} sh_py_members;
int32_t sh_py_acquire_members(sh_py_runtime *runtime, uint64_t set, const uint32_t *members, uint64_t count,
                              uint64_t stream, uint32_t flags, sh_py_members *out, uint32_t *slots);
int32_t sh_py_release_members(sh_py_members *held, const uint32_t *members, uint64_t count);
int32_t sh_py_step_begin(sh_runtime *runtime, const char *kind, int32_t *open);
int32_t sh_py_step_end(sh_runtime *runtime, int32_t *open);
int32_t sh_py_source_update_end(sh_runtime *runtime, const uint64_t *blocks, uint64_t count, int32_t *open);
int32_t sh_py_graph_leave(sh_graph *graph, uint64_t stream, int32_t *open);
int32_t sh_py_scope_end(sh_scope **scope);
int32_t sh_py_source_update_begin(sh_runtime *runtime, const uint64_t *blocks, uint64_t count, int32_t *open);
int32_t sh_py_graph_enter(sh_graph *graph, uint64_t stream, int32_t *open);
int32_t sh_py_capture_begin(sh_runtime *runtime, uint64_t stream, int32_t *open);
int32_t sh_py_spill(sh_spiller *spiller, uint64_t address, uint32_t element_bytes, uint32_t format, uint64_t dimensions,
                    const int64_t *sizes, const int64_t *strides, uint64_t storage_address, uint64_t storage_bytes,
                    uint64_t storage_key, uint64_t used_bytes, uint64_t stream, uint32_t flags, uint64_t *out,
                    uint64_t capacity);
int32_t sh_py_upcoming(sh_spiller *spiller, uint64_t used_bytes, uint64_t *out, uint64_t capacity);
int32_t sh_py_spiller_begin_step(sh_spiller *spiller, uint64_t step, int32_t *open);
int32_t sh_py_spiller_end_step(sh_spiller *spiller, int32_t *open);
void *sh_py_export_bytes(uintptr_t owner, uintptr_t address, int64_t bytes, int32_t device_type, int32_t device_id,
                         int readonly, int versioned);
void sh_py_capsule_delete(void *capsule);
"""

cdef, helpers, out = sys.argv[1:]
builder = cffi.FFI()
builder.cdef(pathlib.Path(cdef).read_text() + CALLBACKS + HELPERS)
builder.set_source("libstagehand._native", pathlib.Path(helpers).read_text(), py_limited_api=True)
builder.emit_c_code(out)
