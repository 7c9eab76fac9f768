// Streams a safetensors file through a quarter of its bytes, and compares every byte.
//
//     stream_file FILE [DEVICE]
//
// In other languages: stream_file.c, stream_file.py and stream_file.rs.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <stagehand/stagehand.hpp>
#include <string>
#include <vector>

namespace {

constexpr int kSteps = 3;

// A tensor, or a piece of one.
struct Tensor {
    std::uint64_t offset;  // in the file
    std::uint64_t bytes;
    std::string name;
};

// Reads the place of each tensor in the file, its number of bytes and its name, in the order of the file.
std::vector<Tensor> read_tensors(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    unsigned char prefix[8] = {};
    std::uint64_t length = 0;
    file.read(reinterpret_cast<char*>(prefix), 8);
    for (int i = 7; i >= 0; --i) length = length << 8 | prefix[i];
    if (!file || length > 100'000'000) throw std::runtime_error(path + ": it cannot be read as a safetensors file");
    std::string text(length, '\0');
    if (!file.read(text.data(), static_cast<std::streamsize>(length)))
        throw std::runtime_error(path + ": its header is incomplete");

    std::vector<Tensor> tensors;
    const nlohmann::json header = nlohmann::json::parse(text, nullptr, false);
    if (header.is_discarded()) throw std::runtime_error(path + ": its header is not JSON");
    for (const auto& [name, entry] : header.items()) {
        if (name == "__metadata__") continue;
        std::uint64_t begin = 1, end = 0;
        if (entry.is_object()) {
            const nlohmann::json offsets = entry.value("data_offsets", nlohmann::json());
            if (offsets.size() == 2 && offsets[0].is_number_unsigned() && offsets[1].is_number_unsigned()) {
                begin = offsets[0];
                end = offsets[1];
            }
        }
        if (begin > end) throw std::runtime_error(path + ": a tensor has no valid data_offsets");
        if (end > begin) tensors.push_back({8 + length + begin, end - begin, name});
    }
    if (tensors.empty()) throw std::runtime_error(path + ": it has no tensors");
    std::sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) { return a.offset < b.offset; });
    return tensors;
}

// Splits tensors that are too large for the budget. A block is used as a whole, so the largest block has to fit.
std::vector<Tensor> split(const std::vector<Tensor>& tensors, std::uint64_t most) {
    std::vector<Tensor> pieces;
    for (const Tensor& tensor : tensors)
        for (std::uint64_t at = 0; at < tensor.bytes; at += most)
            pieces.push_back({tensor.offset + at, std::min(most, tensor.bytes - at), tensor.name});
    return pieces;
}

// Registers each piece as a block whose bytes come from the file.
std::vector<sh_block> register_model(stagehand::Runtime& model, const std::string& path,
                                     const std::vector<Tensor>& pieces) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    std::vector<sh_segment> segments(pieces.size(), sh_segment(SH_SEGMENT_INIT));
    std::vector<sh_block_desc> descs(pieces.size(), sh_block_desc(SH_BLOCK_DESC_INIT));
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        segments[i].kind = SH_SOURCE_FILE;
        segments[i].file = file;
        segments[i].file_offset = pieces[i].offset;
        segments[i].bytes = descs[i].bytes = pieces[i].bytes;
        descs[i].segments = &segments[i];
        descs[i].segment_count = 1;
        descs[i].name = pieces[i].name.c_str();
    }
    std::vector<sh_block> blocks = model.register_blocks(descs);
    close(file);  // the library has a descriptor of its own
    return blocks;
}

// One pass over the model. It compares every byte with the file instead of computing.
std::uint64_t step(stagehand::Runtime& model, std::span<const sh_block> blocks, std::ifstream& file,
                   const std::vector<Tensor>& pieces) {
    std::uint64_t total = 0;
    stagehand::Step step = model.step();
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        stagehand::View view = model.acquire(blocks[i], SH_STREAM_HOST);
        std::string there(view.size(), '\0'), wanted(view.size(), '\0');
        view.read(0, there.data(), there.size());
        view.release();
        file.seekg(static_cast<std::streamoff>(pieces[i].offset))
            .read(wanted.data(), static_cast<std::streamsize>(wanted.size()));
        if (!file || there != wanted) throw std::runtime_error(pieces[i].name + ": its bytes differ from the file");
        total += there.size();
    }
    step.end();
    return total;
}

void run(const std::string& path, const std::string& device_name) {
    const std::vector<Tensor> tensors = read_tensors(path);
    std::uint64_t model_bytes = 0;
    for (const Tensor& tensor : tensors) model_bytes += tensor.bytes;
    const std::uint64_t budget = model_bytes / 4;
    const std::vector<Tensor> pieces = split(tensors, budget / 4 + 1);

    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    options.budget_bytes = budget;
    const stagehand::Device device(device_name, options);
    stagehand::Runtime model(device);
    const std::vector<sh_block> blocks = register_model(model, path, pieces);
    std::printf("%zu tensors of %llu bytes, in %zu blocks, through %llu bytes\n", tensors.size(),
                (unsigned long long)model_bytes, blocks.size(), (unsigned long long)budget);
    std::ifstream file(path, std::ios::binary);
    for (int i = 0; i < kSteps; ++i)
        std::printf("step %d: %llu bytes equal the file\n", i, (unsigned long long)step(model, blocks, file, pieces));
    const std::uint64_t peak = device.memory().peak_bytes, copied = model.stats().bytes_to_device;
    std::printf("the device held at most %llu bytes, and %llu bytes were copied to it\n", (unsigned long long)peak,
                (unsigned long long)copied);
    if (peak > budget) throw std::runtime_error("the device: it held more than the budget");
    if (copied < model_bytes + (kSteps - 1) * (model_bytes - budget))
        throw std::runtime_error("the model: it did not stream");
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2 || argc > 3) {
        std::fprintf(stderr, "usage: stream_file FILE [DEVICE]\n");
        return 1;
    }
    try {
        run(argv[1], argc > 2 ? argv[2] : "host");
    } catch (const std::exception& error) {
        std::fprintf(stderr, "stream_file: %s\n", error.what());
        return 1;
    }
    return 0;
}
