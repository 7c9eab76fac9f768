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

int unpack_command(const PackOptions& options) {
    catch_interrupts();
    TensorFile file(options.model);
    if (!file.is_packed()) {
        throw model::ModelError(options.model, "metadata", "does not say that tensors are packed");
    }
    if (file.is_at(options.output)) {
        throw CommandError(ExitCode::usage, fmt::format("{} is PACKED itself", model::printable(options.output)));
    }
    std::vector<WrittenTensor> plain;
    for (const model::Tensor& tensor : file.tensors()) {
        plain.push_back({std::string(tensor.name),
                         std::string(tensor.dtype),
                         {tensor.shape.begin(), tensor.shape.end()},
                         tensor.bytes});
    }
    Progress progress(options.quiet ? ProgressStyle::quiet : ProgressStyle::bar_only);
    progress.begin("unpacking", plain.size(), 1);
    SafetensorsWriter writer(options.output, SafetensorsWriter::header(file.metadata(), plain).size());
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < plain.size(); ++i) {
        end_if_interrupted();
        const std::vector<char> contents = file.read(file.tensors()[i]);
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
                           {"packed_tensors", file.packed_tensors()},
                           {"packed_bytes", file.stored_bytes()},
                           {"bytes", bytes}}));
    } else {
        print(fmt::format("{} of {} unpacked: {} from {}\n", count_text(file.packed_tensors()),
                          counted(plain.size(), "tensor"), model::format_bytes(bytes),
                          model::format_bytes(file.stored_bytes())));
    }
    finish_output();
    return 0;
}

}  // namespace stagehand::cli
