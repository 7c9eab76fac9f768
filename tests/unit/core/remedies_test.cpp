// Refused calls whose texts name the remedy: the flags that are known, and the call that ends or begins what is in the
// way.
#include <functional>

#include "engine.h"

namespace stagehand::test {
namespace {

struct Call {
    const char* name;
    std::function<sh_status()> make;
    std::string text;  // a part of the error text
};

class Remedies : public testing::Test {
protected:
    TestDevice device_;
    Model model_{device_, equal_blocks(2, kPage, Origin::pinned, SH_BLOCK_MUTABLE)};
    sh_runtime* const runtime_ = model_.runtime();
    sh_block block_ = model_.id(0);
    sh_view view_ = sh_sized<sh_view>();

    void expect_refused(std::initializer_list<Call> calls, sh_status code) {
        for (const Call& call : calls) {
            EXPECT_EQ(call.make(), code) << call.name << ": " << why();
            EXPECT_NE(why().find(call.text), std::string::npos) << call.name << ": " << why();
        }
    }
};

constexpr uint32_t kUnknown = 1u << 31;

std::string known(const std::string& field, const std::string& flags) {
    return field + " is 0x80000000, which has unknown bits (0x80000000); the known flags are " + flags;
}

TEST_F(Remedies, unknown_flags_are_refused_with_those_that_are_known) {
    sh_plan_options plan = SH_PLAN_OPTIONS_INIT;
    sh_guest_options guest = SH_GUEST_OPTIONS_INIT;
    sh_pause_options pause = SH_PAUSE_OPTIONS_INIT;
    sh_resume_options resume = SH_RESUME_OPTIONS_INIT;
    sh_alloc_options alloc = SH_ALLOC_OPTIONS_INIT;
    sh_spiller_options spiller = SH_SPILLER_OPTIONS_INIT;
    sh_host_options memory = SH_HOST_OPTIONS_INIT;
    sh_helper_options helpers = SH_HELPER_OPTIONS_INIT;
    sh_device_options host = SH_DEVICE_OPTIONS_INIT, opened = SH_DEVICE_OPTIONS_INIT;
    host.host = &memory, opened.helpers = &helpers;
    sh_segment segment = model_.source(0).segment();
    sh_block_desc desc = SH_BLOCK_DESC_INIT;
    desc.segments = &segment, desc.segment_count = 1, desc.bytes = kPage;
    plan.flags = guest.flags = pause.flags = resume.flags = alloc.flags = spiller.flags = memory.flags = desc.flags =
        kUnknown;
    helpers.flags = kUnknown;
    sh_scope* scope = nullptr;
    sh_spiller* made = nullptr;
    sh_device* other = nullptr;
    sh_block out = 0;
    uint64_t address = 0;
    const std::string blocks =
        "SH_BLOCK_MUTABLE (0x1), SH_BLOCK_WHOLE (0x2), SH_BLOCK_UNORDERED (0x4), SH_BLOCK_PIN (0x8), SH_BLOCK_PACK "
        "(0x10)";
    const std::string turns = "SH_OCCUPANCY_NO_WAIT (0x1), SH_OCCUPANCY_REPEAT (0x2)";
    const std::string pauses =
        turns + ", SH_OCCUPANCY_COPY_ALL (0x4), SH_OCCUPANCY_UNPINNED (0x8), SH_OCCUPANCY_PREPARE (0x10)";
    expect_refused(
        {
            {"acquire", [&] { return sh_acquire(runtime_, block_, SH_STREAM_HOST, kUnknown, &view_); },
             known("flags", "SH_ACQUIRE_NO_WAIT (0x1)")},
            {"plan", [&] { return sh_plan(runtime_, &plan, nullptr); },
             known("options.flags", "SH_PLAN_DRY_RUN (0x1), SH_PLAN_DROP_GRAPHS (0x2)")},
            {"guest", [&] { return sh_guest_begin(runtime_, &guest, &scope); },
             known("options.flags", "SH_GUEST_SHRINK (0x1)")},
            {"pause", [&] { return sh_pause(device_.get(), &pause, nullptr); }, known("options.flags", pauses)},
            {"resume", [&] { return sh_resume(device_.get(), &resume, nullptr); }, known("options.flags", turns)},
            {"alloc", [&] { return sh_alloc(device_.get(), kPage, &alloc, &address); },
             known("options.flags", "SH_ALLOC_CONST (0x1)")},
            {"spiller", [&] { return sh_spiller_create(device_.get(), &spiller, &made); },
             known("options.flags", "SH_SPILLER_KEEP_BYTES (0x1), SH_SPILLER_CHECKSUMS (0x2), SH_SPILLER_PACK (0x4)")},
            {"host", [&] { return sh_device_open("host:7", &host, &other); },
             known("options.host.flags", "SH_HOST_SMALL_PAGES (0x1), SH_HOST_PINNED (0x2)")},
            {"device", [&] { return sh_device_open("host:7", &opened, &other); },
             known("options.helpers.flags", "SH_HELPS_OTHERS (0x1)")},
            {"block", [&] { return sh_register_blocks(runtime_, &desc, 1, &out); }, known("flags", blocks)},
        },
        SH_ERROR_INVALID_ARGUMENT);
    alloc.flags = kUnknown | SH_ALLOC_CONST;
    EXPECT_REFUSED(sh_alloc(device_.get(), kPage, &alloc, &address), SH_ERROR_INVALID_ARGUMENT,
                   "is 0x80000001, which has unknown bits (0x80000000)");
}

TEST_F(Remedies, calls_at_the_wrong_time_name_the_call_that_is_missing) {
    expect_refused(
        {{"end", [&] { return sh_step_end(runtime_); }, "none is under way. sh_step_begin() begins one"},
         {"update end", [&] { return sh_source_update_end(runtime_, &block_, 1); },
          "no update of its source has begun: call sh_source_update_begin() first"},
         {"dirty", [&] { return sh_mark_dirty(runtime_, block_); }, "no view of it is held. Acquire it first"}},
        SH_ERROR_INVALID_STATE);
    SUCCEEDS(sh_step_begin(runtime_, nullptr));
    view_ = held_view(runtime_, block_);
    SUCCEEDS(sh_mark_dirty(runtime_, block_));
    expect_refused({{"begin", [&] { return sh_step_begin(runtime_, nullptr); },
                     "a step is under way already, until sh_step_end()"},
                    {"unregister", [&] { return sh_unregister_blocks(runtime_, &block_, 1); },
                     "a view of it is held. Release the view first"},
                    {"write back", [&] { return sh_write_back(runtime_, &block_, 1); },
                     "a view of it is held. Release the view first"}},
                   SH_ERROR_INVALID_STATE);
    let_go(runtime_, block_);
    SUCCEEDS(sh_step_end(runtime_));
    SUCCEEDS(sh_source_update_begin(runtime_, &block_, 1));
    expect_refused({{"update begin", [&] { return sh_source_update_begin(runtime_, &block_, 1); },
                     "has begun already: call sh_source_update_end() first"}},
                   SH_ERROR_INVALID_STATE);
    SUCCEEDS(sh_source_update_end(runtime_, &block_, 1));
}

TEST_F(Remedies, steps_of_a_spiller_name_the_other_call) {
    sh_spiller* spiller = nullptr;
    SUCCEEDS(sh_spiller_create(device_.get(), nullptr, &spiller));
    expect_refused({{"end", [&] { return sh_spiller_end_step(spiller); }, "sh_spiller_begin_step() begins one"}},
                   SH_ERROR_INVALID_STATE);
    SUCCEEDS(sh_spiller_begin_step(spiller, 1));
    expect_refused({{"begin", [&] { return sh_spiller_begin_step(spiller, 2); }, "until sh_spiller_end_step()"}},
                   SH_ERROR_INVALID_STATE);
    EXPECT_SUCCEEDS(sh_spiller_end_step(spiller));
    sh_spiller_destroy(spiller);
}

}  // namespace
}  // namespace stagehand::test
