// Memory of the engine that leaves the device and comes back: saved tensors, and all of it while the engine pauses.
#include <cstring>
#include <string>

#include "weights.h"

namespace stagehand::test {
namespace {

DeviceSettings host_device(uint64_t budget, const std::string& more = "") {
    DeviceSettings settings;
    settings.options = "wrap=host;capacity=64MiB;poison=1" + more;
    settings.budget_bytes = budget;
    return settings;
}

struct Tensor {
    std::vector<uint8_t> truth;
    uint8_t *memory = nullptr, *back = nullptr;
    sh_ticket ticket = 0;
    bool away = false;
};

// Work of a stream.
void on_stream(Run& run, sh_stream stream, uint8_t* memory, const std::vector<uint8_t>& bytes) {
    run.attempt("a write", [&] { return run.test_device().bytes().write(stream, memory, bytes); });
}

// A spiller, destroyed at the end.
struct Spilling {
    explicit Spilling(Run& run) : run(run) {
        sh_spiller_options options = SH_SPILLER_OPTIONS_INIT;
        options.flags = SH_SPILLER_KEEP_BYTES | SH_SPILLER_PACK;
        options.to_host_bytes = options.to_device_bytes = 300'000;
        TRY(run, sh_spiller_create, run.device(), &options, &spiller);
    }
    ~Spilling() { CALL(sh_spiller_destroy, spiller); }

    // The library names what it does not need any more, and the stream uses that memory for something else.
    void collect(std::vector<Tensor>& tensors, sh_stream stream) {
        sh_ticket gone[8];
        uint64_t count = 0;
        TRY(run, sh_spiller_collect, spiller, stream, SH_COLLECT_ALL, gone, std::size(gone), &count);
        for (Tensor& tensor : tensors) {
            if (tensor.away || std::find(gone, gone + count, tensor.ticket) == gone + count) continue;
            tensor.away = true;
            on_stream(run, stream, tensor.memory, std::vector<uint8_t>(tensor.truth.size(), 0xee));
        }
    }
    // A restore that fails has done with the memory that it was given, and the next attempt has other memory.
    void restore(Tensor& tensor, sh_stream stream) {
        bool kept = false;
        run.attempt("sh_restore", [&] {
            if (!tensor.back) tensor.back = run.memory(tensor.truth.size());
            const auto to = reinterpret_cast<uint64_t>(tensor.back);
            const sh_status status = CALL(sh_restore, spiller, tensor.ticket, to, stream);
            kept = status == SH_KEPT;
            if (status >= 0) return SH_OK + 0;
            run.once("sh_restore", status);
            on_stream(run, stream, std::exchange(tensor.back, nullptr), tensor.truth);
            return status;
        });
        EXPECT_FALSE(kept && tensor.away) << "the engine was told to give this memory back";
        const uint8_t* const at = kept ? tensor.memory : tensor.back;
        run.attempt("a comparison", [&] {
            return run.test_device().bytes().look(
                stream, at, tensor.truth.size(), [truth = tensor.truth](const uint8_t* there) {
                    EXPECT_EQ(std::memcmp(there, truth.data(), truth.size()), 0) << truth.size() << " bytes";
                });
        });
    }

    Run& run;
    sh_spiller* spiller = nullptr;
};

void spill_on(Run& run, sh_stream stream) {
    constexpr uint64_t kSizes[] = {2000, 20'000, 65'536, 300'000};  // the last one is packed
    Spilling spilling(run);
    const std::string lines = run.folder() + "/spills";
    TRY(run, sh_telemetry_start, nullptr, spilling.spiller, lines.c_str(), nullptr);
    for (uint64_t step = 0; step < 2; step++) {
        TRY_OR(run, SH_ERROR_INVALID_STATE, sh_spiller_begin_step, spilling.spiller, step);
        std::vector<Tensor> tensors(std::size(kSizes));
        for (size_t i = 0; i < tensors.size(); i++) {
            Tensor& tensor = tensors[i];
            tensor.truth = contents_of(i, step, kSizes[i]);
            tensor.memory = run.memory(kSizes[i]);
            on_stream(run, stream, tensor.memory, tensor.truth);
            const int64_t size = static_cast<int64_t>(kSizes[i]);
            sh_saved_tensor saved = SH_SAVED_TENSOR_INIT;
            saved.element_bytes = 1;
            saved.address = reinterpret_cast<uint64_t>(tensor.memory);
            saved.dimensions = 1;
            saved.sizes = &size;
            saved.storage_key = 1 + i;
            saved.format = SH_FORMAT_F8_E4M3;
            run.attempt("sh_spill", [&] {
                return std::min(CALL(sh_spill, spilling.spiller, &saved, stream, i % 2 ? 0u : uint32_t(SH_SPILL_NOW),
                                     &tensor.ticket),
                                SH_OK + 0);
            });
        }
        spilling.collect(tensors, stream);
        sh_ticket upcoming[8];
        uint64_t count = 0;
        TRY(run, sh_spiller_get_upcoming, spilling.spiller, 0, upcoming, std::size(upcoming), &count);
        std::vector<sh_ticket> away;
        std::vector<uint64_t> to;
        for (Tensor& tensor : tensors) {
            if (!tensor.away) continue;
            tensor.back = run.memory(tensor.truth.size());
            away.push_back(tensor.ticket);
            to.push_back(reinterpret_cast<uint64_t>(tensor.back));
        }
        TRY(run, sh_prefetch_spilled, spilling.spiller, away.data(), to.data(), away.size(), stream);
        for (Tensor& tensor : tensors) {
            auto info = sh_sized<sh_ticket_info>();
            TRY(run, sh_ticket_get_info, spilling.spiller, tensor.ticket, &info);
            spilling.restore(tensor, stream);
            TRY_OR(run, SH_ERROR_INVALID_HANDLE, sh_ticket_release, spilling.spiller, tensor.ticket);
        }
        run.settle();
        TRY_OR(run, SH_ERROR_INVALID_STATE, sh_spiller_end_step, spilling.spiller);
    }
    auto stats = sh_sized<sh_spiller_stats>();
    TRY(run, sh_spiller_get_stats, spilling.spiller, &stats);
    EXPECT_EQ(stats.kept_bytes + stats.leaving_bytes + stats.away_bytes, 0u);
    EXPECT_TRUE(run.failures() || stats.spilled) << "nothing has left";
    uint64_t freed = 0;
    TRY(run, sh_spiller_trim, spilling.spiller, &freed);
    TRY(run, sh_spiller_get_stats, spilling.spiller, &stats);
    EXPECT_TRUE(run.fails_often() || stats.pool_bytes == 0) << stats.pool_bytes << " bytes are lost";
}

void spill(Run& run) { spill_on(run, run.stream()); }
void spill_on_the_host(Run& run) { spill_on(run, SH_STREAM_HOST); }

uint32_t state(Run& run, const char* tag) {
    auto info = sh_sized<sh_occupancy_info>();
    TRY(run, sh_occupancy_get_info, run.device(), tag, &info);
    return info.state;
}

// Pauses and resumes everything. After a resume that has failed everything is away, and others can use the memory.
void leave_and_return(Run& run, sh_pause_options pause = SH_PAUSE_OPTIONS_INIT) {
    sh_resume_options resume = SH_RESUME_OPTIONS_INIT;
    pause.flags |= SH_OCCUPANCY_REPEAT;
    resume.flags |= SH_OCCUPANCY_REPEAT;
    TRY(run, sh_pause, run.device(), &pause, nullptr);
    EXPECT_EQ(state(run, nullptr), uint32_t(SH_OCCUPANCY_RELEASED));
    run.attempt("sh_resume", [&] {
        const sh_status status = CALL(sh_resume, run.device(), &resume, nullptr);
        if (run.once("sh_resume", status)) return status;
        // A runtime that cannot give its memory back runs, although the resume has failed.
        const uint32_t now = state(run, nullptr);
        EXPECT_TRUE(now == SH_OCCUPANCY_RELEASED || (run.fails_often() && now == SH_OCCUPANCY_MIXED)) << now;
        auto memory = sh_sized<sh_memory_info>();
        TRY(run, sh_device_get_memory, run.device(), &memory);
        EXPECT_TRUE(run.fails_often() || memory.used_bytes == 0) << memory.used_bytes;
        return status;
    });
    EXPECT_EQ(state(run, nullptr), uint32_t(SH_OCCUPANCY_RUNNING));
}

struct Part {
    uint64_t bytes;
    const char* tag;
    uint32_t contents = SH_CONTENTS_STAGE, flags = 0, format = 0;
};
constexpr Part kParts[] = {{1000, "weights"},
                           {70'000, "weights", SH_CONTENTS_STAGE, SH_ALLOC_CONST},
                           {300'000, "weights", SH_CONTENTS_STAGE, 0, SH_FORMAT_BF16},
                           {70'000, "cache", SH_CONTENTS_ZERO},
                           {300'000, "a tag whose name takes memory", SH_CONTENTS_DROP},
                           {200'000, "file", SH_CONTENTS_FILE}};

void pause(Run& run) {
    run.also_allowed(SH_ERROR_BUSY);  // as an answer to a want of memory
    uint64_t addresses[std::size(kParts)] = {}, told = 0;
    sh_scope* callbacks = nullptr;
    std::vector<uint8_t> truth[std::size(kParts)];
    for (size_t i = 0; i < std::size(kParts); i++) {
        sh_alloc_options options = SH_ALLOC_OPTIONS_INIT;
        options.tag = kParts[i].tag;
        options.contents = kParts[i].contents;
        options.flags = kParts[i].flags;
        options.format = kParts[i].format;
        TRY(run, sh_alloc, run.device(), kParts[i].bytes, &options, &addresses[i]);
    }
    const auto count = [](const char* const*, uint64_t, char*, uint64_t, void* sum) {
        ++*static_cast<uint64_t*>(sum);
        return int32_t(0);
    };
    TRY(run, sh_occupancy_add_callbacks, run.device(), count, nullptr, &told, &callbacks);
    sh_pause_options options = SH_PAUSE_OPTIONS_INIT;
    options.folder = run.folder().c_str();
    options.flags = SH_OCCUPANCY_PREPARE;
    TRY(run, sh_pause, run.device(), &options, nullptr);
    options.flags = 0;
    for (uint64_t cycle = 0; cycle < 3; cycle++) {
        for (size_t i = 0; i < std::size(kParts); i++) {
            if (cycle && (kParts[i].flags & SH_ALLOC_CONST || cycle == 2)) continue;
            truth[i] = contents_of(i, cycle, kParts[i].bytes);
            run.test_device().bytes().write(SH_STREAM_HOST, reinterpret_cast<void*>(addresses[i]), truth[i]);
        }
        leave_and_return(run, options);
        options.flags = cycle ? SH_OCCUPANCY_UNPINNED : 0;
        for (size_t i = 0; i < std::size(kParts); i++) {
            if (kParts[i].contents == SH_CONTENTS_DROP) continue;
            if (kParts[i].contents == SH_CONTENTS_ZERO) truth[i].assign(kParts[i].bytes, 0);
            const auto* const at = reinterpret_cast<const void*>(addresses[i]);
            EXPECT_TRUE(run.test_device().bytes().read(at, truth[i].size()) == truth[i]) << i;
        }
    }
    EXPECT_GE(told, 3u);
    uint8_t byte = 0;
    ignore(CALL(sh_occupancy_read, run.device(), addresses[0], 1, &byte));  // it is on the device
    TRY_OR(run, SH_ERROR_INVALID_HANDLE, sh_scope_end, callbacks);
    sh_occupancy_info infos[4] = {sh_sized<sh_occupancy_info>(), sh_sized<sh_occupancy_info>(),
                                  sh_sized<sh_occupancy_info>(), sh_sized<sh_occupancy_info>()};
    uint64_t tags = 0;
    TRY(run, sh_occupancy_list, run.device(), infos, 4, &tags);
    EXPECT_EQ(tags, 4u);
    for (const uint64_t address : addresses) TRY_OR(run, SH_ERROR_INVALID_ARGUMENT, sh_free, run.device(), address);
    TRY(run, sh_occupancy_trim, run.device(), nullptr);
}

// What is freed while it is away, and a runtime whose blocks leave as well.
void pause_runtimes(Run& run) {
    run.also_allowed(SH_ERROR_BUSY);
    Weights weights(run, equal_blocks(9, 4 * kPage, Origin::pinned, SH_BLOCK_MUTABLE));
    uint64_t memory = 0;
    TRY(run, sh_alloc, run.device(), 4 * kPage, nullptr, &memory);
    std::memset(reinterpret_cast<void*>(memory), 7, 4 * kPage);
    weights.schedule(weights.size());
    for (int k = 0; k < 2; k++) {
        weights.step();
        leave_and_return(run);
    }
    weights.step();
    sh_pause_options pause = SH_PAUSE_OPTIONS_INIT;
    sh_resume_options resume = SH_RESUME_OPTIONS_INIT;
    pause.flags = resume.flags = SH_OCCUPANCY_REPEAT;
    TRY(run, sh_pause, run.device(), &pause, nullptr);
    uint8_t byte = 0;
    TRY(run, sh_occupancy_read, run.device(), memory + kPage, 1, &byte);
    EXPECT_EQ(byte, 7u);
    EXPECT_EQ(CALL(sh_step_begin, weights.get(), nullptr), SH_ERROR_INVALID_STATE);
    TRY_OR(run, SH_ERROR_INVALID_ARGUMENT, sh_free, run.device(), memory);
    TRY(run, sh_resume, run.device(), &resume, nullptr);
    weights.step();
    weights.write_back();
}

}  // namespace

std::vector<Scenario> memory_scenarios() {
    return {
        {.name = "spill", .work = spill, .settings = host_device(1 << 20, ";bandwidth=400MB/s")},
        {.name = "spill_on_the_host", .work = spill_on_the_host, .settings = host_device(1 << 20)},
        {.name = "pause", .work = pause, .settings = host_device(16 << 20), .needs_pages = true, .cost = 3},
        {.name = "pause_runtimes", .work = pause_runtimes, .settings = host_device(28 * kPage), .needs_pages = true}};
}

}  // namespace stagehand::test
