// `stagehand pack`: packs the floating-point weights of a safetensors file without loss.
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
#include "model/error.h"
#include "model/quantity.h"
#include "model/safetensors_header.h"
#include "model/text.h"
#include "options.h"
#include "packing/description.h"
#include "packing/element_format.h"
#include "packing/safetensors_writer.h"
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

void end_if_interrupted() {
    if (const int signal = interrupted()) {
        throw CommandError(static_cast<ExitCode>(static_cast<int>(ExitCode::signalled) + signal), "interrupted");
    }
}

void check(const Status& status, const std::string& path, const model::Tensor& tensor) {
    if (!status.ok()) {
        throw model::ModelError(path, fmt::format("tensor {}", model::in_quotes(tensor.name)), status.text());
    }
}

// The room that the header may need: offsets and lengths are no longer than those of the whole file.
std::uint64_t largest_header(const TensorFile& file) {
    std::vector<WrittenTensor> tensors;
    std::map<std::string, PlainTensor, std::less<>> packed;
    for (const model::Tensor& tensor : file.tensors()) {
        std::vector<std::uint64_t> shape(tensor.shape.begin(), tensor.shape.end());
        packed[std::string(tensor.name)] = {std::string(tensor.dtype), shape};
        shape.push_back(file.bytes());
        tensors.push_back({std::string(tensor.name), std::string(tensor.dtype), std::move(shape), file.bytes()});
    }
    Json metadata = file.metadata();
    metadata[std::string(model::packed_key)] = description_of(packed);
    constexpr std::uint64_t alignment = 64;
    const std::uint64_t bytes = SafetensorsWriter::header(metadata, tensors).size();
    return (bytes + 8 + alignment - 1) / alignment * alignment - 8;
}

class PackingFile {
public:
    PackingFile(TensorFile& from, const PackOptions& options)
        : from_(from),
          threads_(options.threads ? options.threads : std::max(std::thread::hardware_concurrency(), 1u)),
          writer_(options.output, largest_header(from)) {}

    PackedRow add(const model::Tensor& tensor) {
        const std::vector<char> plain = from_.read(tensor);
        PackedRow row{std::string(tensor.name), std::string(tensor.dtype), 1, 0, tensor.bytes, tensor.bytes};
        WrittenTensor written{row.name, row.dtype, {tensor.shape.begin(), tensor.shape.end()}};
        const auto format = format_of_dtype(tensor.dtype);
        if (format && tensor.bytes <= largest_bytes) {
            check(codec::pack_frame(*format, plain.data(), plain.size(), threads_, &frame_), from_.path(), tensor);
            if (static_cast<double>(frame_.size()) <= (1 - least_saving) * static_cast<double>(plain.size())) {
                codec::Frame frame;
                check(codec::Frame::open(frame_, &frame), from_.path(), tensor);
                row.packed = 1;
                row.packed_bytes = frame_.size();
                row.tiles = frame.tiles();
                row.raw_tiles = frame.raw_tiles();
                packed_.emplace(row.name, PlainTensor{row.dtype, written.shape});
                written.dtype = "U8";
                written.shape = {frame_.size()};
                writer_.append(std::move(written), {reinterpret_cast<const char*>(frame_.data()), frame_.size()});
                return row;
            }
        }
        writer_.append(std::move(written), plain);
        return row;
    }

    void complete() {
        Json metadata = Json::object();
        metadata[std::string(model::packed_key)] = description_of(packed_);
        for (const auto& [key, value] : from_.metadata().items()) {
            metadata[key] = value;
        }
        writer_.complete(metadata);
    }

private:
    static constexpr std::uint64_t largest_bytes = (std::uint64_t{1} << 35) - 1;  // of a frame

    TensorFile& from_;
    const std::uint32_t threads_;
    SafetensorsWriter writer_;
    std::vector<std::uint8_t> frame_;
    std::map<std::string, PlainTensor, std::less<>> packed_;
};

// Reads the written file as anybody would, and compares each tensor with the plain one.
void verify(TensorFile& plain, const std::string& path, Progress& progress) {
    TensorFile written(path);
    progress.begin("verifying", plain.tensors().size(), 1);
    for (std::size_t i = 0; i < plain.tensors().size(); ++i) {
        end_if_interrupted();
        const model::Tensor& expected = plain.tensors()[i];
        const model::Tensor& found = written.tensors().at(i);
        std::vector<char> bytes = written.read(found);
        if (written.packed().contains(found.name)) {
            codec::Frame frame;
            check(codec::Frame::open({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, &frame), path,
                  found);
            std::vector<char> contents(frame.contents_bytes());
            check(frame.unpack(0, contents.size(), contents.data()), path, found);
            bytes = std::move(contents);
        }
        if (found.name != expected.name || bytes != plain.read(expected)) {
            throw CommandError(ExitCode::failure,
                               fmt::format("{}: tensor {} differs from the one in {}", model::printable(path),
                                           model::in_quotes(expected.name), model::printable(plain.path())));
        }
        progress.step(i, std::string(expected.name));
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
    for (auto& [dtype, row] : rows) {
        result.push_back(std::move(row));
    }
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
    for (const PackedRow& row : rows) {
        add(row);
    }
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

}  // namespace

int pack_command(const PackOptions& options) {
    catch_interrupts();
    TensorFile file(options.model);
    if (file.is_packed()) {
        throw model::ModelError(options.model, "metadata", "says that the tensors are packed already");
    }
    if (file.is_at(options.output)) {
        throw CommandError(ExitCode::usage, fmt::format("{} is MODEL itself", model::printable(options.output)));
    }
    Progress progress(options.quiet ? ProgressStyle::quiet : ProgressStyle::bar_only);
    progress.begin("packing", file.tensors().size(), 1);
    const auto began = std::chrono::steady_clock::now();
    std::vector<PackedRow> tensors;
    PackedRow all;
    {
        PackingFile packing(file, options);
        for (const model::Tensor& tensor : file.tensors()) {
            end_if_interrupted();
            tensors.push_back(packing.add(tensor));
            all.add(tensors.back());
            progress.step(tensors.size() - 1, tensors.back().name);
        }
        packing.complete();
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    if (options.verify) {
        verify(file, options.output, progress);
    }
    progress.clear();
    if (options.json) {
        Json json = {{"model", options.model},  {"output", options.output},
                     {"bytes", all.bytes},      {"packed_bytes", all.packed_bytes},
                     {"ratio", all.ratio()},    {"packed_tensors", all.packed},
                     {"seconds", seconds},      {"verified", options.verify},
                     {"tensors", Json::array()}};
        for (const PackedRow& row : tensors) {
            json["tensors"].push_back(json_of(row));
        }
        print(to_text(json));
    } else {
        print(table_of(options.all_tensors ? tensors : by_dtype(tensors), all, options.all_tensors));
        print(fmt::format("\n{} of {} are packed, at {}{}\n", count_text(all.packed), counted(all.tensors, "tensor"),
                          model::format_rate(static_cast<double>(all.bytes) / seconds),
                          options.verify ? "; all tensors come back bit by bit" : ""));
    }
    finish_output();
    return 0;
}

}  // namespace stagehand::cli
