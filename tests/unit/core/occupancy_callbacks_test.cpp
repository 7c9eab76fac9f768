// What an engine has called before a pause and after a resume.
#include <algorithm>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "occupancy_fixture.h"

namespace stagehand::test {
namespace {

class OccupancyCallbacks : public OccupancyTest {
protected:
    // Callbacks that write down their calls: "+" after a resume, "-" before a pause, and the tags.
    struct Note {
        OccupancyCallbacks* test = nullptr;
        std::string name;
        int32_t answer = 0;
        std::string message;
        std::function<void()> work;
        sh_scope* scope = nullptr;
    };

    void SetUp() override {
        if (devices_without_pages()) GTEST_SKIP() << "memory without pages cannot be paused";
        open();
        filled(1, 3 * kMiB, "weights");
        filled(2, kMiB, "cache");
    }
    Note& add(const char* name) {
        notes_.push_back(std::make_unique<Note>(Note{this, name, 0, "", nullptr, nullptr}));
        Note& note = *notes_.back();
        EXPECT_SUCCEEDS(sh_occupancy_add_callbacks(device_, before, after, &note, &note.scope));
        return note;
    }
    std::string take_calls() { return std::exchange(calls_, ""); }

    static int32_t before(const char* const* tags, uint64_t count, char* message, uint64_t bytes, void* data) {
        const Note& note = *static_cast<Note*>(data);
        note.test->write_down(note, '-', tags, count);
        EXPECT_STREQ(message, "");
        EXPECT_GE(bytes, 256u);
        note.message.copy(message, bytes);
        note.test->room_ = bytes;
        return note.answer;
    }
    static void after(const char* const* tags, uint64_t count, void* data) {
        const Note& note = *static_cast<Note*>(data);
        note.test->write_down(note, '+', tags, count);
    }
    void write_down(const Note& note, char when, const char* const* tags, uint64_t count) {
        EXPECT_EQ(std::this_thread::get_id(), thread_);
        for (uint64_t i = 0; i < count; i++)
            EXPECT_EQ(info(tags[i]).state, uint32_t(SH_OCCUPANCY_RUNNING)) << "they run in every callback";
        calls_ += when + note.name;
        for (uint64_t i = 0; i < count; i++) calls_ += ' ' + std::string(tags[i]);
        calls_ += ';';
        if (note.work) note.work();
    }

    const std::thread::id thread_ = std::this_thread::get_id();
    std::vector<std::unique_ptr<Note>> notes_;
    std::string calls_;
    uint64_t room_ = 0;  // for a message
};

TEST_F(OccupancyCallbacks, TheFirstIsFirstBeforeAPauseAndLastAfterAResume) {
    add("a");
    sh_scope* const second = add("b").scope;
    SUCCEEDS(pause());
    EXPECT_EQ(take_calls(), "-a cache weights;-b cache weights;");
    SUCCEEDS(resume({"weights"}));
    EXPECT_EQ(take_calls(), "+b weights;+a weights;");
    // A call that changes nothing calls nobody.
    SUCCEEDS(resume({"weights"}, SH_OCCUPANCY_REPEAT));
    SUCCEEDS(pause({"cache"}, SH_OCCUPANCY_REPEAT));
    EXPECT_EQ(pause({"cache"}), SH_ERROR_INVALID_STATE);
    SUCCEEDS(prepare({"weights"}));
    EXPECT_EQ(take_calls(), "");
    SUCCEEDS(sh_scope_end(second));
    EXPECT_EQ(sh_scope_end(second), SH_ERROR_INVALID_HANDLE);
    SUCCEEDS(resume());
    EXPECT_EQ(take_calls(), "+a cache;");
}

TEST_F(OccupancyCallbacks, ARefusalLeavesEverythingAsItWas) {
    add("a");
    add("b").answer = 7;
    notes_.back()->message = "a transfer is under way";
    add("c");
    EXPECT_REFUSED(pause({"weights"}), SH_ERROR_CALLBACK, "a transfer is under way");
    EXPECT_EQ(take_calls(), "-a weights;-b weights;+a weights;");
    EXPECT_EQ(info("weights").state, uint32_t(SH_OCCUPANCY_RUNNING));
    EXPECT_EQ(info().host_bytes, 0u);
    notes_[1]->message.clear();
    EXPECT_REFUSED(pause({"weights"}), SH_ERROR_CALLBACK, "with 7");
    // A message that fills its room ends with the room.
    notes_[1]->message.assign(100'000, 'x');
    EXPECT_EQ(pause({"weights"}), SH_ERROR_CALLBACK);
    const std::string told = why();
    EXPECT_EQ(std::count(told.begin(), told.end(), 'x'), static_cast<ptrdiff_t>(room_) - 1);
    notes_[1]->answer = 0;
    notes_[1]->message.clear();
    take_calls();
    SUCCEEDS(pause({"weights"}));
    EXPECT_EQ(take_calls(), "-a weights;-b weights;-c weights;");
}

TEST_F(OccupancyCallbacks, TheyMakeNoCallsThatWouldWaitForTheirOwn) {
    add("a").work = [&] {
        uint64_t address = 0;
        EXPECT_EQ(try_alloc(1, "weights", 0, &address), SH_ERROR_INVALID_STATE);
        EXPECT_EQ(pause(), SH_ERROR_INVALID_STATE);
        EXPECT_EQ(resume(), SH_ERROR_INVALID_STATE);
        EXPECT_EQ(sh_occupancy_trim(device_, nullptr), SH_ERROR_INVALID_STATE);
        EXPECT_EQ(sh_scope_end(notes_[0]->scope), SH_ERROR_INVALID_STATE);
        EXPECT_EQ(sh_occupancy_add_callbacks(device_, before, after, nullptr, nullptr), SH_ERROR_INVALID_STATE);
    };
    SUCCEEDS(pause());
    SUCCEEDS(resume());
    EXPECT_EQ(take_calls(), "-a cache weights;+a cache weights;");
}

TEST_F(OccupancyCallbacks, EitherMayBeMissing) {
    Note only{this, "only", 0, "", nullptr, nullptr};
    SUCCEEDS(sh_occupancy_add_callbacks(device_, nullptr, after, &only, &only.scope));
    SUCCEEDS(pause());
    SUCCEEDS(resume());
    EXPECT_EQ(take_calls(), "+only cache weights;");
    SUCCEEDS(sh_scope_end(only.scope));
    SUCCEEDS(sh_occupancy_add_callbacks(device_, before, nullptr, &only, nullptr));
    SUCCEEDS(pause());
    SUCCEEDS(resume());
    EXPECT_EQ(take_calls(), "-only cache weights;");
}

}  // namespace
}  // namespace stagehand::test
