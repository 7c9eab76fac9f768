// Opening, registering, stepping, closing. What else an engine does is in every_call_rest.cpp,
// every_call_spill.cpp, every_call_occupancy.cpp and every_call_control.cpp.
#include "every_call.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include <gtest/gtest.h>

#include "codec/frame.h"
#include "engine.h"

namespace stagehand::test {
namespace {

constexpr uint64_t kBudget = 40;        // in pages
constexpr off_t kMappedFrom = 1 << 20;  // in the file

// Set by a warning of the library at its close. Setting it needs no memory.
std::atomic<bool> something_was_left{false};
char left[256];

void hear(int32_t, const char* line, void*) {
    if (!std::strstr(line, "not given back") || something_was_left.exchange(true)) return;
    std::snprintf(left, sizeof left, "%s", line);
}

int32_t fill(void* buffer, uint64_t offset, uint64_t bytes, void* memory) {
    std::memcpy(buffer, static_cast<const uint8_t*>(memory) + offset, bytes);
    return 0;
}

int32_t see_load(const sh_loaded_range*, void*) { return 0; }

sh_segment segment_of(int file, uint32_t kind, uint8_t* memory, uint64_t bytes) {
    sh_segment segment;
    sh_segment_init(&segment);
    segment.kind = kind;
    segment.bytes = bytes;
    segment.pointer = kind == SH_SOURCE_POINTER || kind == SH_SOURCE_MAPPED ? memory : nullptr;
    segment.file = file;
    segment.fill = fill;
    segment.user_data = memory;
    return segment;
}

// Made before any allocation fails.
const std::vector<uint8_t> plain_weights = contents_of(1, 1, 5000);
const std::vector<uint8_t> packed_weights = [] {
    std::vector<uint8_t> packed;
    (void)codec::pack_frame(codec::FloatFormat::bf16, plain_weights.data(), plain_weights.size(), 1, &packed).ok();
    return packed;
}();

}  // namespace

EveryCall::EveryCall(AllocationProgress& progress, std::string folder, int attempts)
    : progress_(progress), folder_(std::move(folder)), attempts_(attempts), checks_(1000) {
    const auto pages = [](double count) { return static_cast<uint64_t>(count * double(kPage)); };
    blocks_ = {{pages(2.5), SH_SOURCE_POINTER, 0, true},
               {pages(5), SH_SOURCE_POINTER, 0},
               {pages(3) + 17, SH_SOURCE_FILE, 0},
               {pages(4), SH_SOURCE_FILL, 0},
               {pages(3), SH_SOURCE_MAPPED, 0},
               {pages(2), SH_SOURCE_POINTER, SH_BLOCK_PIN},
               {100, SH_SOURCE_POINTER, 0},
               {300, SH_SOURCE_POINTER, SH_BLOCK_WHOLE},
               {pages(3), SH_SOURCE_POINTER, SH_BLOCK_MUTABLE},
               {pages(2), SH_SOURCE_POINTER, SH_BLOCK_MUTABLE, true}};
    ordered_ = blocks_.size();
    blocks_.push_back({pages(2), SH_SOURCE_POINTER, SH_BLOCK_UNORDERED, true});
    blocks_.push_back({pages(3), SH_SOURCE_POINTER, SH_BLOCK_UNORDERED});
    blocks_.push_back({pages(1), SH_SOURCE_FILL, SH_BLOCK_UNORDERED});
    captured_ = Model(4, {pages(3), SH_SOURCE_POINTER, 0, true});
    guests_ = Model(2, {pages(2), SH_SOURCE_POINTER, 0});
    uint64_t seed = 0;
    for (Model* model : {&blocks_, &captured_, &guests_})
        for (Block& block : *model) block.truth = contents_of(++seed, 0, block.bytes);
}

EveryCall::~EveryCall() {
    if (file_ >= 0) ::close(file_);
}

// Returns whether this failure is allowed.
bool EveryCall::told(const char* name, sh_status status) {
    if (status == SH_ERROR_RUNTIME_LOST) lost_ = true;
    // A runtime that lacks host memory for giving device memory up keeps it for now.
    const bool takes = std::strcmp(name, "sh_alloc") == 0 || std::strcmp(name, "sh_resume") == 0;
    const bool may_be = status == SH_ERROR_OUT_OF_HOST_MEMORY || (status == SH_ERROR_BUSY && takes) || lost_;
    EXPECT_TRUE(may_be) << name << ": " << sh_status_string(status) << ", " << why();
    EXPECT_GT(progress_.failed, 0u) << name << ": " << sh_status_string(status) << ", " << why();
    return may_be && !lost_;
}

// `done` is the status of a repeated call whose first try took effect although it failed.
bool EveryCall::attempt(const char* name, const std::function<sh_status()>& call, sh_status done) {
    for (int k = 0; k < attempts_ && !lost_; k++) {
        const sh_status status = within(name, call);
        if (status == SH_OK || (k > 0 && status == done)) return true;
        if (!told(name, status)) return false;  // a forbidden failure is not tried again
    }
    if (!lost_) ADD_FAILURE() << name << " does not recover: " << why();
    return false;
}

void EveryCall::run() {
    something_was_left = false;
    call_what_needs_nothing();
    if (open() && steps() && change_contents() && stay() && have_a_guest() && graphs() && spill_and_restore() &&
        pause_and_resume() && be_controlled() && ask_monitor())
        (void)end();
    close();
    EXPECT_EQ(wrong_, 0u) << "uses whose bytes were not as they should be";
    EXPECT_FALSE(something_was_left) << left;
}

void EveryCall::call_what_needs_nothing() {
    CALL(sh_version);
    CALL(sh_status_string, SH_OK);
    CALL(sh_last_error, nullptr, 0);
    ATTEMPT(sh_set_log, SH_LOG_WARNING, hear, nullptr);
    uint8_t found[300];
    if (ATTEMPT(sh_unpack, packed_weights.data(), packed_weights.size(), 100, sizeof found, found)) {
        EXPECT_EQ(std::memcmp(found, plain_weights.data() + 100, sizeof found), 0) << "unpacked to other bytes";
    }
}

bool EveryCall::open() {
    const std::string trace = folder_ + "/trace", steps = folder_ + "/steps", monitor = folder_ + "/monitor";
    uint64_t count = 0;
    sh_backend_info backends[8];
    for (sh_backend_info& info : backends) sh_backend_info_init(&info);
    if (!ATTEMPT(sh_backend_list, backends, std::size(backends), &count)) return false;
    if (!ATTEMPT(sh_trace_start, trace.c_str()) || !ATTEMPT(sh_monitor_start, monitor.c_str())) return false;
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    options.budget_bytes = kBudget * kPage;
    options.page_bytes = kPage;
    options.staging_bytes = 16 * kPage;
    options.staging_threads = 2;
    options.backend_options = devices_without_pages() ? "capacity=64MiB;staging_piece=8KiB;poison=1;map_pages=0"
                                                      : "capacity=64MiB;staging_piece=8KiB;poison=1";
    if (!ATTEMPT(sh_device_open, "capture", &options, &device_) ||
        !ATTEMPT(sh_device_open, "capture", nullptr, &again_))
        return false;
    EXPECT_EQ(device_, again_);
    sh_device_caps caps = SH_DEVICE_CAPS_INIT;
    uint64_t now = 0;
    if (!ATTEMPT(sh_device_get_caps, device_, &caps) || !ATTEMPT(sh_device_get_clock, device_, &now)) return false;
    if (!ATTEMPT(sh_stream_create, device_, &stream_) || !ATTEMPT(sh_stream_create, device_, &other_)) return false;
    if (!make_sources(blocks_) || !make_sources(captured_) || !make_sources(guests_)) return false;
    sh_runtime_options named = SH_RUNTIME_OPTIONS_INIT;
    named.name = "a model whose name takes memory";
    named.max_held = 2;
    if (!ATTEMPT(sh_runtime_create, device_, &named, &model_) ||
        !ATTEMPT(sh_runtime_create, device_, nullptr, &pinned_))
        return false;
    if (!ATTEMPT(sh_runtime_create, device_, nullptr, &guest_) || !ATTEMPT(sh_telemetry_open, model_, steps.c_str()))
        return false;
    if (!ATTEMPT(
            sh_set_pressure, model_, [](sh_runtime*, uint64_t, void*) {}, nullptr))
        return false;
    return register_blocks(model_, blocks_) && register_blocks(pinned_, captured_) && register_blocks(guest_, guests_);
}

bool EveryCall::make_sources(Model& model) {
    for (Block& block : model) {
        void* memory = nullptr;
        if (block.pinned) {
            uint32_t pinned = 0;
            for (int k = 0; k < attempts_ && !pinned; k++) {  // without memory to pin it, it is had all the same
                if (memory && !ATTEMPT(sh_host_free, device_, memory)) return false;
                memory = nullptr;
                if (!ATTEMPT(sh_host_alloc, device_, block.bytes, &memory, &pinned)) return false;
            }
            EXPECT_TRUE(pinned) << "what is to be pinned is not";
        } else if (block.kind == SH_SOURCE_FILE || block.kind == SH_SOURCE_MAPPED) {
            const std::string path = folder_ + "/contents";
            if (file_ < 0) file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
            const off_t from = block.kind == SH_SOURCE_FILE ? 0 : kMappedFrom;
            EXPECT_EQ(pwrite(file_, block.truth.data(), block.bytes, from), static_cast<ssize_t>(block.bytes));
            if (block.kind == SH_SOURCE_FILE) continue;
            memory = mmap(nullptr, block.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, from);
        } else {
            memory = new uint8_t[block.bytes];
        }
        block.memory = static_cast<uint8_t*>(memory);
        std::memcpy(memory, block.truth.data(), block.bytes);
    }
    return true;
}

bool EveryCall::register_blocks(sh_runtime* runtime, Model& model) {
    std::vector<sh_segment> segments(2 * model.size());
    std::vector<sh_block_desc> descs(model.size());
    std::vector<sh_block> ids(model.size());
    for (size_t i = 0; i < model.size(); i++) {
        Block& block = model[i];
        const uint64_t half = block.memory && block.bytes > kPage && i % 2 ? block.bytes / 2 : block.bytes;
        segments[2 * i] = segment_of(file_, block.kind, block.memory, half);
        uint8_t* const second = block.memory ? block.memory + half : nullptr;
        segments[2 * i + 1] = segment_of(file_, block.kind, second, block.bytes - half);
        segments[2 * i + 1].offset = half;
        sh_block_desc_init(&descs[i]);
        descs[i].flags = block.flags;
        descs[i].bytes = block.bytes;
        descs[i].segments = &segments[2 * i];
        descs[i].segment_count = half < block.bytes ? 2 : 1;
        descs[i].on_load = i % 3 ? nullptr : see_load;
        descs[i].name = i % 4 ? "a block whose name takes memory" : nullptr;
    }
    if (!ATTEMPT(sh_register_blocks, runtime, descs.data(), descs.size(), ids.data())) return false;
    for (size_t i = 0; i < model.size(); i++) model[i].id = ids[i];
    return register_halves(runtime, descs[0]);
}

bool EveryCall::register_halves(sh_runtime* runtime, const sh_block_desc& desc) {
    sh_part_options halves = SH_PART_OPTIONS_INIT;
    halves.unit_bytes = 1;
    halves.largest_bytes = (desc.bytes + 1) / 2;
    sh_part parts[2] = {SH_PART_INIT, SH_PART_INIT};
    uint64_t count = 0;
    if (!ATTEMPT(sh_register_parts, runtime, &desc, &halves, parts, 2, &count)) return false;
    EXPECT_EQ(count, 2u);
    const sh_block ids[] = {parts[0].block, parts[1].block};
    return attempt(
        "sh_unregister_blocks", [&] { return sh_unregister_blocks(runtime, ids, 2); }, SH_ERROR_INVALID_HANDLE);
}

bool EveryCall::schedule(sh_runtime* runtime, const Model& model) {
    std::vector<sh_use> uses;
    for (const Block& block : model) {
        if (block.flags & SH_BLOCK_UNORDERED) continue;
        uses.push_back(SH_USE_INIT);
        uses.back().block = block.id;
        uses.back().compute_ns = 1000;
    }
    return ATTEMPT(sh_set_schedule, runtime, uses.data(), uses.size());
}

bool EveryCall::steps() {
    sh_plan_options dry = SH_PLAN_OPTIONS_INIT;
    dry.flags = SH_PLAN_DRY_RUN;
    dry.budget_bytes = 20 * kPage;
    sh_plan_info info = SH_PLAN_INFO_INIT;
    if (!step(0)) return false;  // the order is learned
    if (!schedule(model_, blocks_) || !ATTEMPT(sh_plan, model_, &dry, &info) ||
        !ATTEMPT(sh_plan, model_, nullptr, nullptr))
        return false;
    for (int k = 1; k < 4; k++)
        if (!step(k)) return false;
    sh_runtime_stats stats = SH_RUNTIME_STATS_INIT;
    sh_block_state state = SH_BLOCK_STATE_INIT;
    sh_kind_info kinds[2] = {SH_KIND_INFO_INIT, SH_KIND_INFO_INIT};
    uint64_t count = 0;
    return ATTEMPT(sh_runtime_get_stats, model_, &stats) && ATTEMPT(sh_kind_list, model_, kinds, 2, &count) &&
           ATTEMPT(sh_block_get_state, model_, blocks_[0].id, &state) && ATTEMPT(sh_runtime_synchronize, model_);
}

bool EveryCall::step(int number) {
    const bool begun =
        number < 2 ? ATTEMPT(sh_step_begin, model_) : ATTEMPT(sh_step_begin_kind, model_, number == 2 ? "even" : "odd");
    if (!begun) return false;
    const sh_block soon[] = {blocks_[ordered_].id, blocks_[ordered_ + 1].id};
    if (number == 2 && !ATTEMPT(sh_prefetch, model_, soon, 2)) return false;
    for (size_t i = 0; i < ordered_; i++) {
        Block& block = blocks_[i];
        const bool changes = block.flags & SH_BLOCK_MUTABLE;
        if (!use(block, changes || number == 2 ? SH_STREAM_HOST : number == 3 && i % 2 ? other_ : stream_, changes))
            return false;
    }
    for (size_t i = ordered_; i < blocks_.size(); i++)
        if (!use(blocks_[i], number % 2 ? stream_ : SH_STREAM_HOST, false)) return false;
    if (number == 3 && (!use_pair(stream_) || !ATTEMPT(sh_stream_forget, model_, other_))) return false;
    return attempt(
        "sh_step_end", [&] { return sh_step_end(model_); }, SH_ERROR_INVALID_STATE);
}

bool EveryCall::use(Block& block, sh_stream stream, bool change) {
    sh_view view = SH_VIEW_INIT;
    if (!ATTEMPT(sh_acquire, model_, block.id, stream, 0, &view)) return false;
    bool well = compare(block, view.address, stream);
    if (well && change && (well = ATTEMPT(sh_mark_dirty, model_, block.id))) {
        block.truth = contents_of(block.id, ++version_, block.bytes);
        std::memcpy(view.address, block.truth.data(), block.bytes);
    }
    std::vector<uint8_t> bytes(std::min<uint64_t>(block.bytes, 64));
    if (well && change && (well = ATTEMPT(sh_read_block, model_, block.id, stream, 0, bytes.data(), bytes.size()))) {
        EXPECT_EQ(std::memcmp(bytes.data(), block.truth.data(), bytes.size()), 0);
    }
    const bool has_on_load = (&block - blocks_.data()) % 3 == 0;
    if (well && !change && !has_on_load && !(block.flags & SH_BLOCK_MUTABLE))
        well = ATTEMPT(sh_verify_block, model_, block.id, stream);
    return release(model_, block, stream) && well;
}

// Uses two blocks at once that lie next to each other.
bool EveryCall::use_pair(sh_stream stream) {
    const sh_block ids[] = {blocks_[6].id, blocks_[7].id};
    sh_view views[2] = {SH_VIEW_INIT, SH_VIEW_INIT};
    if (!ATTEMPT(sh_acquire_many, model_, ids, 2, stream, 0, views)) return false;
    const bool well = compare(blocks_[6], views[0].address, stream) && compare(blocks_[7], views[1].address, stream);
    const sh_status status = CALL(sh_release_many, model_, ids, 2, stream);
    if (status == SH_OK) return well;
    if (!told("sh_release_many", status)) return false;
    for (const size_t i : {size_t(6), size_t(7)}) {
        bool held = false;
        if (!still_held(model_, blocks_[i], &held) || (held && !release(model_, blocks_[i], stream))) return false;
    }
    return well;
}

// A release that returns an error may or may not have released the view.
bool EveryCall::release(sh_runtime* runtime, const Block& block, sh_stream stream) {
    for (int k = 0; k < attempts_; k++) {
        const sh_status status = CALL(sh_release, runtime, block.id, stream);
        if (status == SH_OK) return true;
        bool held = false;
        if (!told("sh_release", status) || !still_held(runtime, block, &held)) return false;
        if (!held) return true;
    }
    ADD_FAILURE() << "sh_release does not recover";
    return false;
}

bool EveryCall::still_held(sh_runtime* runtime, const Block& block, bool* out_held) {
    sh_block_state state = SH_BLOCK_STATE_INIT;
    if (!ATTEMPT(sh_block_get_state, runtime, block.id, &state)) return false;
    *out_held = state.held > 0;
    return true;
}

// Compares when the stream reaches this work, or here.
bool EveryCall::compare(const Block& block, const void* at, sh_stream stream) {
    const auto look = [this, &block](const void* bytes) {
        wrong_ += std::memcmp(bytes, block.truth.data(), block.bytes) != 0;
    };
    if (stream == SH_STREAM_HOST) {
        look(at);
        return true;
    }
    Check* const check = &checks_.at(checks_made_++);
    *check = {static_cast<const uint8_t*>(at), &block, &wrong_};
    const auto look_there = [](void* data) {
        const Check& queued = *static_cast<const Check*>(data);
        *queued.wrong += std::memcmp(queued.at, queued.block->truth.data(), queued.block->bytes) != 0;
    };
    return ATTEMPT(sh_stream_launch, device_, stream, look_there, check, 0);
}

void EveryCall::close() {
    let_go_of_graph();
    CALL(sh_spiller_destroy, std::exchange(spiller_, nullptr));
    for (sh_runtime** runtime : {&guest_, &pinned_, &model_}) CALL(sh_runtime_destroy, *runtime);
    sh_memory_info memory = SH_MEMORY_INFO_INIT;
    const bool lost = std::exchange(lost_, false);  // what follows has to work all the same
    if (device_ && ATTEMPT(sh_device_get_memory, device_, &memory)) {
        EXPECT_EQ(memory.runtime_count, 0u);
        EXPECT_EQ(memory.used_bytes, 0u);
    }
    for (const sh_stream stream : {stream_, other_})
        if (stream) CALL(sh_stream_destroy, device_, stream);
    for (Model* model : {&blocks_, &captured_, &guests_}) free_sources(*model);
    CALL(sh_device_close, device_);
    CALL(sh_device_close, again_);
    // A trace that lacks an event for want of memory says so.
    attempt(
        "sh_trace_stop",
        [&] {
            const sh_status status = sh_trace_stop();
            return status == SH_ERROR_IO && progress_.failed ? SH_OK : status;
        },
        SH_ERROR_INVALID_STATE);
    attempt(
        "sh_monitor_stop", [] { return sh_monitor_stop(); }, SH_ERROR_INVALID_STATE);
    ATTEMPT(sh_set_log, 0, nullptr, nullptr);
    lost_ = lost;
}

void EveryCall::free_sources(Model& model) {
    for (Block& block : model) {
        if (!block.memory) continue;
        if (block.pinned)
            ATTEMPT(sh_host_free, device_, block.memory);
        else if (block.kind == SH_SOURCE_MAPPED)
            munmap(block.memory, block.bytes);
        else
            delete[] block.memory;
        block.memory = nullptr;
    }
}

}  // namespace stagehand::test
