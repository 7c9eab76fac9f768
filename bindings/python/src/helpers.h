/* What the Python package needs in C beside the library itself: the hot path's views, and DLPack's capsules. */
#ifndef LIBSTAGEHAND_HELPERS_H
#define LIBSTAGEHAND_HELPERS_H

#include <stagehand/stagehand.h>
#include <stdlib.h>
#include <string.h>

/* A runtime; NULL when it is closed. Each capture that is cancelled releases what is held, and is counted before. */
typedef struct sh_py_runtime {
    sh_runtime *handle;
    uint64_t cancelled;
} sh_py_runtime;

/* A view with what its release needs: fewer arguments to convert on the hot path. Without a runtime it holds nothing. */
typedef struct sh_py_view {
    sh_view view;
    sh_py_runtime *runtime;
    uint64_t stream;
    uint64_t cancelled; /* of the runtime, before the acquire */
} sh_py_view;

static void sh_py_hold(sh_py_view *out, const sh_view *view, sh_py_runtime *runtime, uint64_t stream, uint64_t cancelled) {
    out->view = *view;
    out->stream = stream;
    out->cancelled = cancelled;
    __atomic_store_n(&out->runtime, runtime, __ATOMIC_RELEASE);
}

/* What it has acquired is known to the view when it returns, whatever Python makes of that: an interrupt is raised then. */
static int32_t sh_py_acquire(sh_py_runtime *runtime, uint64_t block, uint64_t stream, uint32_t flags, sh_py_view *out) {
    const uint64_t cancelled = __atomic_load_n(&runtime->cancelled, __ATOMIC_ACQUIRE);
    sh_view view = SH_VIEW_INIT;
    const int32_t status = sh_acquire(runtime->handle, block, stream, flags, &view);
    if (status == SH_OK) sh_py_hold(out, &view, runtime, stream, cancelled);
    return status;
}

static int32_t sh_py_acquire_many(sh_py_runtime *runtime, const uint64_t *blocks, uint64_t count, uint64_t stream, uint32_t flags,
                                  sh_py_view **out) {
    const uint64_t cancelled = __atomic_load_n(&runtime->cancelled, __ATOMIC_ACQUIRE);
    sh_view *views = (sh_view *)calloc(count, sizeof *views);
    if (views == NULL) return SH_ERROR_OUT_OF_HOST_MEMORY;
    for (uint64_t i = 0; i < count; ++i) views[i].struct_size = sizeof *views;
    const int32_t status = sh_acquire_many(runtime->handle, blocks, count, stream, flags, views);
    for (uint64_t i = 0; i < count && status == SH_OK; ++i) sh_py_hold(out[i], &views[i], runtime, stream, cancelled);
    free(views);
    return status;
}

static int32_t sh_py_held(const sh_py_view *view) {
    const sh_py_runtime *runtime = __atomic_load_n(&view->runtime, __ATOMIC_ACQUIRE);
    return runtime != NULL && view->cancelled == __atomic_load_n(&runtime->cancelled, __ATOMIC_ACQUIRE);
}

/* Once. What the end of a capture has released is not: the block may be another view's by now. */
static int32_t sh_py_release(sh_py_view *view) {
    sh_py_runtime *runtime = __atomic_exchange_n(&view->runtime, NULL, __ATOMIC_ACQ_REL);
    if (runtime == NULL || view->cancelled != __atomic_load_n(&runtime->cancelled, __ATOMIC_ACQUIRE)) return SH_OK;
    return sh_release(runtime->handle, view->view.block, view->stream);
}

/* What begins and has to end, with a note of it that an interrupt does not lose. */
static int32_t sh_py_noted(int32_t status, int32_t *begun) {
    *begun = status >= 0;
    return status;
}

static int32_t sh_py_step_begin(sh_runtime *runtime, int32_t *begun) { return sh_py_noted(sh_step_begin(runtime), begun); }

static int32_t sh_py_source_update_begin(sh_runtime *runtime, const uint64_t *blocks, uint64_t count, int32_t *begun) {
    return sh_py_noted(sh_source_update_begin(runtime, blocks, count), begun);
}

static int32_t sh_py_protect_blocks(sh_runtime *runtime, const uint64_t *blocks, uint64_t count, int32_t *begun) {
    return sh_py_noted(sh_protect_blocks(runtime, blocks, count), begun);
}

static int32_t sh_py_graph_enter(sh_graph *graph, uint64_t stream, int32_t *begun) {
    return sh_py_noted(sh_graph_enter(graph, stream), begun);
}

static int32_t sh_py_capture_begin(sh_runtime *runtime, uint64_t stream, int32_t *begun) {
    return sh_py_noted(sh_capture_begin(runtime, stream), begun);
}

/* DLPack 1: the part of dlpack.h that a block of bytes needs. */
typedef struct sh_py_tensor {
    void *data;
    int32_t device_type;
    int32_t device_id;
    int32_t rank;
    uint8_t type_code;
    uint8_t type_bits;
    uint16_t type_lanes;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} sh_py_tensor;

typedef struct sh_py_managed {
    sh_py_tensor tensor;
    void *owner;
    void (*deleter)(struct sh_py_managed *self);
} sh_py_managed;

typedef struct sh_py_managed_versioned {
    uint32_t major;
    uint32_t minor;
    void *owner;
    void (*deleter)(struct sh_py_managed_versioned *self);
    uint64_t flags;
    sh_py_tensor tensor;
} sh_py_managed_versioned;

/* Both kinds in one allocation, with the shape. */
typedef struct sh_py_export {
    sh_py_managed managed;
    sh_py_managed_versioned versioned;
    int64_t shape[1];
    int64_t strides[1];
} sh_py_export;

/* A consumer may be done on any thread, also after the interpreter has ended. */
static void sh_py_forget(void *owner) {
    if (Py_IsInitialized()) {
        const PyGILState_STATE state = PyGILState_Ensure();
        Py_DECREF((PyObject *)owner);
        PyGILState_Release(state);
    }
}

static void sh_py_managed_delete(sh_py_managed *self) {
    sh_py_forget(self->owner);
    free((char *)self - offsetof(sh_py_export, managed));
}

static void sh_py_managed_versioned_delete(sh_py_managed_versioned *self) {
    sh_py_forget(self->owner);
    free((char *)self - offsetof(sh_py_export, versioned));
}

/* A consumer renames the capsule that it takes; one that nobody took frees what it holds. */
static void sh_py_capsule_delete(void *capsule) {
    if (PyCapsule_IsValid((PyObject *)capsule, "dltensor")) {
        sh_py_managed *managed = (sh_py_managed *)PyCapsule_GetPointer((PyObject *)capsule, "dltensor");
        managed->deleter(managed);
    } else if (PyCapsule_IsValid((PyObject *)capsule, "dltensor_versioned")) {
        sh_py_managed_versioned *managed =
            (sh_py_managed_versioned *)PyCapsule_GetPointer((PyObject *)capsule, "dltensor_versioned");
        managed->deleter(managed);
    }
}

/* Bytes at `address` as a DLPack tensor that keeps the Python object `owner`, given as id(), alive. NULL: no memory. */
static void *sh_py_export_bytes(uintptr_t owner, uintptr_t address, int64_t bytes, int32_t device_type, int32_t device_id, int readonly,
                                int versioned) {
    sh_py_export *made = (sh_py_export *)calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    made->shape[0] = bytes;
    made->strides[0] = 1;
    sh_py_tensor tensor = {(void *)address, device_type, device_id, 1, 1 /* unsigned */, 8, 1, made->shape, made->strides, 0};
    made->managed.tensor = tensor;
    made->managed.owner = (void *)owner;
    made->managed.deleter = sh_py_managed_delete;
    made->versioned.major = 1;
    made->versioned.owner = (void *)owner;
    made->versioned.deleter = sh_py_managed_versioned_delete;
    made->versioned.flags = readonly ? 1 : 0;
    made->versioned.tensor = tensor;
    const PyGILState_STATE state = PyGILState_Ensure();
    Py_INCREF((PyObject *)owner);
    PyGILState_Release(state);
    return versioned ? (void *)&made->versioned : (void *)&made->managed;
}

#endif
