// Checks over all tensors of a file or model, each in n log n time.
#include "checks.h"

#include <string>

#include "error.h"
#include "text.h"

namespace stagehand::cli::model {

std::string tensor_field(std::string_view name, std::string_view what) {
    std::string field = "tensor " + in_quotes(name);
    if (!what.empty()) {
        field += ": ";
        field += what;
    }
    return field;
}

void check_names(const Model& model, std::size_t first) {
    const auto name_of = [&](std::size_t i) { return model.tensors[first + i].name; };
    find_equal_names(model.tensors.size() - first, name_of, [&](std::size_t one, std::size_t two) {
        const Tensor& a = model.tensors[first + one];
        const Tensor& b = model.tensors[first + two];
        const std::string message = a.file == b.file ? std::string("is named twice in the header")
                                                     : "is also in " + in_quotes(model.files[a.file].path);
        throw ModelError(model.files[b.file].path, tensor_field(b.name), message);
    });
}

void check_layout(const Model& model, std::size_t first, bool gaps_allowed) {
    if (first == model.tensors.size()) return;
    std::vector<const Tensor*> order;
    order.reserve(model.tensors.size() - first);
    for (std::size_t i = first; i < model.tensors.size(); ++i) order.push_back(&model.tensors[i]);
    // An empty tensor comes before a tensor that begins at the same offset.
    std::sort(order.begin(), order.end(), [](const Tensor* a, const Tensor* b) {
        return a->offset != b->offset ? a->offset < b->offset : a->bytes < b->bytes;
    });
    const ModelFile& file = model.files[order.front()->file];
    std::uint64_t end = file.data_offset;
    const Tensor* last = nullptr;
    for (const Tensor* tensor : order) {
        const std::string_view what = "data_offsets";
        if (tensor->offset < end)
            throw ModelError(file.path, tensor_field(tensor->name, what), "overlap those of " + in_quotes(last->name));
        if (tensor->offset > end && !gaps_allowed) {
            throw ModelError(
                file.path, tensor_field(tensor->name, what),
                "leave " + std::to_string(tensor->offset - end) + " bytes before them that belong to no tensor");
        }
        if (tensor->offset + tensor->bytes > end) {
            end = tensor->offset + tensor->bytes;
            last = tensor;
        }
    }
}

void add_bytes(Model& model, std::size_t first) {
    for (std::size_t i = first; i < model.tensors.size(); ++i) {
        const Tensor& tensor = model.tensors[i];
        if (tensor.bytes > Model::max_total_bytes - model.total_bytes) {
            throw ModelError(model.files[tensor.file].path, tensor_field(tensor.name, "size"),
                             "makes the model larger than 4 EiB");
        }
        model.total_bytes += tensor.bytes;
    }
}

}  // namespace stagehand::cli::model
