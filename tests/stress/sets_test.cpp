// Threads that use, guess, change and protect members of one set, while another thread changes the budget and pauses
// the device, and while calls into the backend take random times: each member that is held has one of the contents that
// its source had meanwhile.
#include <atomic>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "engine.h"
#include "scale.h"

namespace stagehand::test {
namespace {

constexpr uint32_t kMembers = 24, kGroup = 8, kThreads = 3, kMostUsed = 3;
constexpr size_t kWords = 1500;  // of a member: no multiple of a page
constexpr uint64_t kBytes = kWords * sizeof(uint64_t);

// The least and the most slots. All threads find slots for what they use at once.
uint64_t budget_of(uint64_t slots) { return (slots * (kBytes + 256) / kPage + 1) * kPage; }
constexpr uint64_t kLeastSlots = kThreads * kMostUsed + 2, kMostSlots = 20;

// A source whose words all tell the member and its version.
struct Versioned {
    std::vector<uint64_t> words = std::vector<uint64_t>(kWords);
    std::atomic<uint64_t> begun{0}, ended{0};  // changes
    std::mutex changing;
};

class Engine {
public:
    Engine(const std::string& plan, bool pages) : device_(settings(plan, pages)) {
        const sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
        EXPECT_SUCCEEDS(sh_runtime_create(device_.get(), &options, &runtime_));
        std::vector<sh_segment> segments(kMembers);
        std::vector<sh_block_desc> descs(kMembers, SH_BLOCK_DESC_INIT);
        for (uint32_t i = 0; i < kMembers; i++) {
            fill(i, 0);
            segments[i] = memory_segment(sources_[i].words.data(), kBytes);
            descs[i].flags = i % 3 ? uint32_t(SH_BLOCK_PIN) : 0;
            descs[i].bytes = kBytes;
            descs[i].segments = &segments[i];
            descs[i].segment_count = 1;
        }
        sh_set_options set = SH_SET_OPTIONS_INIT;
        set.call_members = kMostUsed;
        set.group_members = kGroup;
        EXPECT_SUCCEEDS(sh_set_create(runtime_, &set, descs.data(), kMembers, blocks_, &set_));
    }
    ~Engine() {
        device_.synchronize();
        sh_runtime_destroy(runtime_);
        EXPECT_EQ(wrong_, 0u);
    }

    void work(uint32_t seed, uint64_t calls) {
        std::mt19937 random(seed);
        const sh_stream stream = seed % 2 ? stream_of() : SH_STREAM_HOST;
        for (uint64_t k = 0; k < calls; k++) {
            const uint32_t group = static_cast<uint32_t>(k) / 4 % (kMembers / kGroup) * kGroup;
            uint32_t members[kMostUsed];
            const uint32_t count = 1 + random() % kMostUsed;
            for (uint32_t& member : members) member = group + random() % kGroup;
            switch (random() % 12) {
                case 0:
                    change(members[0]);
                    break;
                case 1:
                    ignore(sh_prefetch_members(runtime_, set_, members, nullptr, count));
                    break;
                case 2:
                    protect(members[0]);
                    break;
                default:
                    use({members, count}, stream);
            }
        }
    }
    // Ends when the others have.
    void disturb(const std::atomic<uint32_t>& at_work) {
        std::mt19937 random(99);
        while (at_work) {
            const uint64_t slots = kLeastSlots + random() % (kMostSlots - kLeastSlots);
            ignore(sh_device_set_budget(device_.get(), budget_of(slots)));
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
            const sh_pause_options pause = SH_PAUSE_OPTIONS_INIT;
            const sh_resume_options resume = SH_RESUME_OPTIONS_INIT;
            if (random() % 4 || !pages_ || sh_pause(device_.get(), &pause, nullptr)) continue;
            EXPECT_SUCCEEDS(sh_resume(device_.get(), &resume, nullptr));
        }
    }
    uint64_t uses() const { return uses_; }

private:
    DeviceSettings settings(const std::string& plan, bool pages) {
        DeviceSettings settings;
        settings.name = "fault";
        settings.options = "wrap=host;capacity=64MiB;staging_piece=8KiB;poison=1;" + plan;
        settings.budget_bytes = budget_of(kMostSlots);
        settings.map_pages = pages_ = pages;
        return settings;
    }
    sh_stream stream_of() {
        const std::lock_guard lock(streams_);
        return device_.stream();
    }
    void fill(uint32_t member, uint64_t version) {
        std::ranges::fill(sources_[member].words, uint64_t(member) << 32 | version);
    }
    // Refused while others hold it or change it, and during a pause.
    void change(uint32_t member) {
        Versioned& source = sources_[member];
        const std::lock_guard lock(source.changing);
        if (sh_source_update_begin(runtime_, &blocks_[member], 1)) return;
        fill(member, ++source.begun);
        source.ended = source.begun.load();
        EXPECT_SUCCEEDS(sh_source_update_end(runtime_, &blocks_[member], 1));
    }
    void protect(uint32_t member) {
        sh_scope* scope = nullptr;
        if (sh_protect_blocks(runtime_, &blocks_[member], 1, &scope)) return;
        EXPECT_SUCCEEDS(sh_scope_end(scope));
    }
    void use(std::span<const uint32_t> members, sh_stream stream) {
        uint32_t slots[kMostUsed];
        uint64_t ended[kMostUsed];
        auto pool = sh_sized<sh_view>();
        for (size_t i = 0; i < members.size(); i++) ended[i] = sources_[members[i]].ended;
        const sh_status status =
            sh_acquire_members(runtime_, set_, members.data(), members.size(), stream, 0, &pool, slots);
        // Others may be changing a source, hold or protect the slots, or pause the device.
        if (status == SH_ERROR_INVALID_STATE || status == SH_ERROR_HELD || status == SH_ERROR_BUSY ||
            status == SH_ERROR_BUDGET)
            return;
        ASSERT_EQ(status, SH_OK) << why();
        for (size_t i = 0; i < members.size(); i++) {
            const auto look = [this, member = members[i], least = ended[i]](const uint8_t* bytes) {
                const auto* const words = reinterpret_cast<const uint64_t*>(bytes);
                const uint64_t version = words[0] & UINT32_MAX;
                wrong_ += words[0] >> 32 != member || version < least || version > sources_[member].begun ||
                          words[kWords - 1] != words[0] || words[kWords / 2] != words[0];
            };
            const uint64_t stride = (kBytes + 255) / 256 * 256;
            EXPECT_SUCCEEDS(
                device_.bytes().look(stream, static_cast<uint8_t*>(pool.address) + slots[i] * stride, kBytes, look));
        }
        uses_ += members.size();
        EXPECT_SUCCEEDS(sh_release_members(runtime_, set_, members.data(), members.size(), stream));
    }

    bool pages_ = true;
    TestDevice device_;
    sh_runtime* runtime_ = nullptr;
    sh_set set_ = 0;
    sh_block blocks_[kMembers] = {};
    Versioned sources_[kMembers];
    std::mutex streams_;
    std::atomic<uint64_t> wrong_{0}, uses_{0};
};

void run(const std::string& plan, bool pages) {
    Engine engine(plan, pages);
    std::atomic<uint32_t> at_work{kThreads};
    std::vector<std::thread> threads;
    const uint64_t calls = scaled(6000);
    for (uint32_t i = 0; i < kThreads; i++)
        threads.emplace_back([&, i] {
            engine.work(i, calls);
            at_work--;
        });
    engine.disturb(at_work);
    for (auto& thread : threads) thread.join();
    EXPECT_GT(engine.uses(), calls);
}

TEST(SetsUnderStress, members_are_right) { run("", true); }
TEST(SetsUnderStress, members_are_right_if_calls_take_random_times) { run("delay_us=60", true); }
TEST(SetsUnderStress, members_are_right_without_pages) { run("delay_us=30", false); }

}  // namespace
}  // namespace stagehand::test
