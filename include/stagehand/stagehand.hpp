// C++ owners for the C interface. The wrapper is header-only and needs C++17; it uses std::span from C++20 on. The
// wrapper makes no decisions of its own: a method makes the calls of the C interface that its name says. The C headers
// say what each call does, when it blocks and which threads may make it.
//
// A failure is thrown as stagehand::Error, which holds the status and the text, so exceptions must be enabled. Owners
// are move-only and release in their destructors. A destructor cannot report a failure. Step, View, Views,
// SourceUpdate, Scope, Launch, Ticket and SpillStep therefore have an explicit end, which throws on a failure. get()
// returns the C handle for calls that have no method here. An owner that was moved from holds nothing.
//
// The engine must destroy the objects in this order: views, steps, launches and tickets, then runtimes and spillers,
// then controls, then streams, pinned memory and allocations, then the device.
#ifndef STAGEHAND_STAGEHAND_HPP
#define STAGEHAND_STAGEHAND_HPP

#if !defined(__cplusplus) || __cplusplus < 201703L
#error "stagehand/stagehand.hpp needs C++17 or later: compile with -std=c++17 or -std=c++20"
#endif

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "activations.hpp"
#include "control.hpp"
#include "device.hpp"
#include "error.hpp"
#include "graph.hpp"
#include "occupancy.hpp"
#include "scope.hpp"
#include "spill.hpp"
#include "stagehand.h"

namespace stagehand {

// The names of these owners carry the number of the binary interface, so that they never clash with names inside the
// library.
inline namespace abi0 {

inline std::uint32_t version() noexcept { return sh_version(); }
inline const char* status_string(sh_status status) noexcept { return sh_status_string(status); }
inline void set_log(std::int32_t level, sh_log_fn log, void* user_data = nullptr) {
    check(sh_set_log(level, log, user_data));
}
// The trace lasts as long as its scope.
inline Scope trace_start(const std::string& path) {
    return Scope([&](sh_scope** out) { return sh_trace_start(path.c_str(), out); });
}

// Writes `bytes` bytes of the contents of a packed tensor, from `offset` on.
inline void unpack(const void* packed, std::uint64_t packed_bytes, std::uint64_t offset, std::uint64_t bytes,
                   void* out) {
    check(sh_unpack(packed, packed_bytes, offset, bytes, out));
}

// Lists all backends, including those that do not work.
inline std::vector<sh_backend_info> backends() {
    std::uint64_t count = 0;
    check(sh_backend_list(nullptr, 0, &count));
    std::vector<sh_backend_info> infos(count, sh_sized<sh_backend_info>());
    check(sh_backend_list(infos.data(), infos.size(), &count));
    if (count < infos.size()) infos.resize(count);
    return infos;
}

// A block that is held. The destructor releases the block.
class View {
public:
    // Takes ownership of one acquire.
    View(sh_runtime* runtime, sh_stream stream, const sh_view& view) noexcept
        : runtime_(runtime), stream_(stream), view_(view) {}
    View(View&& other) noexcept
        : runtime_(std::exchange(other.runtime_, nullptr)), stream_(other.stream_), view_(other.view_) {}
    View& operator=(View&& other) noexcept {
        if (this != &other) {
            drop();
            runtime_ = std::exchange(other.runtime_, nullptr);
            stream_ = other.stream_;
            view_ = other.view_;
        }
        return *this;
    }
    ~View() { drop(); }

    void* address() const noexcept { return view_.address; }
    std::uint64_t size() const noexcept { return view_.bytes; }
    std::uint64_t serial() const noexcept { return view_.serial; }
    std::uint32_t flags() const noexcept { return view_.flags; }
    sh_block block() const noexcept { return view_.block; }
    const sh_view& get() const noexcept { return view_; }

    // Copies bytes of the block to host memory, after the work that is queued on the view's stream.
    void read(std::uint64_t offset, void* buffer, std::uint64_t bytes) const {
        check(sh_read_block(runtime_, view_.block, stream_, offset, buffer, bytes));
    }
    // Compares the block with its sources, and throws if a byte differs.
    void verify() const { check(sh_verify_block(runtime_, view_.block, stream_)); }
    void mark_dirty() { check(sh_mark_dirty(runtime_, view_.block)); }
    // Releases the block now. The block is released even if this throws.
    void release() {
        if (sh_runtime* runtime = std::exchange(runtime_, nullptr)) check(sh_release(runtime, view_.block, stream_));
    }

private:
    void drop() noexcept {
        if (runtime_) ignore(sh_release(runtime_, view_.block, stream_));
    }

    sh_runtime* runtime_;
    sh_stream stream_;
    sh_view view_;
};

// Views of a set of blocks that were acquired together. The destructor releases the blocks.
class Views {
public:
    Views(sh_runtime* runtime, sh_stream stream, std::vector<sh_view> views) noexcept
        : runtime_(runtime), stream_(stream), views_(std::move(views)) {}
    Views(Views&& other) noexcept
        : runtime_(std::exchange(other.runtime_, nullptr)), stream_(other.stream_), views_(std::move(other.views_)) {}
    Views& operator=(Views&& other) noexcept {
        if (this != &other) {
            drop();
            runtime_ = std::exchange(other.runtime_, nullptr);
            stream_ = other.stream_;
            views_ = std::move(other.views_);
        }
        return *this;
    }
    ~Views() { drop(); }

    std::size_t size() const noexcept { return views_.size(); }
    const sh_view& operator[](std::size_t index) const noexcept { return views_[index]; }
    const sh_view* begin() const noexcept { return views_.data(); }
    const sh_view* end() const noexcept { return views_.data() + views_.size(); }

    // Gives one of the views away, which then is released by itself: `views.take(0).release()`. What stays in its place
    // has no block. A view that was given away already holds nothing.
    View take(std::size_t index) noexcept {
        const sh_view view = std::exchange(views_[index], sh_sized<sh_view>());
        return View(view.block ? runtime_ : nullptr, stream_, view);
    }
    // Releases all blocks now, even if this throws.
    void release() {
        if (runtime_) check(drop());
    }

private:
    // Makes one call for each view, because this needs no memory. Returns the status of the first release that failed.
    sh_status drop() noexcept {
        sh_runtime* const runtime = std::exchange(runtime_, nullptr);
        sh_status first = SH_OK;
        for (std::size_t i = 0; runtime && i < views_.size(); ++i) {
            if (!views_[i].block) continue;
            const sh_status status = sh_release(runtime, views_[i].block, stream_);
            if (first >= 0 && status < 0) first = status;
        }
        return first;
    }

    sh_runtime* runtime_;
    sh_stream stream_;
    std::vector<sh_view> views_;
};

// A step that is under way. The destructor ends the step.
class Step {
public:
    // `kind`: see sh_step_begin().
    explicit Step(sh_runtime* runtime, const char* kind = nullptr) : runtime_(runtime) {
        check(sh_step_begin(runtime, kind));
    }
    Step(sh_runtime* runtime, const std::string& kind) : Step(runtime, kind.c_str()) {}
    Step(Step&& other) noexcept : runtime_(std::exchange(other.runtime_, nullptr)) {}
    Step& operator=(Step&& other) noexcept {
        if (this != &other) {
            drop();
            runtime_ = std::exchange(other.runtime_, nullptr);
        }
        return *this;
    }
    ~Step() { drop(); }

    // Ends the step now. The step has ended even if this throws.
    void end() {
        if (sh_runtime* runtime = std::exchange(runtime_, nullptr)) check(sh_step_end(runtime));
    }

private:
    void drop() noexcept {
        if (runtime_) ignore(sh_step_end(runtime_));
    }

    sh_runtime* runtime_;
};

// The time in which sources may be changed. The destructor ends this time and invalidates the blocks.
class SourceUpdate {
public:
    SourceUpdate(sh_runtime* runtime, Span<const sh_block> blocks) : blocks_(blocks.begin(), blocks.end()) {
        check(sh_source_update_begin(runtime, blocks_.data(), blocks_.size()));
        runtime_ = runtime;
    }
    SourceUpdate(SourceUpdate&& other) noexcept
        : runtime_(std::exchange(other.runtime_, nullptr)), blocks_(std::move(other.blocks_)) {}
    SourceUpdate& operator=(SourceUpdate&& other) noexcept {
        if (this != &other) {
            drop();
            runtime_ = std::exchange(other.runtime_, nullptr);
            blocks_ = std::move(other.blocks_);
        }
        return *this;
    }
    ~SourceUpdate() { drop(); }

    void replace(sh_block block, Span<const sh_segment> segments) {
        check(sh_source_replace(runtime_, block, segments.data(), segments.size()));
    }
    void end() {
        if (sh_runtime* runtime = std::exchange(runtime_, nullptr)) {
            check(sh_source_update_end(runtime, blocks_.data(), blocks_.size()));
        }
    }

private:
    void drop() noexcept {
        if (runtime_) ignore(sh_source_update_end(runtime_, blocks_.data(), blocks_.size()));
    }

    sh_runtime* runtime_ = nullptr;
    std::vector<sh_block> blocks_;
};

// Members of a set that are held. The destructor releases them.
class Members {
public:
    Members(sh_runtime* runtime, sh_set set, Span<const std::uint32_t> members, sh_stream stream)
        : set_(set), stream_(stream), members_(members.begin(), members.end()), slots_(members.size()) {
        check(sh_acquire_members(runtime, set, members_.data(), members_.size(), stream, 0, &pool_, slots_.data()));
        runtime_ = runtime;
    }
    Members(Members&& other) noexcept { take(other); }
    Members& operator=(Members&& other) noexcept {
        if (this != &other) {
            drop();
            take(other);
        }
        return *this;
    }
    ~Members() { drop(); }

    void* address() const noexcept { return pool_.address; }  // of slot 0
    std::uint64_t size() const noexcept { return pool_.bytes; }
    // The slot of each member, in the order of the call.
    const std::vector<std::uint32_t>& slots() const noexcept { return slots_; }
    // Releases the members now.
    void release() {
        if (sh_runtime* runtime = std::exchange(runtime_, nullptr))
            check(sh_release_members(runtime, set_, members_.data(), members_.size(), stream_));
    }

private:
    void take(Members& other) noexcept {
        runtime_ = std::exchange(other.runtime_, nullptr);
        set_ = other.set_;
        stream_ = other.stream_;
        pool_ = other.pool_;
        members_ = std::move(other.members_);
        slots_ = std::move(other.slots_);
    }
    void drop() noexcept {
        if (runtime_) ignore(sh_release_members(runtime_, set_, members_.data(), members_.size(), stream_));
    }

    sh_runtime* runtime_ = nullptr;
    sh_set set_ = 0;
    sh_stream stream_ = 0;
    sh_view pool_ = sh_sized<sh_view>();
    std::vector<std::uint32_t> members_, slots_;
};

// A set, and the blocks of its members. @experimental
struct MemberSet {
    sh_set set = 0;
    std::vector<sh_block> blocks;
};

// One model on a device.
class Runtime {
public:
    explicit Runtime(const Device& device) { check(sh_runtime_create(device.get(), nullptr, &runtime_)); }
    Runtime(const Device& device, const sh_runtime_options& options) {
        check(sh_runtime_create(device.get(), &options, &runtime_));
    }
    // Takes ownership of a runtime.
    explicit Runtime(sh_runtime* runtime) noexcept : runtime_(runtime) {}
    Runtime(Runtime&& other) noexcept : runtime_(other.release()) {}
    Runtime& operator=(Runtime&& other) noexcept {
        if (this != &other) {
            sh_runtime_destroy(runtime_);
            runtime_ = other.release();
        }
        return *this;
    }
    ~Runtime() { sh_runtime_destroy(runtime_); }

    sh_runtime* get() const noexcept { return runtime_; }
    sh_runtime* release() noexcept { return std::exchange(runtime_, nullptr); }

    void synchronize() { check(sh_runtime_synchronize(runtime_)); }

    std::vector<sh_block> register_blocks(Span<const sh_block_desc> descs) {
        std::vector<sh_block> blocks(descs.size());
        check(sh_register_blocks(runtime_, descs.data(), descs.size(), blocks.data()));
        return blocks;
    }
    sh_block register_block(const sh_block_desc& desc) {
        sh_block block = 0;
        check(sh_register_blocks(runtime_, &desc, 1, &block));
        return block;
    }
    // Registers the parts of a block, of which there are `most` at most.
    std::vector<sh_part> register_parts(const sh_block_desc& desc, const sh_part_options& options,
                                        std::size_t most = 1024) {
        std::vector<sh_part> parts(most, sh_sized<sh_part>());
        std::uint64_t count = 0;
        check(sh_register_parts(runtime_, &desc, &options, parts.data(), parts.size(), &count));
        parts.resize(count);
        return parts;
    }
    // Registers a set. Its members are acquired by acquire_members(). @experimental
    MemberSet register_set(Span<const sh_block_desc> members, const sh_set_options& options = SH_SET_OPTIONS_INIT) {
        MemberSet made;
        made.blocks.resize(members.size());
        check(sh_set_create(runtime_, &options, members.data(), members.size(), made.blocks.data(), &made.set));
        return made;
    }
    void unregister_set(sh_set set) { check(sh_set_destroy(runtime_, set)); }
    sh_set_info set_info(sh_set set) const {
        auto info = sh_sized<sh_set_info>();
        check(sh_set_get_info(runtime_, set, &info));
        return info;
    }
    Members acquire_members(sh_set set, Span<const std::uint32_t> members, sh_stream stream) {
        return Members(runtime_, set, members, stream);
    }
    // `chances`: as many as members, or none.
    void prefetch_members(sh_set set, Span<const std::uint32_t> members, const float* chances = nullptr) {
        check(sh_prefetch_members(runtime_, set, members.data(), chances, members.size()));
    }
    void unregister_blocks(Span<const sh_block> blocks) {
        check(sh_unregister_blocks(runtime_, blocks.data(), blocks.size()));
    }
    sh_block_state block_info(sh_block block) const {
        auto state = sh_sized<sh_block_state>();
        check(sh_block_get_state(runtime_, block, &state));
        return state;
    }

    void set_schedule(Span<const sh_use> uses) { check(sh_set_schedule(runtime_, uses.data(), uses.size())); }
    sh_plan_info plan() {
        auto info = sh_sized<sh_plan_info>();
        check(sh_plan(runtime_, nullptr, &info));
        return info;
    }
    sh_plan_info plan(const sh_plan_options& options) {
        auto info = sh_sized<sh_plan_info>();
        check(sh_plan(runtime_, &options, &info));
        return info;
    }

    // `kind`: see sh_step_begin().
    Step step(const char* kind = nullptr) { return Step(runtime_, kind); }

    View acquire(sh_block block, sh_stream stream) {
        auto view = sh_sized<sh_view>();
        check(sh_acquire(runtime_, block, stream, 0, &view));
        return View(runtime_, stream, view);
    }
    View acquire(sh_block block, const Stream& stream) { return acquire(block, stream.get()); }
    // Does not wait on the host for bytes. Returns std::nullopt if the bytes are not there yet.
    std::optional<View> try_acquire(sh_block block, sh_stream stream) {
        auto view = sh_sized<sh_view>();
        if (check(sh_acquire(runtime_, block, stream, SH_ACQUIRE_NO_WAIT, &view)) == SH_NOT_READY) return std::nullopt;
        return View(runtime_, stream, view);
    }
    Views acquire_many(Span<const sh_block> blocks, sh_stream stream) {
        std::vector<sh_view> views(blocks.size(), sh_sized<sh_view>());
        check(sh_acquire_many(runtime_, blocks.data(), blocks.size(), stream, 0, views.data()));
        return Views(runtime_, stream, std::move(views));
    }
    std::optional<Views> try_acquire_many(Span<const sh_block> blocks, sh_stream stream) {
        std::vector<sh_view> views(blocks.size(), sh_sized<sh_view>());
        const sh_status status =
            check(sh_acquire_many(runtime_, blocks.data(), blocks.size(), stream, SH_ACQUIRE_NO_WAIT, views.data()));
        if (status == SH_NOT_READY) return std::nullopt;
        return Views(runtime_, stream, std::move(views));
    }
    void prefetch(Span<const sh_block> blocks) { check(sh_prefetch(runtime_, blocks.data(), blocks.size())); }
    void forget(sh_stream stream) { check(sh_stream_forget(runtime_, stream)); }

    // Call this while the driver captures on the stream. Call plan() before the capture.
    Capture capture(sh_stream stream) { return Capture(runtime_, stream); }

    void invalidate(Span<const sh_block> blocks) {
        check(sh_invalidate_blocks(runtime_, blocks.data(), blocks.size()));
    }
    SourceUpdate update_sources(Span<const sh_block> blocks) { return SourceUpdate(runtime_, blocks); }
    void mark_dirty(sh_block block) { check(sh_mark_dirty(runtime_, block)); }
    // An empty set writes nothing back.
    void write_back(Span<const sh_block> blocks) {
        if (blocks.size()) check(sh_write_back(runtime_, blocks.data(), blocks.size()));
    }
    void write_back_all() { check(sh_write_back(runtime_, nullptr, 0)); }

    Scope protect(Span<const sh_block> blocks) {
        return Scope([&](sh_scope** out) { return sh_protect_blocks(runtime_, blocks.data(), blocks.size(), out); });
    }
    // The library does not take this runtime's device memory for other runtimes until the scope ends.
    Scope keep_resident() {
        return Scope([&](sh_scope** out) { return sh_keep_resident(runtime_, out); });
    }
    // 0 bytes: as many as the runtime's plan uses. Another reservation takes its place: the end of this scope has no
    // effect then.
    Scope reserve(std::uint64_t bytes = 0, std::uint32_t priority = SH_PRIORITY_PRIMARY) {
        return Scope([&](sh_scope** out) { return sh_reserve(runtime_, bytes, priority, out); });
    }
    // The guest may use memory that no runtime has reserved until the scope ends.
    Scope as_guest(Runtime& guest, const sh_guest_options& options = SH_GUEST_OPTIONS_INIT) {
        return Scope([&](sh_scope** out) { return sh_guest_begin(guest.runtime_, &options, out); });
    }
    // Returns the number of bytes that the runtime holds afterwards.
    std::uint64_t trim(std::uint64_t keep_bytes = 0) {
        std::uint64_t bytes = 0;
        check(sh_trim(runtime_, keep_bytes, &bytes));
        return bytes;
    }
    void set_pressure(sh_pressure_fn pressure, void* user_data) {
        check(sh_set_pressure(runtime_, pressure, user_data));
    }

    sh_runtime_stats stats() const {
        auto stats = sh_sized<sh_runtime_stats>();
        check(sh_runtime_get_stats(runtime_, &stats));
        return stats;
    }
    // A line for each step until the scope ends.
    Scope telemetry_start(const std::string& path) {
        return Scope([&](sh_scope** out) { return sh_telemetry_start(runtime_, nullptr, path.c_str(), out); });
    }

private:
    sh_runtime* runtime_ = nullptr;
};

}  // namespace abi0
}  // namespace stagehand

#endif
