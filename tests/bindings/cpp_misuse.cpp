// Forbidden uses of the owners of stagehand.hpp throw an exception that names the mistake, and never crash: use after
// close, wrong order, other threads, callbacks that throw, processes that end with copies in flight, and fork.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stagehand/stagehand.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "owners.hpp"

namespace {

namespace sh = stagehand;

constexpr std::size_t kBlocks = 6;
constexpr std::size_t kBlockBytes = 100000;

sh::Device open_device(const char* backend_options = nullptr) {
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    options.page_bytes = 4096;
    options.budget_bytes = 256 * 1024;
    options.backend_options = backend_options;
    return sh::Device("host", options);
}

// Registers blocks whose bytes are the number of the block, counted from one.
std::vector<sh_block> register_model(sh::Runtime& runtime, std::vector<unsigned char>& memory) {
    memory.resize(kBlocks * kBlockBytes);
    for (std::size_t i = 0; i < kBlocks; ++i) std::memset(&memory[i * kBlockBytes], int(i + 1), kBlockBytes);
    return register_in_a_row(runtime, memory.data(), kBlocks, kBlockBytes);
}

bool is_right(const sh::View& view, std::size_t block) {
    const auto* bytes = static_cast<const unsigned char*>(view.address());
    for (std::size_t i = 0; i < kBlockBytes; ++i) {
        if (bytes[i] != block + 1) return false;
    }
    return true;
}

// A model and its memory. The memory outlives the model.
struct Model {
    explicit Model(const sh::Device& device) : runtime(device), blocks(register_model(runtime, memory)) {}

    void compare() {
        const sh::Step step = runtime.step();
        for (std::size_t i = 0; i < kBlocks; ++i) CHECK(is_right(runtime.acquire(blocks[i], SH_STREAM_HOST), i));
    }

    std::vector<unsigned char> memory;
    sh::Runtime runtime;
    std::vector<sh_block> blocks;
};

// Owners that were moved from hold nothing. Owners of a destroyed runtime return an error.
void use_after_close(sh::Device& device) {
    Model model(device);
    sh::Runtime gone = std::move(model.runtime);
    CHECK(status_of([&] { model.runtime.acquire(model.blocks[0], SH_STREAM_HOST); }) == SH_ERROR_INVALID_HANDLE);
    sh::View view = gone.acquire(model.blocks[0], SH_STREAM_HOST);
    sh::Step step = gone.step();
    sh::Scope scope = gone.keep_resident();
    sh::Scope protection = gone.protect(model.blocks);
    sh::Scope reservation = gone.reserve(4096);
    const std::vector<sh_block> last = {model.blocks[1]};
    sh::SourceUpdate update = gone.update_sources(last);
    gone = sh::Runtime(static_cast<sh_runtime*>(nullptr));
    CHECK(device.memory().runtime_count == 0 && device.memory().reserved_bytes == 0 &&
          device.memory().protected_bytes == 0);
    CHECK(status_of([&] { step.end(); }) == SH_ERROR_INVALID_HANDLE);
    CHECK(status_of([&] { view.read(0, model.memory.data(), 1); }) == SH_ERROR_INVALID_HANDLE);
    CHECK(status_of([&] { view.mark_dirty(); }) == SH_ERROR_INVALID_HANDLE);
    CHECK(status_of([&] { view.release(); }) == SH_ERROR_INVALID_HANDLE);
    CHECK(status_of([&] { view.release(); }) == SH_OK);  // once
    CHECK(status_of([&] { update.end(); }) == SH_ERROR_INVALID_HANDLE);
    CHECK(status_of([&] { scope.end(); }) == SH_OK);  // there is nothing to end
}

void other_threads(const sh::Device& device) {
    Model model(device);
    {
        sh::Step step = model.runtime.step();
        sh::View view = model.runtime.acquire(model.blocks[3], SH_STREAM_HOST);
        std::thread([&] {
            CHECK(status_of([&] { model.runtime.step(); }) == SH_ERROR_INVALID_STATE);
            CHECK(is_right(view, 3));
            view.release();
            step.end();
        }).join();
        CHECK(model.runtime.block_info(model.blocks[3]).held == 0);
    }
    std::vector<std::thread> threads;
    for (std::size_t seed = 0; seed < 3; ++seed) {
        threads.emplace_back([&, seed] {
            for (std::size_t i = 0; i < 60; ++i) {
                const std::size_t block = (i * 7 + seed) % kBlocks;
                const sh_status status = status_of(
                    [&] { CHECK(is_right(model.runtime.acquire(model.blocks[block], SH_STREAM_HOST), block)); });
                CHECK(status == SH_OK || status == SH_ERROR_HELD);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    model.compare();
}

std::atomic<bool> failing{true};

std::int32_t fill(void* buffer, std::uint64_t, std::uint64_t bytes, void*) {
    if (failing) throw std::runtime_error("no bytes today");
    std::memset(buffer, 1, bytes);
    return 0;
}

std::int32_t on_load(const sh_loaded_range*, void*) {
    if (failing) throw 7;
    return 0;
}

// An exception of a callback ends in the library, as an error of the acquire. The acquire can be tried again.
void callbacks_that_throw(const sh::Device& device) {
    sh::Runtime runtime(device);
    std::vector<unsigned char> memory(kBlockBytes, 1);
    for (const bool loads : {false, true}) {
        sh_segment segment = SH_SEGMENT_INIT;
        sh_block_desc desc = SH_BLOCK_DESC_INIT;
        segment.kind = loads ? SH_SOURCE_POINTER : SH_SOURCE_FILL;
        segment.pointer = loads ? memory.data() : nullptr;
        segment.fill = loads ? nullptr : fill;
        segment.bytes = desc.bytes = kBlockBytes;
        desc.segments = &segment;
        desc.segment_count = 1;
        desc.on_load = loads ? on_load : nullptr;
        const sh_block block = runtime.register_block(desc);
        failing = true;
        CHECK(status_of([&] { runtime.acquire(block, SH_STREAM_HOST); }) == SH_ERROR_CALLBACK);
        failing = false;
        CHECK(is_right(runtime.acquire(block, SH_STREAM_HOST), 0));
    }
}

// The child cannot use the parent's objects. Its owners end without harm, and the parent goes on.
void fork_with_everything_open(sh::Device& device) {
    Model model(device);
    sh::Stream stream(device);
    sh::PinnedMemory memory(device, 4096);
    model.compare();
    const pid_t child = fork();
    if (child == 0) {
        failed_checks = 0;
        CHECK(status_of([&] { model.runtime.step(); }) == SH_ERROR_FORKED);
        CHECK(status_of([&] { model.runtime.acquire(model.blocks[0], stream); }) == SH_ERROR_FORKED);
        CHECK(status_of([&] { device.memory(); }) == SH_ERROR_FORKED);
        CHECK(status_of([&] { stream.synchronize(); }) == SH_ERROR_FORKED);
        CHECK(status_of([] { sh::Device again("host"); }) == SH_ERROR_FORKED);
        {
            const sh::Runtime runtime(std::move(model.runtime));
            const sh::Stream other(std::move(stream));
            const sh::PinnedMemory pinned(std::move(memory));
            const sh::Device last(std::move(device));
        }
        std::_Exit(failed_checks ? 1 : 42);
    }
    int code = 0;
    CHECK(waitpid(child, &code, 0) == child && WIFEXITED(code) && WEXITSTATUS(code) == 42);
    model.compare();
}

// The process ends during long copies: by exit() with owners in static memory or leaked, or by returning from main().
void copies_in_flight(int how) {
    static sh::Device device = open_device("bandwidth=2MB/s");
    static Model model(device);
    static sh::Stream stream(device);
    model.runtime.step().end();
    static auto* const step = new sh::Step(model.runtime.step());
    static auto* const view = new sh::View(model.runtime.acquire(model.blocks[0], stream));
    if (how == 1) {
        delete view;
        delete step;
    }
    CHECK(model.runtime.block_info(model.blocks[0]).state != SH_BLOCK_UNLOADED);
    if (failed_checks) std::_Exit(1);
    if (how < 2) std::exit(42);
    std::_Exit(42);
}

void processes_that_end() {
    for (int how = 0; how < 3; ++how) {
        const pid_t child = fork();  // the library was not used yet
        if (child == 0) {
            try {
                copies_in_flight(how);
            } catch (const std::exception& error) {
                std::fprintf(stderr, "unexpected: %s\n", error.what());
            }
            std::_Exit(1);
        }
        int code = 0;
        CHECK(waitpid(child, &code, 0) == child && WIFEXITED(code) && WEXITSTATUS(code) == 42);
    }
}

}  // namespace

int main() {
    processes_that_end();
    try {
        sh::Device device = open_device();
        use_after_close(device);
        other_threads(device);
        callbacks_that_throw(device);
        fork_with_everything_open(device);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "unexpected: %s\n", error.what());
        return 1;
    }
    return failed_checks != 0;
}
