// The backend. It computes on the inner backend, and holds the blocks of the weights that a part of a graph reads.
#include <ggml-impl.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <vector>

#include "streamed.h"

namespace streamed {
namespace {

Model* model_of(ggml_backend_t backend) { return static_cast<Model*>(backend->context); }
Model* model_of(ggml_backend_dev_t device) { return static_cast<Model*>(device->context); }
ggml_backend_dev_t inner_of(ggml_backend_dev_t device) { return model_of(device)->inner()->device; }

using Blocks = std::vector<sh_block>;

Blocks blocks_of(const Model& model, const ggml_tensor* node) {
    Blocks blocks;
    for (const ggml_tensor* source : node->src) {
        const sh_block block = source ? model.block_of(source) : 0;
        if (block != 0 && std::find(blocks.begin(), blocks.end(), block) == blocks.end()) blocks.push_back(block);
    }
    return blocks;
}

bool contains(const Blocks& all, const Blocks& some) {
    return std::all_of(some.begin(), some.end(),
                       [&](sh_block block) { return std::find(all.begin(), all.end(), block) != all.end(); });
}

// Computes the nodes from `begin` to `end`, which read weights of `blocks` only.
ggml_status compute_run(Model& model, ggml_cgraph* graph, int begin, int end, const Blocks& blocks) {
    if (begin == end) return GGML_STATUS_SUCCESS;
    ggml_cgraph run = ggml_graph_view(graph, begin, end);
    stagehand::Views views = model.runtime().acquire_many(blocks, SH_STREAM_HOST);
    const ggml_status status = ggml_backend_graph_compute(model.inner(), &run);  // waits for the inner backend
    views.release();
    return status;
}

// One pass over the graph is one step. The graph is cut where a node needs a block that is not held.
ggml_status compute(Model& model, ggml_cgraph* graph) {
    stagehand::Step step = model.runtime().step();
    Blocks held;
    int begin = 0;
    for (int i = 0; i < graph->n_nodes; ++i) {
        Blocks needed = blocks_of(model, graph->nodes[i]);
        if (contains(held, needed)) continue;
        const ggml_status status = compute_run(model, graph, begin, i, held);
        if (status != GGML_STATUS_SUCCESS) return status;
        held = std::move(needed);
        begin = i;
    }
    const ggml_status status = compute_run(model, graph, begin, graph->n_nodes, held);
    step.end();
    return status;
}

ggml_status graph_compute(ggml_backend_t backend, ggml_cgraph* graph) {
    try {
        return compute(*model_of(backend), graph);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "streamed: %s\n", error.what());
        return GGML_STATUS_FAILED;
    }
}

const char* backend_name(ggml_backend_t) { return "streamed"; }
void free_backend(ggml_backend_t) {}  // the model owns the backend

const char* device_name(ggml_backend_dev_t) { return "streamed"; }
const char* description(ggml_backend_dev_t device) { return ggml_backend_dev_description(inner_of(device)); }
void memory(ggml_backend_dev_t device, std::size_t* free, std::size_t* total) {
    ggml_backend_dev_memory(inner_of(device), free, total);
}
enum ggml_backend_dev_type type(ggml_backend_dev_t device) { return ggml_backend_dev_type(inner_of(device)); }
void properties(ggml_backend_dev_t device, ggml_backend_dev_props* props) {
    ggml_backend_dev_get_props(inner_of(device), props);
    props->caps = {};  // no asynchronous calls, buffers of the host or events
}

// Activations are the inner backend's.
ggml_backend_buffer_type_t activations(ggml_backend_dev_t device) {
    return ggml_backend_dev_buffer_type(inner_of(device));
}

bool supports_type(ggml_backend_dev_t device, ggml_backend_buffer_type_t type) {
    return type == model_of(device)->buffer_type() || ggml_backend_dev_supports_buft(inner_of(device), type);
}

// Streamed weights are read only: the library may drop what is on the device at any time.
bool supports_op(ggml_backend_dev_t device, const ggml_tensor* op) {
    const bool views = op->op == GGML_OP_NONE || op->op == GGML_OP_VIEW || op->op == GGML_OP_RESHAPE ||
                       op->op == GGML_OP_PERMUTE || op->op == GGML_OP_TRANSPOSE;
    return (views || model_of(device)->block_of(op) == 0) && ggml_backend_dev_supports_op(inner_of(device), op);
}

}  // namespace

Model::Model(const stagehand::Device& device, ggml_backend_t inner, std::size_t block_bytes)
    : device_(device),
      runtime_(device),
      inner_(inner),
      block_bytes_(block_bytes),
      type_(make_buffer_type(this, &ggml_device_)),
      ggml_device_(make_device(this)),
      backend_(make_backend(this, &ggml_device_)) {
    // Tensors keep their addresses, so the blocks must do so too.
    if (!(device.capabilities().flags & SH_DEVICE_FIXED_ADDRESSES))
        throw std::runtime_error("this device cannot map memory by pages");
}

sh_block Model::block_of(const ggml_tensor* tensor) const {
    const ggml_backend_buffer_t buffer = tensor->view_src ? tensor->view_src->buffer : tensor->buffer;
    return buffer && buffer->buft == &type_ ? streamed::block_of(buffer) : 0;
}

ggml_backend_device make_device(Model* model) {
    ggml_backend_device made = {};
    made.iface.get_name = device_name;
    made.iface.get_description = description;
    made.iface.get_memory = memory;
    made.iface.get_type = type;
    made.iface.get_props = properties;
    made.iface.get_buffer_type = activations;
    made.iface.supports_op = supports_op;
    made.iface.supports_buft = supports_type;
    made.reg = model->inner()->device->reg;
    made.context = model;
    return made;
}

ggml_backend make_backend(Model* model, ggml_backend_dev_t device) {
    static ggml_guid guid = {0x73, 0x74, 0x72, 0x65, 0x61, 0x6d, 0x65, 0x64};
    ggml_backend made = {};
    made.guid = &guid;
    made.iface.get_name = backend_name;
    made.iface.free = free_backend;
    made.iface.graph_compute = graph_compute;
    made.device = device;
    made.context = model;
    return made;
}

}  // namespace streamed
