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
#include "packing/safetensors_writer.h"
#include "packing/shards.h"
#include "packing/tensor_file.h"
#include "progress.h"
#include "terminal.h"
#include "units.h"

namespace stagehand::cli {

namespace {

// What was unpacked, of all files.
struct UnpackedFiles {
    std::size_t tensors = 0, packed_tensors = 0;
    std::uint64_t bytes = 0, packed_bytes = 0;
};

void check_packed(const TensorFile& file, const Shard& shard) {
    if (!file.is_packed()) throw model::ModelError(shard.from, "metadata", "does not say that tensors are packed");
    if (file.is_at(shard.to))
        throw CommandError(ExitCode::usage, fmt::format("{} is PACKED itself", model::printable(shard.to)));
}

void unpack_shard(const Shard& shard, Progress& progress, UnpackedFiles& all) {
    TensorFile file(shard.from);
    check_packed(file, shard);
    std::vector<WrittenTensor> plain;
    for (const model::Tensor& tensor : file.tensors()) {
        plain.push_back({std::string(tensor.name),
                         std::string(tensor.dtype),
                         {tensor.shape.begin(), tensor.shape.end()},
                         tensor.bytes});
    }
    progress.begin("unpacking", plain.size(), 1);
    SafetensorsWriter writer(shard.to, SafetensorsWriter::header(file.metadata(), plain).size());
    for (std::size_t i = 0; i < plain.size(); ++i) {
        end_if_interrupted();
        const std::vector<char> contents = file.read(file.tensors()[i]);
        all.bytes += contents.size();
        writer.append(plain[i], contents);
        progress.step(i, model::printable(plain[i].name));
    }
    writer.finish(file.metadata());
    writer.publish();
    all.tensors += plain.size();
    all.packed_tensors += file.packed_tensors();
    all.packed_bytes += file.stored_bytes();
}

}  // namespace

int unpack_command(const PackOptions& options) {
    catch_interrupts();
    const Shards shards(options.model, options.output);
    for (const Shard& shard : shards.files())
        check_packed(TensorFile(shard.from), shard);  // before anything is written
    shards.begin();
    Progress progress(options.quiet ? ProgressStyle::quiet : ProgressStyle::bar_only);
    UnpackedFiles all;
    for (const Shard& shard : shards.files()) unpack_shard(shard, progress, all);
    shards.finish();
    progress.clear();
    if (options.json) {
        print(to_text(Json{{"model", options.model},
                           {"output", options.output},
                           {"tensors", all.tensors},
                           {"packed_tensors", all.packed_tensors},
                           {"packed_bytes", all.packed_bytes},
                           {"bytes", all.bytes}}));
    } else {
        print(fmt::format("{} of {} unpacked: {} from {}\n", count_text(all.packed_tensors),
                          counted(all.tensors, "tensor"), model::format_bytes(all.bytes),
                          model::format_bytes(all.packed_bytes)));
    }
    finish_output();
    return 0;
}

}  // namespace stagehand::cli
