// Handles of every kind are passed to every call that takes another kind. Each call notices the mistake, and nothing
// changes.
#include <array>
#include <functional>

#include "captured_step.h"

namespace stagehand::test {
namespace {

struct Call {
    const char* name;
    std::function<sh_status(void*)> make;  // with a handle
};

// Calls that return nothing report an error as the thread's last error.
template <class Work>
sh_status told_by(Work&& work) {
    ignore(sh_set_log(99, nullptr, nullptr));  // a text that no call of the test gives
    const std::string before = why();
    work();
    return why() == before ? SH_OK : SH_ERROR_INVALID_HANDLE;
}

// An open handle of each kind. Each handle is the first in its table.
class Handles : public Graphs {
protected:
    void SetUp() override {
        Graphs::SetUp();
        if (IsSkipped()) return;
        device_ = std::make_unique<TestDevice>(settings(24));
        model_ = std::make_unique<Model>(*device_, equal_blocks(4, kBlock, Origin::pinned));
        SUCCEEDS(model_->schedule(forward(4)));
        stream_ = device_->stream();
        model_->plan();
        SUCCEEDS(sh_keep_resident(model_->runtime(), &scope_));
        step_ = std::make_unique<Step>(*model_);
        ASSERT_NO_FATAL_FAILURE(step_->capture(stream_, forward(4)));
    }
    void TearDown() override {
        if (scope_) {
            EXPECT_SUCCEEDS(sh_scope_end(scope_));
        }
    }
    std::vector<Call> device_calls() {
        const auto of = [](void* handle) { return static_cast<sh_device*>(handle); };
        return {
            {"sh_device_close", [=](void* h) { return told_by([=] { sh_device_close(of(h)); }); }},
            {"sh_device_get_memory", [=, this](void* h) { return sh_device_get_memory(of(h), &memory_); }},
            {"sh_device_set_budget", [=](void* h) { return sh_device_set_budget(of(h), 16 * kPage); }},
            {"sh_device_get_caps", [=, this](void* h) { return sh_device_get_caps(of(h), &caps_); }},
            {"sh_device_get_clock", [=, this](void* h) { return sh_device_get_clock(of(h), &number_); }},
            {"sh_stream_create", [=, this](void* h) { return sh_stream_create(of(h), &number_); }},
            {"sh_stream_destroy",
             [=, this](void* h) { return told_by([=, this] { sh_stream_destroy(of(h), stream_); }); }},
            {"sh_stream_synchronize", [=, this](void* h) { return sh_stream_synchronize(of(h), stream_); }},
            {"sh_stream_launch", [=, this](void* h) { return sh_stream_launch(of(h), stream_, nullptr, nullptr, 0); }},
            {"sh_host_alloc", [=, this](void* h) { return sh_host_alloc(of(h), kPage, &pointer_, nullptr); }},
            {"sh_host_free", [=, this](void* h) { return sh_host_free(of(h), model_->source(0).memory()); }},
            {"sh_runtime_create", [=, this](void* h) { return sh_runtime_create(of(h), nullptr, &runtime_); }},
        };
    }
    std::vector<Call> runtime_calls();
    std::vector<Call> block_calls();
    std::vector<Call> scope_calls() {
        return {{"sh_scope_end", [](void* h) { return sh_scope_end(static_cast<sh_scope*>(h)); }}};
    }
    std::vector<Call> graph_calls() {
        const auto of = [](void* handle) { return static_cast<sh_graph*>(handle); };
        return {
            {"sh_graph_enter", [=, this](void* h) { return sh_graph_enter(of(h), stream_); }},
            {"sh_graph_leave", [=, this](void* h) { return sh_graph_leave(of(h), stream_); }},
            {"sh_graph_destroy", [=](void* h) { return told_by([=] { sh_graph_destroy(of(h)); }); }},
        };
    }
    void expect_refused(const std::vector<Call>& calls, const std::vector<std::pair<const char*, void*>>& others) {
        for (const Call& call : calls)
            for (const auto& [kind, handle] : others)
                EXPECT_EQ(call.make(handle), SH_ERROR_INVALID_HANDLE) << call.name << " of a " << kind;
    }
    void* device() { return device_->get(); }
    void* runtime() { return model_->runtime(); }
    void* graph() { return step_->graph(); }

    std::unique_ptr<TestDevice> device_;
    std::unique_ptr<Model> model_;
    std::unique_ptr<Step> step_;
    sh_stream stream_ = 0;
    sh_scope* scope_ = nullptr;
    // The outputs of the calls.
    sh_memory_info memory_ = sh_sized<sh_memory_info>();
    sh_device_caps caps_ = sh_sized<sh_device_caps>();
    sh_runtime_stats stats_ = sh_sized<sh_runtime_stats>();
    sh_block_state state_ = sh_sized<sh_block_state>();
    sh_view view_ = sh_sized<sh_view>();
    uint64_t number_ = 77;
    void* pointer_ = nullptr;
    sh_runtime* runtime_ = nullptr;
    sh_scope* other_scope_ = nullptr;
    sh_graph* other_graph_ = nullptr;
};

std::vector<Call> Handles::runtime_calls() {
    const auto of = [](void* handle) { return static_cast<sh_runtime*>(handle); };
    const sh_block block = model_->id(0);
    return {
        {"sh_runtime_destroy", [=](void* h) { return told_by([=] { sh_runtime_destroy(of(h)); }); }},
        {"sh_runtime_synchronize", [=](void* h) { return sh_runtime_synchronize(of(h)); }},
        {"sh_register_blocks", [=, this](void* h) { return sh_register_blocks(of(h), nullptr, 0, &number_); }},
        {"sh_unregister_blocks", [=](void* h) { return sh_unregister_blocks(of(h), &block, 1); }},
        {"sh_block_get_state", [=, this](void* h) { return sh_block_get_state(of(h), block, &state_); }},
        {"sh_invalidate_blocks", [=](void* h) { return sh_invalidate_blocks(of(h), &block, 1); }},
        {"sh_source_update_begin", [=](void* h) { return sh_source_update_begin(of(h), &block, 1); }},
        {"sh_source_update_end", [=](void* h) { return sh_source_update_end(of(h), &block, 1); }},
        {"sh_mark_dirty", [=](void* h) { return sh_mark_dirty(of(h), block); }},
        {"sh_write_back", [=](void* h) { return sh_write_back(of(h), &block, 1); }},
        {"sh_set_schedule", [=](void* h) { return sh_set_schedule(of(h), nullptr, 0); }},
        {"sh_plan", [=](void* h) { return sh_plan(of(h), nullptr, nullptr); }},
        {"sh_step_begin", [=](void* h) { return sh_step_begin(of(h), nullptr); }},
        {"sh_step_end", [=](void* h) { return sh_step_end(of(h)); }},
        {"sh_acquire", [=, this](void* h) { return sh_acquire(of(h), block, stream_, 0, &view_); }},
        {"sh_acquire_many", [=, this](void* h) { return sh_acquire_many(of(h), &block, 1, stream_, 0, &view_); }},
        {"sh_release", [=, this](void* h) { return sh_release(of(h), block, stream_); }},
        {"sh_prefetch", [=](void* h) { return sh_prefetch(of(h), &block, 1); }},
        {"sh_read_block", [=, this](void* h) { return sh_read_block(of(h), block, SH_STREAM_HOST, 0, &number_, 1); }},
        {"sh_stream_forget", [=, this](void* h) { return sh_stream_forget(of(h), stream_); }},
        {"sh_runtime_get_stats", [=, this](void* h) { return sh_runtime_get_stats(of(h), &stats_); }},
        {"sh_telemetry_start", [=](void* h) { return sh_telemetry_start(of(h), nullptr, "/nowhere", nullptr); }},
        {"sh_protect_blocks", [=](void* h) { return sh_protect_blocks(of(h), &block, 1, nullptr); }},
        {"sh_keep_resident", [=, this](void* h) { return sh_keep_resident(of(h), &other_scope_); }},
        {"sh_reserve", [=](void* h) { return sh_reserve(of(h), kPage, SH_PRIORITY_PRIMARY, nullptr); }},
        {"sh_guest_begin", [=, this](void* h) { return sh_guest_begin(of(h), nullptr, &other_scope_); }},
        {"sh_trim", [=, this](void* h) { return sh_trim(of(h), 0, &number_); }},
        {"sh_set_pressure", [=](void* h) { return sh_set_pressure(of(h), nullptr, nullptr); }},
        {"sh_capture_begin", [=, this](void* h) { return sh_capture_begin(of(h), stream_); }},
        {"sh_capture_end", [=, this](void* h) { return sh_capture_end(of(h), stream_, &other_graph_); }},
    };
}

// A block's handle is a number, and so is every other handle.
std::vector<Call> Handles::block_calls() {
    const auto of = [](void* handle) { return reinterpret_cast<sh_block>(handle); };
    sh_runtime* const runtime = model_->runtime();
    return {
        {"sh_acquire's block", [=, this](void* h) { return sh_acquire(runtime, of(h), stream_, 0, &view_); }},
        {"sh_release's block", [=, this](void* h) { return sh_release(runtime, of(h), stream_); }},
        {"sh_block_get_state's block", [=, this](void* h) { return sh_block_get_state(runtime, of(h), &state_); }},
        {"sh_mark_dirty's block", [=](void* h) { return sh_mark_dirty(runtime, of(h)); }},
        {"sh_read_block's block",
         [=, this](void* h) { return sh_read_block(runtime, of(h), SH_STREAM_HOST, 0, &number_, 1); }},
        {"sh_unregister_blocks's block",
         [=](void* h) { return sh_unregister_blocks(runtime, std::array{of(h)}.data(), 1); }},
    };
}

TEST_F(Handles, of_each_kind_are_refused_where_another_is_wanted) {
    using Handle = std::pair<const char*, void*>;
    const Handle device_handle = {"device", device()}, runtime_handle = {"runtime", runtime()},
                 scope_handle = {"scope", scope_};
    const Handle graph_handle = {"graph", graph()}, block_handle = {"block", reinterpret_cast<void*>(model_->id(0))};
    expect_refused(device_calls(), {runtime_handle, scope_handle, graph_handle, block_handle});
    expect_refused(runtime_calls(), {device_handle, scope_handle, graph_handle, block_handle});
    expect_refused(scope_calls(), {device_handle, runtime_handle, graph_handle, block_handle});
    expect_refused(graph_calls(), {device_handle, runtime_handle, scope_handle, block_handle});
    expect_refused(block_calls(), {device_handle, runtime_handle, scope_handle, graph_handle});

    EXPECT_EQ(number_, 77u);
    EXPECT_EQ(view_.address, nullptr);
    EXPECT_EQ(pointer_, nullptr);
    EXPECT_EQ(runtime_, nullptr);
    EXPECT_EQ(other_scope_, nullptr);
    EXPECT_EQ(other_graph_, nullptr);
    EXPECT_EQ(device_->memory().budget_bytes, 24 * kPage);
    for (int k = 0; k < 2; k++) SUCCEEDS(step_->launch(stream_)) << "the graph is there";
    device_->synchronize();
    SUCCEEDS(sh_scope_end(scope_)) << "the scope is there";
    EXPECT_EQ(sh_scope_end(scope_), SH_ERROR_INVALID_HANDLE);
    scope_ = nullptr;
}

}  // namespace
}  // namespace stagehand::test
