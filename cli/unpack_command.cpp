// `stagehand unpack`: gives the tensors of a packed file back as they were.
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "codec/frame.h"
#include "exit_code.h"
#include "interrupt.h"
#include "json_output.h"
#include "model/element_type.h"
#include "model/error.h"
#include "model/quantity.h"
#include "model/text.h"
#include "options.h"
#include "packing/codec_error.h"
#include "packing/element_format.h"
#include "packing/safetensors_writer.h"
#include "packing/tensor_file.h"
#include "progress.h"
#include "terminal.h"
#include "units.h"

namespace stagehand::cli {

namespace {

[[noreturn]] void fail(const TensorFile& file, std::string_view name, std::string_view why) {
    throw model::ModelError(file.path(), fmt::format("tensor {}", model::in_quotes(name)), why);
}

// The bytes of a tensor that was packed, by what the metadata says of it. Refuses what no tensor can be.
std::uint64_t plain_bytes(const TensorFile& file, std::string_view name, const model::PlainTensor& plain) {
    const model::ElementType* const type = model::safetensors_type(plain.dtype);
    if (type == nullptr || !format_of_dtype(plain.dtype)) {
        fail(file, name, fmt::format("elements of type {} are never packed", model::in_quotes(plain.dtype)));
    }
    const model::TensorSize size = model::tensor_size(*type, plain.shape);
    if (!size.problem.empty()) {
        fail(file, name, size.problem);
    }
    return size.bytes;
}

// The tensors that the plain file will have. Checks the whole description before anything is written.
std::vector<WrittenTensor> plain_tensors(const TensorFile& file) {
    std::vector<WrittenTensor> tensors;
    std::size_t packed = 0;
    for (const model::Tensor& tensor : file.tensors()) {
        const auto found = file.packed().find(tensor.name);
        if (found == file.packed().end()) {
            tensors.push_back({std::string(tensor.name),
                               std::string(tensor.dtype),
                               {tensor.shape.begin(), tensor.shape.end()},
                               tensor.bytes});
            continue;
        }
        ++packed;
        if (tensor.bytes == 0) {
            fail(file, tensor.name, "is packed by the metadata, but has no bytes");
        }
        if (tensor.dtype != "U8") {
            fail(file, tensor.name, "is packed by the metadata, but its elements are not bytes");
        }
        tensors.push_back({std::string(tensor.name), found->second.dtype, found->second.shape,
                           plain_bytes(file, tensor.name, found->second)});
    }
    if (packed != file.packed().size()) {
        throw model::ModelError(file.path(), "metadata", "describes a packed tensor that is not in the file");
    }
    return tensors;
}

std::vector<char> unpacked(const TensorFile& file, const model::Tensor& tensor, const WrittenTensor& plain,
                           const std::vector<char>& bytes) {
    codec::Frame frame;
    check_codec(codec::Frame::open({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, &frame),
                file.path(), tensor.name);
    if (frame.format() != format_of_dtype(plain.dtype) || frame.contents_bytes() != plain.bytes) {
        fail(file, tensor.name, "is not what the metadata says");
    }
    std::vector<char> contents(plain.bytes);
    check_codec(frame.unpack(0, contents.size(), contents.data()), file.path(), tensor.name);
    return contents;
}

}  // namespace

int unpack_command(const PackOptions& options) {
    catch_interrupts();
    TensorFile file(options.model);
    if (!file.is_packed()) {
        throw model::ModelError(options.model, "metadata", "does not say that tensors are packed");
    }
    if (file.is_at(options.output)) {
        throw CommandError(ExitCode::usage, fmt::format("{} is PACKED itself", model::printable(options.output)));
    }
    const std::vector<WrittenTensor> plain = plain_tensors(file);
    Progress progress(options.quiet ? ProgressStyle::quiet : ProgressStyle::bar_only);
    progress.begin("unpacking", plain.size(), 1);
    SafetensorsWriter writer(options.output, SafetensorsWriter::header(file.metadata(), plain).size());
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < plain.size(); ++i) {
        end_if_interrupted();
        const model::Tensor& tensor = file.tensors()[i];
        std::vector<char> contents = file.read(tensor);
        if (file.packed().contains(tensor.name)) {
            contents = unpacked(file, tensor, plain[i], contents);
        }
        bytes += contents.size();
        writer.append(plain[i], contents);
        progress.step(i, model::printable(plain[i].name));
    }
    writer.finish(file.metadata());
    writer.publish();
    progress.clear();
    if (options.json) {
        print(to_text(Json{{"model", options.model},
                           {"output", options.output},
                           {"tensors", plain.size()},
                           {"packed_tensors", file.packed().size()},
                           {"packed_bytes", file.total_bytes()},
                           {"bytes", bytes}}));
    } else {
        print(fmt::format("{} of {} unpacked: {} from {}\n", count_text(file.packed().size()),
                          counted(plain.size(), "tensor"), model::format_bytes(bytes),
                          model::format_bytes(file.total_bytes())));
    }
    finish_output();
    return 0;
}

}  // namespace stagehand::cli
