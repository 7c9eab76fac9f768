// Streams a safetensors file through a quarter of its bytes, then protects a block, reserves for the model, and lets a guest in.
//
//     stream_file FILE [DEVICE]
//
// The same program as stream_file.c and stream_file.py.
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

constexpr std::uint64_t kGuestBytes = 1 << 20;

struct Tensor {
    std::uint64_t offset; // in the file
    std::uint64_t bytes;
    std::string name;
};

// Where each tensor lies in the file, how many bytes it has, and its name, in the file's order.
std::vector<Tensor> read_tensors(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    unsigned char prefix[8] = {};
    std::uint64_t length = 0;
    file.read(reinterpret_cast<char*>(prefix), 8);
    for (int i = 7; i >= 0; --i) length = length << 8 | prefix[i];
    if (!file || length > 100'000'000) throw std::runtime_error(path + ": it cannot be read as a safetensors file");
    std::string text(length, '\0');
    if (!file.read(text.data(), static_cast<std::streamsize>(length)))
        throw std::runtime_error(path + ": its header is cut short");

    std::vector<Tensor> tensors;
    const nlohmann::json header = nlohmann::json::parse(text, nullptr, false);
    if (header.is_discarded()) throw std::runtime_error(path + ": its header is no JSON");
    for (const auto& [name, entry] : header.items()) {
        if (name == "__metadata__") continue;
        const std::uint64_t begin = entry.at("data_offsets").at(0), end = entry.at("data_offsets").at(1);
        if (end > begin) tensors.push_back({8 + length + begin, end - begin, name});
    }
    if (tensors.empty()) throw std::runtime_error(path + ": it has no tensors");
    std::sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) { return a.offset < b.offset; });
    return tensors;
}

// One pass over the model. In place of computing, it adds up all bytes.
std::uint64_t step(stagehand::Runtime& runtime, std::span<const sh_block> blocks) {
    std::uint64_t total = 0;
    stagehand::Step step = runtime.step();
    for (const sh_block block : blocks) {
        stagehand::View view = runtime.acquire(block, SH_STREAM_HOST);
        std::vector<unsigned char> bytes(view.size());
        view.read(0, bytes.data(), bytes.size());
        for (const unsigned char byte : bytes) total += byte;
        view.release();
    }
    step.end();
    return total;
}

// Each tensor is a block, whose bytes come out of the file.
std::vector<sh_block> register_model(stagehand::Runtime& model, const std::string& path, const std::vector<Tensor>& tensors) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    std::vector<sh_segment> segments(tensors.size(), sh_segment(SH_SEGMENT_INIT));
    std::vector<sh_block_desc> descs(tensors.size(), sh_block_desc(SH_BLOCK_DESC_INIT));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        segments[i].kind = SH_SOURCE_FILE;
        segments[i].file = file;
        segments[i].file_offset = tensors[i].offset;
        segments[i].bytes = descs[i].bytes = tensors[i].bytes;
        descs[i].segments = &segments[i];
        descs[i].segment_count = 1;
        descs[i].name = tensors[i].name.c_str();
    }
    std::vector<sh_block> blocks = model.register_blocks(descs);
    close(file); // the library has a descriptor of its own
    return blocks;
}

// Protect: the first block stays on the device, whole, whatever the others need.
void protect(stagehand::Runtime& model, std::span<const sh_block> blocks) {
    const stagehand::Protection protection = model.protect(blocks.first(1));
    model.plan();
    step(model, blocks);
    const sh_block_state info = model.block_info(blocks[0]);
    std::printf("protected: %llu of %llu bytes of %s stay on the device\n", (unsigned long long)info.resident_bytes,
                (unsigned long long)info.bytes, info.name);
}

// Reserve and guest: another model comes for a while, and takes nothing of what this one streams with.
void let_guest_in(stagehand::Runtime& model, std::span<const sh_block> blocks, stagehand::Runtime& guest) {
    static std::vector<unsigned char> weights(kGuestBytes, 1);
    sh_segment source = SH_SEGMENT_INIT;
    sh_block_desc desc = SH_BLOCK_DESC_INIT;
    source.kind = SH_SOURCE_POINTER;
    source.pointer = weights.data();
    source.bytes = desc.bytes = weights.size();
    desc.segments = &source;
    desc.segment_count = 1;
    desc.name = "weights";
    const sh_block guest_block = guest.register_block(desc);
    const stagehand::Reservation reservation = model.reserve();
    stagehand::Scope scope = model.as_guest(guest);
    const std::uint64_t of_guest = step(guest, {&guest_block, 1});
    std::printf("guest: the bytes add up to %llu, the model's to %llu\n", (unsigned long long)of_guest,
                (unsigned long long)step(model, blocks));
    scope.end();
    std::printf("after the guest: it holds %llu bytes\n", (unsigned long long)guest.stats().held_bytes);
}

void run(const std::string& path, const std::string& device_name) {
    const std::vector<Tensor> tensors = read_tensors(path);
    std::uint64_t model_bytes = 0, largest = 0;
    for (const Tensor& tensor : tensors) {
        model_bytes += tensor.bytes;
        largest = std::max(largest, tensor.bytes);
    }
    const std::uint64_t model_budget = std::max(model_bytes / 4, 2 * largest);

    sh_device_options device_options = SH_DEVICE_OPTIONS_INIT;
    device_options.budget_bytes = model_budget + 2 * kGuestBytes;
    const stagehand::Device device(device_name, device_options);
    sh_runtime_options model_options = SH_RUNTIME_OPTIONS_INIT, guest_options = SH_RUNTIME_OPTIONS_INIT;
    model_options.name = "model";
    model_options.max_bytes = model_budget;
    guest_options.name = "guest";
    stagehand::Runtime model(device, model_options), guest(device, guest_options);

    const std::vector<sh_block> blocks = register_model(model, path, tensors);
    std::printf("%zu tensors of %llu bytes through %llu bytes\n", blocks.size(), (unsigned long long)model_bytes,
                (unsigned long long)model_budget);
    for (int i = 0; i < 2; ++i)
        std::printf("step %d: the bytes add up to %llu\n", i, (unsigned long long)step(model, blocks));
    protect(model, blocks);
    let_guest_in(model, blocks, guest);
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
