/* What the Python package needs in C beside the library itself: the hot path's views, and DLPack's capsules. */
#ifndef LIBSTAGEHAND_HELPERS_H
#define LIBSTAGEHAND_HELPERS_H

#include <stagehand/stagehand.h>
#include <stdlib.h>
#include <string.h>

/* A view with what its release needs: fewer arguments to convert on the hot path. */
typedef struct sh_py_view {
    sh_view view;
    sh_runtime *runtime;
    uint64_t stream;
} sh_py_view;

static int32_t sh_py_acquire(sh_runtime *runtime, uint64_t block, uint64_t stream, uint32_t flags, sh_py_view *out) {
    out->view.struct_size = sizeof out->view;
    out->runtime = runtime;
    out->stream = stream;
    return sh_acquire(runtime, block, stream, flags, &out->view);
}

static int32_t sh_py_release(const sh_py_view *held) { return sh_release(held->runtime, held->view.block, held->stream); }

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
