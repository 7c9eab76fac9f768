// An engine's calls between steps: new contents, residency, guests, graphs, and the monitor.
#include <cstring>
#include <utility>

#include <gtest/gtest.h>

#include "../graphs/capture.h"
#include "../unit/telemetry/monitor_client.h"
#include "engine.h"
#include "every_call.h"
#include "plugin.h"

namespace stagehand::test {
namespace {

#define DRIVER(name) plugin_function<decltype(name)>("stagehand-capture.so", #name)

}  // namespace

bool EveryCall::change_contents() {
    for (const sh_stream stream : {stream_, other_})  // queued work compares with the old contents
        if (!ATTEMPT(sh_stream_synchronize, device_, stream)) return false;
    Block& staged = blocks_[1];
    const sh_block id = staged.id;
    if (!attempt(
            "sh_source_update_begin", [&] { return sh_source_update_begin(model_, &id, 1); }, SH_ERROR_INVALID_STATE))
        return false;
    staged.truth = contents_of(id, ++version_, staged.bytes);
    std::memcpy(staged.memory, staged.truth.data(), staged.bytes);
    sh_segment segment = SH_SEGMENT_INIT;
    segment.kind = SH_SOURCE_POINTER;
    segment.pointer = staged.memory;
    segment.bytes = staged.bytes;
    if (!ATTEMPT(sh_source_replace, model_, id, &segment, 1)) return false;
    if (!attempt(
            "sh_source_update_end", [&] { return sh_source_update_end(model_, &id, 1); }, SH_ERROR_INVALID_STATE))
        return false;
    const sh_block some[] = {blocks_[0].id, blocks_[4].id, blocks_[ordered_].id};
    if (!ATTEMPT(sh_invalidate_blocks, model_, some, 3) || !ATTEMPT(sh_write_back, model_, some, 3) ||
        !ATTEMPT(sh_write_back_all, model_))
        return false;
    for (const Block& block : blocks_) {
        if (!(block.flags & SH_BLOCK_MUTABLE)) continue;
        EXPECT_EQ(std::memcmp(block.memory, block.truth.data(), block.bytes), 0) << "what the engine changed is lost";
    }
    return step(3);
}

// Changes the budget, protects, keeps resident, reserves and trims.
bool EveryCall::stay() {
    const sh_block some[] = {blocks_[3].id, blocks_[ordered_].id};
    uint64_t holds = 0;
    if (!ATTEMPT(sh_device_set_budget, device_, 36 * kPage)) return false;  // before what it holds is kept
    if (!ATTEMPT(sh_protect_blocks, model_, some, 2) || !ATTEMPT(sh_keep_resident, model_, &kept_) || !step(1))
        return false;
    if (!attempt(
            "sh_scope_end", [&] { return sh_scope_end(kept_); }, SH_ERROR_INVALID_HANDLE))
        return false;
    if (!attempt("sh_unprotect_blocks", [&] { return sh_unprotect_blocks(model_, some, 2); })) return false;
    if (!ATTEMPT(sh_reserve, model_, 20 * kPage, SH_PRIORITY_SECONDARY) ||
        !ATTEMPT(sh_reserve, model_, 0, SH_PRIORITY_PRIMARY))
        return false;
    if (!ATTEMPT(sh_release_reservation, model_) || !ATTEMPT(sh_trim, model_, 0, &holds)) return false;
    EXPECT_EQ(holds, 0u);
    return step(2);
}

bool EveryCall::have_a_guest() {
    sh_guest_options options = SH_GUEST_OPTIONS_INIT;
    options.flags = SH_GUEST_SHRINK;
    options.bytes = 4 * kPage;
    if (!schedule(guest_, guests_) || !ATTEMPT(sh_guest_begin, guest_, &options, &visit_)) return false;
    for (int k = 0; k < 2; k++) {
        if (!ATTEMPT(sh_step_begin, guest_)) return false;
        for (const Block& block : guests_) {
            sh_view view = SH_VIEW_INIT;
            if (!ATTEMPT(sh_acquire, guest_, block.id, stream_, 0, &view)) return false;
            const bool well = compare(block, view.address, stream_);
            if (!release(guest_, block, stream_) || !well) return false;
        }
        if (!attempt(
                "sh_step_end", [&] { return sh_step_end(guest_); }, SH_ERROR_INVALID_STATE))
            return false;
    }
    return attempt(
               "sh_scope_end", [&] { return sh_scope_end(visit_); }, SH_ERROR_INVALID_HANDLE) &&
           step(3);
}

bool EveryCall::graphs() {
    if (!schedule(pinned_, captured_)) return false;
    for (int k = 0;; k++) {
        if (!ATTEMPT(sh_plan, pinned_, nullptr, nullptr)) return false;
        if (capture()) break;
        let_go_of_graph();
        if (k == attempts_ && !lost_) ADD_FAILURE() << "capturing does not recover: " << why();
        if (k == attempts_ || lost_ || testing::Test::HasFailure()) return false;
    }
    for (int k = 0; k < 3; k++)
        if (!launch()) return false;
    if (!ATTEMPT(sh_stream_synchronize, device_, stream_)) return false;
    let_go_of_graph();
    return step(1);
}

// A call that fails here is not tried again by itself, because the capture is discarded.
bool EveryCall::capture() {
    EXPECT_EQ(DRIVER(sh_test_capture_begin)(stream_), SH_OK);
    const sh_status begun = CALL(sh_capture_begin, pinned_, stream_);
    const bool all = begun == SH_OK ? capture_all() : told("sh_capture_begin", begun);
    if (begun == SH_OK && all) {
        const sh_status ended = CALL(sh_capture_end, pinned_, stream_, &graph_);
        if (ended != SH_OK) (void)told("sh_capture_end", ended);
    }
    if (begun == SH_OK && !graph_) (void)CALL(sh_capture_end, pinned_, stream_, nullptr);  // it may have ended
    const sh_status native = DRIVER(sh_test_capture_end)(stream_, &native_);
    if (graph_) {
        EXPECT_EQ(native, SH_OK) << DRIVER(sh_test_capture_error)();
    }
    return graph_ && native_;
}

bool EveryCall::capture_all() {
    for (const Block& block : captured_) {
        sh_view view = SH_VIEW_INIT;
        const sh_status acquired = CALL(sh_acquire, pinned_, block.id, stream_, 0, &view);
        if (acquired != SH_OK) return told("sh_acquire", acquired) && false;
        const bool well = compare(block, view.address, stream_);
        const sh_status released = CALL(sh_release, pinned_, block.id, stream_);
        if (released != SH_OK) return told("sh_release", released) && false;
        if (!well) return false;
    }
    return true;
}

bool EveryCall::launch() {
    if (!ATTEMPT(sh_graph_enter, graph_, stream_)) return false;
    EXPECT_EQ(DRIVER(sh_test_graph_launch)(native_, stream_), SH_OK);
    return attempt(
        "sh_graph_leave", [&] { return sh_graph_leave(graph_, stream_); }, SH_ERROR_INVALID_STATE);
}

void EveryCall::let_go_of_graph() {
    CALL(sh_graph_destroy, std::exchange(graph_, nullptr));
    if (native_) DRIVER(sh_test_graph_destroy)(std::exchange(native_, nullptr));
}

// The monitor answers, or closes the connection. The client asks again then.
bool EveryCall::ask_monitor() {
    for (int k = 0; k < attempts_; k++) {
        progress_.call = "asking the monitor";
        Connection connection(folder_ + "/monitor");
        EXPECT_TRUE(connection.connected()) << std::strerror(connection.error());
        if (connection.send("snapshot\n") && connection.receive().find("runtimes") != std::string::npos) return true;
    }
    ADD_FAILURE() << "the monitor does not answer";
    return false;
}

bool EveryCall::end() {
    std::vector<sh_block> ids;
    for (const Block& block : blocks_) ids.push_back(block.id);
    if (!attempt(
            "sh_unregister_blocks", [&] { return sh_unregister_blocks(model_, ids.data(), 1); },
            SH_ERROR_INVALID_HANDLE))
        return false;
    if (!attempt(
            "sh_unregister_blocks", [&] { return sh_unregister_blocks(model_, ids.data() + 1, ids.size() - 1); },
            SH_ERROR_INVALID_HANDLE))
        return false;
    return ATTEMPT(sh_telemetry_open, model_, nullptr) && ATTEMPT(sh_runtime_synchronize, model_);
}

}  // namespace stagehand::test
