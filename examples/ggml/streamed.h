// Weights of ggml that stream: a buffer type for the weights, and a backend that computes with them.
//
// An engine puts a model's weights into `buffer_type()` instead of its backend's own buffer type, and computes with
// `backend()` instead of its own backend. Nothing else of the engine changes.
#pragma once

#include <ggml-backend-impl.h>

#include <stagehand/stagehand.hpp>

namespace streamed {

// One model's weights. A buffer of ggml is one block of the library: its tensors move together. Loaders of models ask
// for one large buffer, and ggml divides such a request by the type's `get_max_size`. So no engine needs to know of
// blocks.
class Model {
public:
    // Computes on `inner`, whose memory is `device`. A block has at most `block_bytes`, or is one larger tensor: about
    // the size of a layer is right. Free the buffers of the type before the model, and `inner` after the model.
    Model(const stagehand::Device& device, ggml_backend_t inner, std::size_t block_bytes);
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;

    ggml_backend_buffer_type_t buffer_type() { return &type_; }
    ggml_backend_t backend() { return &backend_; }

    const stagehand::Device& device() const { return device_; }
    stagehand::Runtime& runtime() { return runtime_; }
    ggml_backend_t inner() const { return inner_; }
    std::size_t block_bytes() const { return block_bytes_; }

    // The block that holds a tensor's bytes. 0: the bytes lie in a buffer of another type.
    sh_block block_of(const ggml_tensor* tensor) const;

private:
    const stagehand::Device& device_;
    stagehand::Runtime runtime_;
    ggml_backend_t inner_;
    std::size_t block_bytes_;
    ggml_backend_buffer_type type_;    // buffer_type.cpp
    ggml_backend_device ggml_device_;  // backend.cpp
    ggml_backend backend_;
};

ggml_backend_buffer_type make_buffer_type(Model* model, ggml_backend_dev_t device);
ggml_backend_device make_device(Model* model);
ggml_backend make_backend(Model* model, ggml_backend_dev_t device);

// The block behind a buffer of the type.
sh_block block_of(ggml_backend_buffer_t buffer);

}  // namespace streamed
