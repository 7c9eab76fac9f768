// The buffer type. The bytes of a buffer lie in host memory, and on the device while the library has them there.
#include <cstdio>
#include <cstring>
#include <memory>

#include "streamed.h"

namespace streamed {
namespace {

struct Buffer {
    Buffer(Model* owner, std::size_t bytes) : model(owner), weights(owner->device(), bytes) {
        sh_segment source = SH_SEGMENT_INIT;
        sh_block_desc desc = SH_BLOCK_DESC_INIT;
        source.kind = SH_SOURCE_POINTER;
        source.pointer = weights.data();
        source.bytes = desc.bytes = bytes;
        desc.segments = &source;
        desc.segment_count = 1;
        block = model->runtime().register_block(desc);
        base = static_cast<char*>(model->runtime().block_info(block).address);
    }
    // The library may still read memory whose block it could not give up. That memory is left to it.
    ~Buffer() {
        if (sh_unregister_blocks(model->runtime().get(), &block, 1) < 0) (void)weights.release();
    }

    // Where a tensor's bytes are in host memory.
    char* host(const ggml_tensor* tensor, std::size_t offset) {
        return static_cast<char*>(weights.data()) + (static_cast<char*>(tensor->data) - base) + offset;
    }

    Model* model;
    stagehand::PinnedMemory weights;  // pinned: an acquire never waits for the bytes on the host
    sh_block block = 0;
    char* base = nullptr;  // the device address, which stays the same whether the bytes are there or not
};

Buffer& of(ggml_backend_buffer_t buffer) { return *static_cast<Buffer*>(buffer->context); }

// Changes bytes in host memory. The library may be reading them for a load, so it is told before. These functions have
// no way to report an error: an exception ends the process, as a failed copy does in the backends of ggml.
template <typename Change>
void change(Buffer& buffer, Change&& bytes_change) noexcept {
    stagehand::SourceUpdate update = buffer.model->runtime().update_sources({&buffer.block, 1});
    bytes_change();
    update.end();
}

void free_buffer(ggml_backend_buffer_t buffer) { delete &of(buffer); }

void* get_base(ggml_backend_buffer_t buffer) { return of(buffer).base; }

void memset_tensor(ggml_backend_buffer_t buffer, ggml_tensor* tensor, std::uint8_t value, std::size_t offset,
                   std::size_t bytes) {
    change(of(buffer), [&] { std::memset(of(buffer).host(tensor, offset), value, bytes); });
}

void set_tensor(ggml_backend_buffer_t buffer, ggml_tensor* tensor, const void* data, std::size_t offset,
                std::size_t bytes) {
    change(of(buffer), [&] { std::memcpy(of(buffer).host(tensor, offset), data, bytes); });
}

void get_tensor(ggml_backend_buffer_t buffer, const ggml_tensor* tensor, void* data, std::size_t offset,
                std::size_t bytes) {
    std::memcpy(data, of(buffer).host(tensor, offset), bytes);
}

void clear(ggml_backend_buffer_t buffer, std::uint8_t value) {
    change(of(buffer), [&] { std::memset(of(buffer).weights.data(), value, buffer->size); });
}

const char* get_name(ggml_backend_buffer_type_t) { return "streamed"; }

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, std::size_t bytes) {
    ggml_backend_buffer_i functions = {};
    functions.free_buffer = free_buffer;
    functions.get_base = get_base;
    functions.memset_tensor = memset_tensor;
    functions.set_tensor = set_tensor;
    functions.get_tensor = get_tensor;
    functions.clear = clear;
    try {
        auto buffer = std::make_unique<Buffer>(static_cast<Model*>(type->context), bytes);
        return ggml_backend_buffer_init(type, functions, buffer.release(), bytes);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "streamed: %s\n", error.what());
        return nullptr;
    }
}

std::size_t get_alignment(ggml_backend_buffer_type_t) { return 256; }

std::size_t get_max_size(ggml_backend_buffer_type_t type) { return static_cast<Model*>(type->context)->block_bytes(); }

// Kernels may read beyond a tensor's end, as far as the inner backend's own type says.
std::size_t get_alloc_size(ggml_backend_buffer_type_t type, const ggml_tensor* tensor) {
    const Model* model = static_cast<Model*>(type->context);
    return ggml_backend_buft_get_alloc_size(ggml_backend_get_default_buffer_type(model->inner()), tensor);
}

// The memory at a tensor's address is the library's, so ggml must go through the functions above.
bool is_host(ggml_backend_buffer_type_t) { return false; }

}  // namespace

ggml_backend_buffer_type make_buffer_type(Model* model, ggml_backend_dev_t device) {
    ggml_backend_buffer_type type = {};
    type.iface.get_name = get_name;
    type.iface.alloc_buffer = alloc_buffer;
    type.iface.get_alignment = get_alignment;
    type.iface.get_max_size = get_max_size;
    type.iface.get_alloc_size = get_alloc_size;
    type.iface.is_host = is_host;
    type.device = device;
    type.context = model;
    return type;
}

sh_block block_of(ggml_backend_buffer_t buffer) { return of(buffer).block; }

}  // namespace streamed
