// `stagehand pack` and `stagehand unpack`: pack the floating-point weights of safetensors files without loss, and give
// them back as they were.
#include <chrono>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "codec/frame.h"
#include "exit_code.h"
#include "interrupt.h"
#include "json_output.h"
#include "model/element_format.h"
#include "model/error.h"
#include "model/packed_description.h"
#include "model/quantity.h"
#include "model/text.h"
#include "options.h"
#include "packing/codec_error.h"
#include "packing/safetensors_writer.h"
#include "packing/shards.h"
#include "packing/tensor_file.h"
#include "progress.h"
#include "table.h"
#include "units.h"

namespace stagehand::cli {

namespace {

// A tensor stays as it is if packing saves less.
constexpr double least_saving = 0.05;

struct PackedRow {
    std::string name;  // of a tensor, or of a type of element
    std::string dtype;
    std::uint64_t tensors = 0, packed = 0;
    std::uint64_t bytes = 0, packed_bytes = 0;
    std::uint64_t tiles = 0, raw_tiles = 0;

    void add(const PackedRow& other) {
        tensors += other.tensors;
        packed += other.packed;
        bytes += other.bytes;
        packed_bytes += other.packed_bytes;
        tiles += other.tiles;
        raw_tiles += other.raw_tiles;
    }
    double ratio() const { return bytes == 0 ? 1 : static_cast<double>(packed_bytes) / static_cast<double>(bytes); }
};

// The room that the header may need: offsets and lengths are no longer than those of the whole file.
std::uint64_t largest_header(const TensorFile& file) {
    std::vector<WrittenTensor> tensors;
    model::PackedTensors packed;
    for (const model::Tensor& tensor : file.tensors()) {
        std::vector<std::uint64_t> shape(tensor.shape.begin(), tensor.shape.end());
        packed[std::string(tensor.name)] = {std::string(tensor.dtype), shape};
        shape.push_back(file.bytes());
        tensors.push_back({std::string(tensor.name), std::string(tensor.dtype), std::move(shape), file.bytes()});
    }
    Json metadata = file.metadata();
    metadata[std::string(model::packed_key)] = model::description_of(packed);
    return SafetensorsWriter::header(metadata, tensors).size();
}

class PackingFile {
public:
    PackingFile(TensorFile& from, const std::string& to, std::uint32_t threads)
        : from_(from),
          threads_(threads ? threads : std::max(std::thread::hardware_concurrency(), 1u)),
          writer_(to, largest_header(from)) {}

    PackedRow add(const model::Tensor& tensor) {
        const std::vector<char> plain = from_.read(tensor);
        PackedRow row{std::string(tensor.name), std::string(tensor.dtype), 1, 0, tensor.bytes, tensor.bytes};
        WrittenTensor written{row.name, row.dtype, {tensor.shape.begin(), tensor.shape.end()}};
        const auto format = model::format_of_dtype(tensor.dtype);
        if (format && tensor.bytes <= largest_bytes) {
            check_codec(codec::pack_frame(*format, plain.data(), plain.size(), threads_, &frame_), from_.path(),
                        tensor.name);
            if (static_cast<double>(frame_.size()) <= (1 - least_saving) * static_cast<double>(plain.size())) {
                codec::Frame frame;
                check_codec(codec::Frame::open(frame_, &frame), from_.path(), tensor.name);
                row.packed = 1;
                row.packed_bytes = frame_.size();
                row.tiles = frame.tiles();
                row.raw_tiles = frame.raw_tiles();
                packed_.emplace(row.name, model::PlainTensor{row.dtype, written.shape});
                written.dtype = "U8";
                written.shape = {frame_.size()};
                writer_.append(std::move(written), {reinterpret_cast<const char*>(frame_.data()), frame_.size()});
                return row;
            }
        }
        writer_.append(std::move(written), plain);
        return row;
    }

    // Returns the name that the file has until it is published.
    const std::string& finish() {
        Json metadata = Json::object();
        metadata[std::string(model::packed_key)] = model::description_of(packed_);
        for (const auto& [key, value] : from_.metadata().items()) metadata[key] = value;
        writer_.finish(metadata);
        return writer_.unfinished();
    }
    void publish() { writer_.publish(); }

private:
    static constexpr std::uint64_t largest_bytes = (std::uint64_t{1} << 35) - 1;  // of a frame

    TensorFile& from_;
    const std::uint32_t threads_;
    SafetensorsWriter writer_;
    std::vector<std::uint8_t> frame_;
    model::PackedTensors packed_;
};

// Reads the written file as anybody would, and compares each tensor with the plain one.
void verify(TensorFile& plain, const std::string& path, Progress& progress) {
    progress.begin("verifying", plain.tensors().size(), 1);
    try {
        TensorFile written(path);
        for (std::size_t i = 0; i < plain.tensors().size(); ++i) {
            end_if_interrupted();
            const model::Tensor& expected = plain.tensors()[i];
            const model::Tensor& found = written.tensors().at(i);
            if (found.name != expected.name || written.read(found) != plain.read(expected)) {
                throw CommandError(ExitCode::failure,
                                   fmt::format("{}: tensor {} came back with other bytes",
                                               model::printable(plain.path()), model::in_quotes(expected.name)));
            }
            progress.step(i, model::printable(expected.name));
        }
    } catch (const model::ModelError& error) {
        throw CommandError(ExitCode::failure, fmt::format("what was written cannot be read: {}", error.what()));
    }
}

std::vector<PackedRow> by_dtype(const std::vector<PackedRow>& tensors) {
    std::map<std::string, PackedRow> rows;
    for (const PackedRow& tensor : tensors) {
        PackedRow& row = rows[tensor.dtype];
        row.name = tensor.dtype;
        row.add(tensor);
    }
    std::vector<PackedRow> result;
    for (auto& [dtype, row] : rows) result.push_back(std::move(row));
    return result;
}

std::string table_of(const std::vector<PackedRow>& rows, const PackedRow& all, bool tensors) {
    Table table{
        {tensors ? "tensor" : "elements"}, {tensors ? "elements" : "tensors", tensors ? Align::left : Align::right},
        {"packed", Align::right},          {"bytes", Align::right},
        {"afterwards", Align::right},      {"ratio", Align::right}};
    const auto add = [&](const PackedRow& row) {
        table.add({model::printable(row.name), tensors ? row.dtype : count_text(row.tensors), count_text(row.packed),
                   model::format_bytes(row.bytes), model::format_bytes(row.packed_bytes),
                   fmt::format("{:.4f}", row.ratio())});
    };
    for (const PackedRow& row : rows) add(row);
    table.rule();
    PackedRow sum = all;
    sum.name = "all";
    sum.dtype = "";
    add(sum);
    return table.text(terminal_of(stdout));
}

Json json_of(const PackedRow& row) {
    return {{"name", row.name},
            {"dtype", row.dtype},
            {"packed", row.packed != 0},
            {"bytes", row.bytes},
            {"packed_bytes", row.packed_bytes},
            {"ratio", row.ratio()},
            {"tiles", row.tiles},
            {"raw_tiles", row.raw_tiles}};
}

// What was packed, of all files.
struct PackedFiles {
    std::vector<PackedRow> tensors;
    PackedRow all;
    double seconds = 0;
};

// Throws if it is not `packed` as the command takes it, or is what the command would write.
void check_file(const TensorFile& file, const Shard& shard, bool packed) {
    if (file.is_packed() != packed)
        throw model::ModelError(
            shard.from, "metadata",
            packed ? "does not say that tensors are packed" : "says that the tensors are packed already");
    if (file.is_at(shard.to))
        throw CommandError(ExitCode::usage,
                           fmt::format("{} is {} itself", model::printable(shard.to), packed ? "PACKED" : "MODEL"));
}

// Calls work(file, shard) for each file of the model. All are looked at before anything is written.
template <typename Work>
void for_each_shard(const PackOptions& options, bool packed, Progress& progress, Work work) {
    catch_interrupts();
    const Shards shards(options.model, options.output);
    for (const Shard& shard : shards.files()) check_file(TensorFile(shard.from), shard, packed);
    shards.begin();
    for (const Shard& shard : shards.files()) {
        TensorFile file(shard.from);
        check_file(file, shard, packed);
        work(file, shard);
    }
    shards.finish();
    progress.clear();
}

void pack_file(TensorFile& file, const Shard& shard, const PackOptions& options, Progress& progress,
               PackedFiles& packed) {
    progress.begin("packing", file.tensors().size(), 1);
    const auto began = std::chrono::steady_clock::now();
    PackingFile packing(file, shard.to, options.threads);
    for (std::size_t i = 0; i < file.tensors().size(); ++i) {
        end_if_interrupted();
        packed.tensors.push_back(packing.add(file.tensors()[i]));
        packed.all.add(packed.tensors.back());
        progress.step(i, model::printable(packed.tensors.back().name));
    }
    const std::string unfinished = packing.finish();
    packed.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    if (options.verify) verify(file, unfinished, progress);
    packing.publish();
}

// What was unpacked, of all files.
struct UnpackedFiles {
    std::size_t tensors = 0, packed_tensors = 0;
    std::uint64_t bytes = 0, packed_bytes = 0;
};

void unpack_file(TensorFile& file, const Shard& shard, Progress& progress, UnpackedFiles& all) {
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

int pack_command(const PackOptions& options) {
    Progress progress(options.quiet ? ProgressStyle::quiet : ProgressStyle::bar_only);
    PackedFiles packed;
    for_each_shard(options, false, progress,
                   [&](TensorFile& file, const Shard& shard) { pack_file(file, shard, options, progress, packed); });
    const auto& [tensors, all, seconds] = packed;
    if (options.json) {
        Json json = {{"model", options.model},  {"output", options.output},
                     {"bytes", all.bytes},      {"packed_bytes", all.packed_bytes},
                     {"ratio", all.ratio()},    {"packed_tensors", all.packed},
                     {"seconds", seconds},      {"verified", options.verify},
                     {"tensors", Json::array()}};
        for (const PackedRow& row : tensors) json["tensors"].push_back(json_of(row));
        print(to_text(json));
    } else {
        print(table_of(options.all_tensors ? tensors : by_dtype(tensors), all, options.all_tensors));
        print(fmt::format("\n{} of {} packed, read and written at {}{}\n", count_text(all.packed),
                          counted(all.tensors, "tensor"), model::format_rate(static_cast<double>(all.bytes) / seconds),
                          options.verify ? "; all tensors come back bit by bit" : ""));
    }
    finish_output();
    return 0;
}

int unpack_command(const PackOptions& options) {
    Progress progress(options.quiet ? ProgressStyle::quiet : ProgressStyle::bar_only);
    UnpackedFiles all;
    for_each_shard(options, true, progress,
                   [&](TensorFile& file, const Shard& shard) { unpack_file(file, shard, progress, all); });
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
