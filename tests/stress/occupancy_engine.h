// An engine with memory of one tag, and a model that predicts each status and each byte.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine.h"

namespace stagehand::test {

// An allocation, and what has to be in it.
struct Memory {
    uint64_t address = 0;
    uint32_t contents = SH_CONTENTS_STAGE;
    std::vector<uint8_t> truth;  // empty: not defined
    uint64_t bytes = 0;
    uint64_t lost_begin = 0, lost_end = 0;  // the part that was said to be unused since it was written
    bool constant = false, frozen = false;  // it must not change, as soon as a pause may have staged it

    bool is_lost(uint64_t offset) const { return offset >= lost_begin && offset < lost_end; }
    bool is_right() const {
        if (truth.empty()) return true;
        const auto* const there = reinterpret_cast<const uint8_t*>(address);
        return std::equal(truth.begin(), truth.begin() + static_cast<std::ptrdiff_t>(lost_begin), there) &&
               std::equal(truth.begin() + static_cast<std::ptrdiff_t>(lost_end), truth.end(), there + lost_end);
    }
};

// One tag and its model. An engine's thread has tags of its own, so it can predict all that happens to them.
class Engine {
public:
    Engine(sh_device* device, std::string tag, uint64_t seed, bool faulty)
        : device_(device), tag_(std::move(tag)), random_(seed), faulty_(faulty) {
        EXPECT_SUCCEEDS(sh_occupancy_add_callbacks(device_, before_pause, after_resume, this, &callbacks_));
    }
    // The device may be closed already.
    ~Engine() { EXPECT_SUCCEEDS(sh_scope_end(callbacks_)); }
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    bool released() const { return released_; }
    size_t size() const { return all_.size(); }

    void alloc(uint64_t bytes, uint32_t contents, bool constant = false) {
        sh_alloc_options options = SH_ALLOC_OPTIONS_INIT;
        options.tag = tag_.c_str();
        options.contents = contents;
        options.flags = constant ? SH_ALLOC_CONST : 0;
        options.format = any_format();
        Memory memory;
        const sh_status status = sh_alloc(device_, bytes, &options, &memory.address);
        if (status != SH_OK) return expect_failure("sh_alloc", status, released_ ? SH_ERROR_INVALID_STATE : SH_OK);
        EXPECT_FALSE(released_) << "an allocation in a released tag";
        memory.contents = contents;
        memory.constant = constant;
        memory.bytes = bytes;
        all_.push_back(std::move(memory));
        write(all_.size() - 1);
    }
    void free(size_t i) {
        const sh_status status = sh_free(device_, all_[i].address);
        if (status != SH_OK) return expect_failure("sh_free", status, SH_OK);
        all_.erase(all_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    void write(size_t i) {
        Memory& memory = all_[i];
        if (released_ || memory.frozen) return;
        memory.truth = contents_of(random_(), 1, memory.bytes);
        if (random_() % 2) {  // weights that can be packed
            for (size_t at = 1; at < memory.bytes; at += 2)
                memory.truth[at] = static_cast<uint8_t>(0x3c | (memory.truth[at] & 0x83));
        }
        memory.lost_begin = memory.lost_end = 0;
        std::memcpy(reinterpret_cast<void*>(memory.address), memory.truth.data(), memory.bytes);
    }
    // Changes one byte.
    void touch(size_t i) {
        Memory& memory = all_[i];
        const uint64_t at = random_() % memory.bytes;
        if (released_ || memory.frozen || memory.truth.empty() || memory.is_lost(at)) return;
        reinterpret_cast<uint8_t*>(memory.address)[at] = memory.truth[at] ^= 0x10;
    }
    void pause() { pause_without({}, 0); }
    // Some memory holds nothing, a part of each that is not constant.
    void pause_at_random() {
        std::vector<sh_memory_range> unused;
        for (Memory& memory : all_) {
            if (released_ || memory.constant || random_() % 3) continue;
            const uint64_t begin = random_() % memory.bytes, bytes = random_() % (memory.bytes - begin) + 1;
            unused.push_back({memory.address + begin, bytes});
            const bool first = memory.lost_begin == memory.lost_end;
            memory.lost_begin = first ? begin : std::min(memory.lost_begin, begin);
            memory.lost_end = std::max(memory.lost_end, begin + bytes);
        }
        refuses_ = random_() % 8 == 0;
        const uint32_t flags = random_() % 4 ? 0 : SH_OCCUPANCY_COPY_ALL;
        const uint64_t host_bytes = random_() % 4 ? 0 : 1 + random_() % (12 << 20);
        pause_without(unused, flags | (random_() % 4 ? 0 : SH_OCCUPANCY_UNPINNED), host_bytes);
        refuses_ = false;
    }
    void pause_without(const std::vector<sh_memory_range>& unused, uint32_t flags, uint64_t host_bytes = 0) {
        const char* const tags[] = {tag_.c_str()};
        sh_pause_options options = SH_PAUSE_OPTIONS_INIT;
        options.tags = tags;
        options.tag_count = 1;
        options.flags = flags;
        options.format = random_() % 4 ? 0 : any_format();
        options.unused = unused.data();
        options.unused_count = unused.size();
        const std::string folder = testing::TempDir();
        options.folder = folder.c_str();
        options.host_bytes = host_bytes;
        const sh_status status = sh_pause(device_, &options, nullptr);
        if (!known()) return expect_failure("sh_pause", status, SH_ERROR_NOT_FOUND);
        const int32_t refused = refuses_ ? SH_ERROR_CALLBACK : SH_OK;
        if (status != SH_OK) expect_failure("sh_pause", status, released_ ? SH_ERROR_INVALID_STATE : refused);
        EXPECT_FALSE(status == SH_OK && refuses_) << "a callback refused";
        for (Memory& memory : all_) memory.frozen = memory.constant;
        EXPECT_FALSE(status == SH_OK && released_) << "paused twice";
        if (state() != SH_OCCUPANCY_RELEASED) {
            EXPECT_NE(status, SH_OK);
            EXPECT_EQ(state(), uint32_t(SH_OCCUPANCY_RUNNING));
            EXPECT_EQ(told_, kRuns) << "the callbacks were told something else";
            return compare();
        }
        EXPECT_EQ(told_, kLeaves) << "the callbacks were told something else";
        if (released_) return;
        released_ = true;
        for (Memory& memory : all_) {
            if (memory.contents == SH_CONTENTS_DROP || memory.contents == SH_CONTENTS_ZERO)
                memory.lost_begin = memory.lost_end = 0;
            if (memory.contents == SH_CONTENTS_DROP) memory.truth.clear();
            if (memory.contents == SH_CONTENTS_ZERO) memory.truth.assign(memory.bytes, 0);
        }
    }
    void resume() {
        const char* const tags[] = {tag_.c_str()};
        sh_resume_options options = SH_RESUME_OPTIONS_INIT;
        options.tags = tags;
        options.tag_count = 1;
        const sh_status status = sh_resume(device_, &options, nullptr);
        if (!known()) return expect_failure("sh_resume", status, SH_ERROR_NOT_FOUND);
        if (status != SH_OK) {
            expect_failure("sh_resume", status, released_ ? SH_OK : SH_ERROR_INVALID_STATE);
            EXPECT_EQ(state(), uint32_t(released_ ? SH_OCCUPANCY_RELEASED : SH_OCCUPANCY_RUNNING));
            return;
        }
        EXPECT_TRUE(released_) << "resumed twice";
        EXPECT_EQ(state(), uint32_t(SH_OCCUPANCY_RUNNING));
        EXPECT_EQ(told_, kRuns) << "the callbacks were told something else";
        released_ = false;
        compare();
    }
    void compare() const {
        if (released_) return;
        for (const Memory& memory : all_)
            EXPECT_TRUE(memory.is_right())
                << memory.bytes << " bytes of contents " << memory.contents << (memory.constant ? ", constant" : "");
    }
    // One step of a random engine.
    void act() {
        const uint64_t what = random_() % 16;
        if (what < 5 && all_.size() < 12) {
            constexpr uint64_t kSizes[] = {1, 900, 70'000, 600'000, 2 << 20, (2 << 20) + 65'537, 3'500'000};
            const auto contents = SH_CONTENTS_STAGE + static_cast<uint32_t>(random_() % 4);
            const bool staged = contents == SH_CONTENTS_STAGE || contents == SH_CONTENTS_FILE;
            alloc(kSizes[random_() % std::size(kSizes)], contents, staged && random_() % 3 == 0);
        } else if (what < 8 && !all_.empty()) {
            free(random_() % all_.size());
        } else if (what < 11 && !all_.empty()) {
            const size_t i = random_() % all_.size();
            random_() % 2 ? write(i) : touch(i);
        } else if (what < 13) {
            pause_at_random();
        } else {
            resume();
        }
        if (random_() % 8 == 0) compare();
    }
    // Nothing fails any more: everything comes back, and everything can be freed.
    void finish() {
        faulty_ = false;
        if (released_) resume();
        EXPECT_FALSE(released_);
        compare();
        if (known()) {
            pause();
            resume();
        }
        while (!all_.empty() && !testing::Test::HasFailure()) free(all_.size() - 1);
    }

private:
    // Half of the time none.
    uint32_t any_format() { return random_() % 2 ? 0 : static_cast<uint32_t>(1 + random_() % SH_FORMAT_F8_E5M2); }
    bool known() const {
        auto info = sh_sized<sh_occupancy_info>();
        return sh_occupancy_get_info(device_, tag_.c_str(), &info) == SH_OK;
    }
    uint32_t state() const {
        auto info = sh_sized<sh_occupancy_info>();
        EXPECT_SUCCEEDS(sh_occupancy_get_info(device_, tag_.c_str(), &info));
        return info.state;
    }
    // `predicted` is what the model says: SH_OK if only the backend or a lack of memory can be the reason.
    void expect_failure(const char* call, sh_status status, sh_status predicted) const {
        const bool injected = faulty_ && status == SH_ERROR_BACKEND;
        EXPECT_TRUE(injected || status == predicted) << call << ": " << sh_status_string(status) << ", " << why();
        EXPECT_NE(status, SH_OK) << call;
    }

    // What the callbacks were told last of this tag. The engine's own thread calls them for it.
    enum Told { kRuns, kLeaves };
    bool is_meant(const char* const* tags, uint64_t count) const {
        return std::find(tags, tags + count, tag_) != tags + count;
    }
    static int32_t before_pause(const char* const* tags, uint64_t count, char* message, uint64_t bytes, void* data) {
        auto& engine = *static_cast<Engine*>(data);
        if (!engine.is_meant(tags, count)) return 0;
        EXPECT_EQ(engine.told_, kRuns);
        std::string("not now").copy(message, bytes - 1);
        if (engine.refuses_) return 1;
        engine.told_ = kLeaves;
        return 0;
    }
    static void after_resume(const char* const* tags, uint64_t count, void* data) {
        auto& engine = *static_cast<Engine*>(data);
        if (engine.is_meant(tags, count)) engine.told_ = kRuns;
    }

    sh_device* const device_;
    const std::string tag_;
    sh_scope* callbacks_ = nullptr;
    Told told_ = kRuns;
    bool refuses_ = false;
    std::mt19937_64 random_;
    bool faulty_;
    bool released_ = false;
    std::vector<Memory> all_;
};

}  // namespace stagehand::test
