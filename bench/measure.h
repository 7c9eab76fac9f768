// Shared parts of the benchmarks: medians, checked calls, and a set of blocks.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <stagehand/stagehand.h>

#include "../cli/median.h"

namespace bench {

// Ends the benchmark with the reason if a call failed.
inline void check(sh_status status, const char* call) {
    if (status == SH_OK) return;
    char text[512];
    sh_last_error(text, sizeof text);
    std::fprintf(stderr, "%s: %s: %s\n", call, sh_status_string(status), text);
    std::exit(1);
}
#define CHECK(call) ::bench::check((call), #call)

using stagehand::cli::median;

// Returns the seconds that `work` takes.
template <class Work>
double seconds(Work&& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// A temporary file with these bytes.
using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;
inline File file_of(const void* bytes, uint64_t count) {
    File file(std::tmpfile(), std::fclose);
    if (file && std::fwrite(bytes, 1, count, file.get()) == count && !std::fflush(file.get())) return file;
    std::perror("temporary file");
    std::exit(1);
}

// A device with pinned memory of a size, which is also its first budget. The host backend is paced: two cores copy
// faster than that, so that they never limit the copies.
struct PacedDevice {
    static constexpr uint64_t kHostBandwidth = 1'000'000'000;  // bytes per second

    const char* device_name = nullptr;
    bool paced = false;
    sh_device* device = nullptr;
    char* memory = nullptr;

    // `link_is_given`: plans for the host backend count with its bandwidth, and do not measure it.
    PacedDevice(const char* name, uint64_t bytes, uint64_t host_page, uint64_t gpu_page, bool link_is_given)
        : device_name(name), paced(std::string(name) == "host") {
        sh_device_options options = SH_DEVICE_OPTIONS_INIT;
        options.budget_bytes = bytes;
        options.page_bytes = paced ? host_page : gpu_page;
        const std::string backend =
            "bandwidth=" + std::to_string(kHostBandwidth) + ";capacity=" + std::to_string(2 * bytes);
        if (paced) options.backend_options = backend.c_str();
        if (paced && link_is_given) options.link_bytes_per_second = kHostBandwidth;
        CHECK(sh_device_open(name, &options, &device));
        void* all = nullptr;
        CHECK(sh_host_alloc(device, bytes, &all, nullptr));
        memory = static_cast<char*>(all);
    }
    ~PacedDevice() {
        CHECK(sh_host_free(device, memory));
        sh_device_close(device);
    }
    PacedDevice(const PacedDevice&) = delete;
    PacedDevice& operator=(const PacedDevice&) = delete;
};

// A device with a runtime. Its blocks have the given sizes, and their sources follow one another in `memory`. For the
// simulation `memory` is NULL: the addresses are never read.
struct Model {
    sh_device* device = nullptr;
    sh_runtime* runtime = nullptr;
    std::vector<sh_block> blocks;
    std::vector<uint64_t> sizes;

    Model(const char* name, const sh_device_options& options) {
        CHECK(sh_device_open(name, &options, &device));
        CHECK(sh_runtime_create(device, nullptr, &runtime));
    }
    ~Model() {
        sh_runtime_destroy(runtime);
        sh_device_close(device);
    }
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;

    void add(const std::vector<uint64_t>& bytes, char* memory, uint32_t kind = SH_SOURCE_POINTER) {
        sizes = bytes;
        std::vector<sh_segment> segments(bytes.size(), SH_SEGMENT_INIT);
        std::vector<sh_block_desc> descs(bytes.size(), SH_BLOCK_DESC_INIT);
        uint64_t at = 0;
        for (size_t i = 0; i < bytes.size(); i++) {
            segments[i].kind = kind;
            segments[i].pointer = memory ? memory + at : reinterpret_cast<void*>(uint64_t(4096));
            segments[i].bytes = descs[i].bytes = bytes[i];
            descs[i].segments = &segments[i];
            descs[i].segment_count = 1;
            at += bytes[i];
        }
        blocks.resize(bytes.size());
        CHECK(sh_register_blocks(runtime, descs.data(), descs.size(), blocks.data()));
    }

    // Registers a block with one source.
    void add(const sh_segment& segment) {
        sh_block_desc desc = SH_BLOCK_DESC_INIT;
        desc.bytes = segment.bytes;
        desc.segments = &segment;
        desc.segment_count = 1;
        sizes.push_back(segment.bytes);
        CHECK(sh_register_blocks(runtime, &desc, 1, &blocks.emplace_back()));
    }

    // Ends the benchmark if the block on the device has other bytes.
    void compare(size_t block, const void* contents) const {
        auto view = sh_sized<sh_view>();
        std::vector<char> found(sizes[block]);
        CHECK(sh_acquire(runtime, blocks[block], SH_STREAM_HOST, 0, &view));
        CHECK(sh_read_block(runtime, blocks[block], SH_STREAM_HOST, 0, found.data(), found.size()));
        CHECK(sh_release(runtime, blocks[block], SH_STREAM_HOST));
        if (std::memcmp(found.data(), contents, found.size()) == 0) return;
        std::fprintf(stderr, "block %zu has other bytes\n", block);
        std::exit(1);
    }

    // Sets a schedule of all blocks forward, or forward then backward. Each direction takes `compute_ns`, divided among
    // the blocks by size.
    std::vector<sh_use> schedule(uint64_t compute_ns, bool backward) {
        uint64_t total = 0;
        for (const uint64_t size : sizes) total += size;
        std::vector<sh_use> uses;
        for (size_t i = 0; i < blocks.size() * (backward ? 2 : 1); i++) {
            const size_t block = i < blocks.size() ? i : 2 * blocks.size() - 1 - i;
            sh_use use = SH_USE_INIT;
            use.block = blocks[block];
            use.compute_ns = static_cast<uint64_t>(static_cast<double>(compute_ns) * static_cast<double>(sizes[block]) /
                                                   static_cast<double>(total));
            uses.push_back(use);
        }
        CHECK(sh_set_schedule(runtime, uses.data(), uses.size()));
        return uses;
    }

    // Makes steps on the stream that compute for as long as the uses say. Returns the milliseconds of a step after the
    // first ones, in the mean. `waits`: for each step, as an engine does that needs the step's result.
    double steps_ms(const std::vector<sh_use>& uses, sh_stream stream, int first, int count, bool waits = false) const {
        uint64_t began = 0, ended = 0;
        for (int step = 0; step < first + count; step++) {
            if (step == first) {
                CHECK(sh_stream_synchronize(device, stream));
                CHECK(sh_device_get_clock(device, &began));
            }
            CHECK(sh_step_begin(runtime, nullptr));
            for (const sh_use& use : uses) {
                auto view = sh_sized<sh_view>();
                CHECK(sh_acquire(runtime, use.block, stream, 0, &view));
                CHECK(sh_stream_launch(device, stream, nullptr, nullptr, static_cast<int64_t>(use.compute_ns)));
                CHECK(sh_release(runtime, use.block, stream));
            }
            CHECK(sh_step_end(runtime));
            if (waits) CHECK(sh_stream_synchronize(device, stream));
        }
        CHECK(sh_stream_synchronize(device, stream));
        CHECK(sh_device_get_clock(device, &ended));
        return static_cast<double>(ended - began) / count / 1e6;
    }
};

}  // namespace bench
