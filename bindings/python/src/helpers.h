/* C code of the Python package: the views of the hot path, the begin and end of scopes, and DLPack capsules. */
#ifndef LIBSTAGEHAND_HELPERS_H
#define LIBSTAGEHAND_HELPERS_H

#include <stagehand/stagehand.h>
#include <stdlib.h>
#include <string.h>

/* A runtime. `handle` is NULL after the runtime is closed. A cancelled capture releases all views that are held, so the
 * package counts it in `cancelled` before it cancels the capture. */
typedef struct sh_py_runtime {
    sh_runtime* handle;
    uint64_t cancelled;
} sh_py_runtime;

/* A view with the values that its release needs. So the hot path converts fewer arguments. The view holds nothing if
 * `runtime` is NULL. */
typedef struct sh_py_view {
    sh_view view;
    sh_py_runtime* runtime;
    uint64_t stream;
    uint64_t cancelled; /* the runtime's count before the acquire */
} sh_py_view;

static void sh_py_hold(sh_py_view* out, const sh_view* view, sh_py_runtime* runtime, uint64_t stream,
                       uint64_t cancelled) {
    out->view = *view;
    out->stream = stream;
    out->cancelled = cancelled;
    __atomic_store_n(&out->runtime, runtime, __ATOMIC_RELEASE);
}

/* The view is filled in before this function returns. Python may raise an interrupt as soon as the function returns,
 * and the package can then release the view. */
static int32_t sh_py_acquire(sh_py_runtime* runtime, uint64_t block, uint64_t stream, uint32_t flags, sh_py_view* out) {
    const uint64_t cancelled = __atomic_load_n(&runtime->cancelled, __ATOMIC_ACQUIRE);
    sh_view view = {.struct_size = sizeof(sh_view)};
    const int32_t status = sh_acquire(runtime->handle, block, stream, flags, &view);
    if (status == SH_OK) sh_py_hold(out, &view, runtime, stream, cancelled);
    return status;
}

static int32_t sh_py_acquire_many(sh_py_runtime* runtime, const uint64_t* blocks, uint64_t count, uint64_t stream,
                                  uint32_t flags, sh_py_view** out) {
    const uint64_t cancelled = __atomic_load_n(&runtime->cancelled, __ATOMIC_ACQUIRE);
    sh_view* views = (sh_view*)calloc(count, sizeof *views);
    if (views == NULL) return SH_ERROR_OUT_OF_HOST_MEMORY;
    for (uint64_t i = 0; i < count; ++i) views[i].struct_size = sizeof *views;
    const int32_t status = sh_acquire_many(runtime->handle, blocks, count, stream, flags, views);
    for (uint64_t i = 0; i < count && status == SH_OK; ++i) sh_py_hold(out[i], &views[i], runtime, stream, cancelled);
    free(views);
    return status;
}

static int32_t sh_py_held(const sh_py_view* view) {
    const sh_py_runtime* runtime = __atomic_load_n(&view->runtime, __ATOMIC_ACQUIRE);
    return runtime != NULL && view->cancelled == __atomic_load_n(&runtime->cancelled, __ATOMIC_ACQUIRE);
}

/* Releases a view once. A view that a cancelled capture has released is not released again, because another view may
 * hold the block by now. */
static int32_t sh_py_release(sh_py_view* view) {
    sh_py_runtime* runtime = __atomic_exchange_n(&view->runtime, NULL, __ATOMIC_ACQ_REL);
    if (runtime == NULL || view->cancelled != __atomic_load_n(&runtime->cancelled, __ATOMIC_ACQUIRE)) return SH_OK;
    return sh_release(runtime->handle, view->view.block, view->stream);
}

/* Members of a set that are held. It holds nothing if `runtime` is NULL. */
typedef struct sh_py_members {
    sh_view pool;
    sh_py_runtime* runtime;
    uint64_t set;
    uint64_t stream;
    uint64_t cancelled; /* the runtime's count before the acquire */
} sh_py_members;

static int32_t sh_py_acquire_members(sh_py_runtime* runtime, uint64_t set, const uint32_t* members, uint64_t count,
                                     uint64_t stream, uint32_t flags, sh_py_members* out, uint32_t* slots) {
    out->set = set;
    out->stream = stream;
    out->cancelled = __atomic_load_n(&runtime->cancelled, __ATOMIC_ACQUIRE);
    out->pool.struct_size = sizeof(sh_view);
    const int32_t status = sh_acquire_members(runtime->handle, set, members, count, stream, flags, &out->pool, slots);
    if (status == SH_OK) __atomic_store_n(&out->runtime, runtime, __ATOMIC_RELEASE);
    return status;
}

/* Releases the same members once, as sh_py_release() does. */
static int32_t sh_py_release_members(sh_py_members* held, const uint32_t* members, uint64_t count) {
    sh_py_runtime* runtime = __atomic_exchange_n(&held->runtime, NULL, __ATOMIC_ACQ_REL);
    if (runtime == NULL || held->cancelled != __atomic_load_n(&runtime->cancelled, __ATOMIC_ACQUIRE)) return SH_OK;
    return sh_release_members(runtime->handle, held->set, members, count, held->stream);
}

/* The call that begins a scope adds one to `open`, and the call that ends the scope subtracts one. So the count is
 * right when Python raises an interrupt after either call. */
static int32_t sh_py_noted(int32_t status, int32_t* open) {
    *open += status >= 0;
    return status;
}

static int32_t sh_py_ended(int32_t status, int32_t* open) {
    *open -= *open > 0;
    return status;
}

static int32_t sh_py_step_begin(sh_runtime* runtime, const char* kind, int32_t* open) {
    return sh_py_noted(sh_step_begin(runtime, kind), open);
}

static int32_t sh_py_source_update_begin(sh_runtime* runtime, const uint64_t* blocks, uint64_t count, int32_t* open) {
    return sh_py_noted(sh_source_update_begin(runtime, blocks, count), open);
}

static int32_t sh_py_graph_enter(sh_graph* graph, uint64_t stream, int32_t* open) {
    return sh_py_noted(sh_graph_enter(graph, stream), open);
}

static int32_t sh_py_step_end(sh_runtime* runtime, int32_t* open) { return sh_py_ended(sh_step_end(runtime), open); }

static int32_t sh_py_source_update_end(sh_runtime* runtime, const uint64_t* blocks, uint64_t count, int32_t* open) {
    return sh_py_ended(sh_source_update_end(runtime, blocks, count), open);
}

static int32_t sh_py_graph_leave(sh_graph* graph, uint64_t stream, int32_t* open) {
    return sh_py_ended(sh_graph_leave(graph, stream), open);
}

/* Ends a scope, if there is one, and forgets its handle. */
static int32_t sh_py_scope_end(sh_scope** scope) {
    sh_scope* ended = *scope;
    *scope = NULL;
    return sh_scope_end(ended);
}

static int32_t sh_py_capture_begin(sh_runtime* runtime, uint64_t stream, int32_t* open) {
    return sh_py_noted(sh_capture_begin(runtime, stream), open);
}

/* Saves a tensor whose description has been taken apart. The ticket is in out[0] before this function returns. Then the
 * tickets that have left are collected: out[1] is their number, and they are in out[2] to out[1 + capacity]. */
static int32_t sh_py_spill(sh_spiller* spiller, uint64_t address, uint32_t element_bytes, uint32_t format,
                           uint64_t dimensions, const int64_t* sizes, const int64_t* strides, uint64_t storage_address,
                           uint64_t storage_bytes, uint64_t storage_key, uint64_t used_bytes, uint64_t stream,
                           uint32_t flags, uint64_t* out, uint64_t capacity) {
    sh_saved_tensor tensor = SH_SAVED_TENSOR_INIT;
    tensor.element_bytes = element_bytes;
    tensor.format = format;
    tensor.address = address;
    tensor.dimensions = dimensions;
    tensor.sizes = sizes;
    tensor.strides = strides;
    tensor.storage_address = storage_address;
    tensor.storage_bytes = storage_bytes;
    tensor.storage_key = storage_key;
    tensor.used_bytes = used_bytes;
    int32_t status = sh_spill(spiller, &tensor, stream, flags, out);
    out[1] = 0;
    if (status >= 0) {
        const int32_t collected = sh_spiller_collect(spiller, stream, 0, out + 2, capacity, out + 1);
        if (collected < 0) status = collected;
    }
    return status;
}

/* Names the tickets that come next: out[0] is their number. From out[1] on there are three numbers for each of them:
 * the ticket, the bytes of its memory, and where its first element lies in them. */
static int32_t sh_py_upcoming(sh_spiller* spiller, uint64_t used_bytes, uint64_t* out, uint64_t capacity) {
    uint64_t count = 0;
    const int32_t status = sh_spiller_get_upcoming(spiller, used_bytes, out + 1, capacity, &count);
    out[0] = 0;
    if (status < 0) return status;
    for (uint64_t i = count; i-- > 0;) { /* from the last one on, so that none is overwritten */
        sh_ticket_info info = {.struct_size = sizeof(sh_ticket_info)};
        const uint64_t ticket = out[1 + i];
        const int32_t known = sh_ticket_get_info(spiller, ticket, &info);
        out[1 + 3 * i] = known < 0 ? 0 : ticket; /* released by another thread meanwhile */
        out[2 + 3 * i] = info.bytes;
        out[3 + 3 * i] = info.offset;
    }
    out[0] = count;
    return status;
}

static int32_t sh_py_spiller_begin_step(sh_spiller* spiller, uint64_t step, int32_t* open) {
    return sh_py_noted(sh_spiller_begin_step(spiller, step), open);
}

static int32_t sh_py_spiller_end_step(sh_spiller* spiller, int32_t* open) {
    return sh_py_ended(sh_spiller_end_step(spiller), open);
}

/* DLPack 1: the parts of dlpack.h that a tensor of bytes needs. */
typedef struct sh_py_tensor {
    void* data;
    int32_t device_type;
    int32_t device_id;
    int32_t rank;
    uint8_t type_code;
    uint8_t type_bits;
    uint16_t type_lanes;
    int64_t* shape;
    int64_t* strides;
    uint64_t byte_offset;
} sh_py_tensor;

typedef struct sh_py_managed {
    sh_py_tensor tensor;
    void* owner;
    void (*deleter)(struct sh_py_managed* self);
} sh_py_managed;

typedef struct sh_py_managed_versioned {
    uint32_t major;
    uint32_t minor;
    void* owner;
    void (*deleter)(struct sh_py_managed_versioned* self);
    uint64_t flags;
    sh_py_tensor tensor;
} sh_py_managed_versioned;

/* One allocation for both versions of the struct, and for the shape. */
typedef struct sh_py_export {
    sh_py_managed managed;
    sh_py_managed_versioned versioned;
    int64_t shape[1];
    int64_t strides[1];
} sh_py_export;

/* A consumer may free its tensor on any thread, also after the interpreter has ended. */
static void sh_py_forget(void* owner) {
    if (Py_IsInitialized()) {
        const PyGILState_STATE state = PyGILState_Ensure();
        Py_DECREF((PyObject*)owner);
        PyGILState_Release(state);
    }
}

static void sh_py_managed_delete(sh_py_managed* self) {
    sh_py_forget(self->owner);
    free((char*)self - offsetof(sh_py_export, managed));
}

static void sh_py_managed_versioned_delete(sh_py_managed_versioned* self) {
    sh_py_forget(self->owner);
    free((char*)self - offsetof(sh_py_export, versioned));
}

/* A consumer renames the capsule that it takes. A capsule with its first name was not taken, so its tensor is freed. */
static void sh_py_capsule_delete(void* capsule) {
    if (PyCapsule_IsValid((PyObject*)capsule, "dltensor")) {
        sh_py_managed* managed = (sh_py_managed*)PyCapsule_GetPointer((PyObject*)capsule, "dltensor");
        managed->deleter(managed);
    } else if (PyCapsule_IsValid((PyObject*)capsule, "dltensor_versioned")) {
        sh_py_managed_versioned* managed =
            (sh_py_managed_versioned*)PyCapsule_GetPointer((PyObject*)capsule, "dltensor_versioned");
        managed->deleter(managed);
    }
}

/* Describes the bytes at `address` as a DLPack tensor. The tensor keeps the Python object `owner` alive; the caller
 * passes the object's id(). Returns NULL if there is no host memory. */
static void* sh_py_export_bytes(uintptr_t owner, uintptr_t address, int64_t bytes, int32_t device_type,
                                int32_t device_id, int readonly, int versioned) {
    sh_py_export* made = (sh_py_export*)calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    made->shape[0] = bytes;
    made->strides[0] = 1;
    sh_py_tensor tensor = {(void*)address, device_type,   device_id, 1, 1 /* unsigned */, 8, 1,
                           made->shape,    made->strides, 0};
    made->managed.tensor = tensor;
    made->managed.owner = (void*)owner;
    made->managed.deleter = sh_py_managed_delete;
    made->versioned.major = 1;
    made->versioned.owner = (void*)owner;
    made->versioned.deleter = sh_py_managed_versioned_delete;
    made->versioned.flags = readonly ? 1 : 0;
    made->versioned.tensor = tensor;
    const PyGILState_STATE state = PyGILState_Ensure();
    Py_INCREF((PyObject*)owner);
    PyGILState_Release(state);
    return versioned ? (void*)&made->versioned : (void*)&made->managed;
}

#endif
