// Sets: members that share slots. Every use compares all bytes of each member at its slot, on a stream or here.
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <thread>

#include <nlohmann/json.hpp>

#include "engine.h"

namespace stagehand::test {
namespace {

const uint64_t kMember = 3 * kPage / 2 + 40;  // no multiple of a page, so that slots share pages
const uint64_t kStride = (kMember + 255) / 256 * 256;

// As many pages as this many slots take.
uint64_t pages_for(uint64_t slots) { return (slots * kStride + kPage - 1) / kPage; }

DeviceSettings room_for(uint64_t slots, const std::string& options = {}) {
    DeviceSettings settings;
    settings.budget_bytes = pages_for(slots) * kPage;
    settings.options += options;
    return settings;
}

struct SetSettings {
    size_t members = 12;
    Origin origin = Origin::pinned;
    uint32_t flags = 0;
    uint64_t call_members = 2, group_members = 0, slots = 0, stride = 0;
    const char* name = "experts";
};

// A runtime with a set, and the expected bytes of each member.
class Experts {
public:
    explicit Experts(TestDevice& device, const SetSettings& settings = {}, const RuntimeSettings& runtime = {})
        : device_(device), settings_(settings) {
        const sh_runtime_options options = runtime.options();
        require(sh_runtime_create(device.get(), &options, &runtime_));
        for (size_t i = 0; i < settings.members; i++) {
            truth.push_back(contents_of(i, 0, kMember));
            sources_.push_back(std::make_unique<Source>(device.get(), settings.origin, truth[i]));
        }
        require(create());
    }
    ~Experts() {
        device_.synchronize();
        sh_runtime_destroy(runtime_);
        EXPECT_EQ(wrong.load(), 0u);
    }

    sh_status create() {
        std::vector<sh_segment> segments;
        std::vector<sh_block_desc> descs(settings_.members, SH_BLOCK_DESC_INIT);
        for (size_t i = 0; i < settings_.members; i++) segments.push_back(sources_[i]->segment());
        for (size_t i = 0; i < settings_.members; i++) {
            descs[i].bytes = kMember;
            descs[i].flags = settings_.flags;
            descs[i].segments = &segments[i];
            descs[i].segment_count = 1;
        }
        sh_set_options options = SH_SET_OPTIONS_INIT;
        options.call_members = settings_.call_members;
        options.group_members = settings_.group_members;
        options.slots = settings_.slots;
        options.stride = settings_.stride;
        options.name = settings_.name;
        blocks.resize(settings_.members);
        return sh_set_create(runtime_, &options, descs.data(), descs.size(), blocks.data(), &set);
    }

    sh_runtime* get() const { return runtime_; }
    sh_set_info info() const {
        auto info = sh_sized<sh_set_info>();
        require(sh_set_get_info(runtime_, set, &info));
        return info;
    }
    sh_status acquire(const std::vector<uint32_t>& members, sh_stream stream = SH_STREAM_HOST, uint32_t flags = 0) {
        slots.resize(members.size());
        return sh_acquire_members(runtime_, set, members.data(), members.size(), stream, flags, &pool, slots.data());
    }
    sh_status release(const std::vector<uint32_t>& members, sh_stream stream = SH_STREAM_HOST) {
        return sh_release_members(runtime_, set, members.data(), members.size(), stream);
    }
    uint8_t* at(uint32_t slot) const { return static_cast<uint8_t*>(pool.address) + slot * info().stride; }
    // Looks at what was acquired, when the stream reaches it.
    sh_status compare(const std::vector<uint32_t>& members, sh_stream stream, int64_t busy_ns = 0) {
        for (size_t i = 0; i < members.size(); i++) {
            const auto look = [this, want = truth[members[i]]](const uint8_t* bytes) {
                wrong += !std::equal(want.begin(), want.end(), bytes);
                seen++;
            };
            if (const sh_status status = device_.bytes().look(stream, at(slots[i]), kMember, look, busy_ns); status)
                return status;
        }
        return SH_OK;
    }
    sh_status use(const std::vector<uint32_t>& members, sh_stream stream = SH_STREAM_HOST, int64_t busy_ns = 0) {
        if (const sh_status status = acquire(members, stream)) return status;
        const sh_status compared = compare(members, stream, busy_ns);
        const sh_status released = release(members, stream);
        return compared ? compared : released;
    }
    Source& source(size_t i) { return *sources_[i]; }

    sh_set set = 0;
    std::vector<sh_block> blocks;
    std::vector<std::vector<uint8_t>> truth;
    sh_view pool = sh_sized<sh_view>();
    std::vector<uint32_t> slots;
    std::atomic<uint64_t> wrong{0}, seen{0};

private:
    static void require(sh_status status) {
        if (status) throw std::runtime_error(why());
    }

    TestDevice& device_;
    const SetSettings settings_;
    sh_runtime* runtime_ = nullptr;
    std::vector<std::unique_ptr<Source>> sources_;
};

std::vector<uint32_t> some(std::mt19937& random, size_t count, size_t members) {
    std::vector<uint32_t> all(members);
    for (uint32_t i = 0; i < members; i++) all[i] = i;
    std::ranges::shuffle(all, random);
    all.resize(count);
    return all;
}

class Sets : public testing::TestWithParam<Origin> {};

TEST_P(Sets, members_are_in_their_slots_whatever_came_before) {
    TestDevice device(room_for(4));
    Experts experts(device, {.origin = GetParam()});
    std::mt19937 random(1);
    const sh_stream stream = GetParam() == Origin::pinned ? device.stream() : SH_STREAM_HOST;
    for (int k = 0; k < 200; k++) SUCCEEDS(experts.use(some(random, 1 + k % 3, 12), k % 4 ? stream : SH_STREAM_HOST));
    device.synchronize();
    EXPECT_EQ(experts.wrong, 0u);
    const sh_set_info info = experts.info();
    EXPECT_EQ(info.slots, 4u);
    EXPECT_EQ(info.stride, kStride);
    EXPECT_EQ(info.members, 12u);
    EXPECT_EQ(info.uses, experts.seen);
    EXPECT_GT(info.hits, 0u);
    EXPECT_EQ(info.evictions, info.uses - info.hits - 4);  // each miss but the first four
}

INSTANTIATE_TEST_SUITE_P(Origins, Sets, testing::ValuesIn(kOrigins),
                         [](const auto& info) { return name_of(info.param); });

// Groups that are called in turn: of two members that are used as often, that whose group comes sooner stays.
TEST(Sets, groups_are_called_in_turn) {
    TestDevice device(room_for(9));
    Experts experts(device, {.group_members = 4});
    for (int step = 0; step < 20; step++)
        for (uint32_t group = 0; group < 3; group++) SUCCEEDS(experts.use({4 * group, 4 * group + 1}));
    // The other two of the second group take empty slots, and one of themselves after that.
    SUCCEEDS(experts.use({6, 7}));
    const uint64_t hits = experts.info().hits;
    for (uint32_t group = 0; group < 3; group++) SUCCEEDS(experts.use({4 * group, 4 * group + 1}));
    EXPECT_EQ(experts.info().hits, hits + 6);
}

TEST(Sets, step_lines_tell_the_uses_of_each_group_in_the_step) {
    const std::string path = "telemetry-sets-" + std::to_string(getpid()) + ".jsonl";
    TestDevice device(room_for(4));
    Experts experts(device, {.group_members = 4});
    SUCCEEDS(experts.use({0, 1}));
    sh_scope* scope = nullptr;
    SUCCEEDS(sh_telemetry_start(experts.get(), nullptr, path.c_str(), &scope));
    for (const uint32_t member : {5, 6}) {
        SUCCEEDS(sh_step_begin(experts.get(), nullptr));
        SUCCEEDS(experts.use({0, 1}));
        SUCCEEDS(experts.use({member, 7}));
        SUCCEEDS(sh_step_end(experts.get()));
    }
    SUCCEEDS(sh_scope_end(scope));
    std::ifstream file(path);
    size_t step = 0;
    for (std::string line; std::getline(file, line); step++) {
        auto told = R"({"name": "experts", "members": 12, "slots": 4, "uses": 4, "group_uses": [2, 2, 0]})"_json;
        told.update({{"stride", kStride}, {"hits", 2 + step}, {"evictions", step}, {"group_hits", {2, step, 0}}});
        EXPECT_EQ(nlohmann::json::parse(line).at("sets").at(0), told);
    }
    EXPECT_EQ(step, 2u);
    EXPECT_EQ(unlink(path.c_str()), 0);
}

// The streams are busy with members whose slots others get at once.
TEST(Sets, a_slot_that_streams_still_read_is_not_overwritten) {
    TestDevice device(room_for(3, on_host_backend() ? ";latency=100us" : ""));
    Experts experts(device);
    const sh_stream streams[] = {device.stream(), device.stream()};
    std::mt19937 random(2);
    for (int k = 0; k < 60; k++) SUCCEEDS(experts.use(some(random, 1 + k % 2, 12), streams[k % 2], 300'000));
    device.synchronize();
    EXPECT_EQ(experts.seen, 90u);
}

// None of the members of a call takes the slot of another one, although both were used least.
TEST(Sets, members_of_a_call_stay_for_it) {
    TestDevice device(room_for(4));
    Experts experts(device, {.call_members = 4});
    SUCCEEDS(experts.use({0, 1, 2, 3}));
    for (int k = 0; k < 5; k++) SUCCEEDS(experts.use({1, 2, 3}));
    SUCCEEDS(experts.use({4, 5, 6, 0}));
    const sh_set_info info = experts.info();
    EXPECT_EQ(info.evictions, 3u);
    EXPECT_EQ(info.hits, 5u * 3 + 1);
    std::vector<uint32_t> slots = experts.slots;
    std::ranges::sort(slots);
    EXPECT_EQ(slots, (std::vector<uint32_t>{0, 1, 2, 3}));
}

TEST(Sets, what_is_used_most_stays) {
    TestDevice device(room_for(4));
    Experts experts(device);
    uint64_t kept = 0;
    for (uint32_t k = 0; k < 200; k++) {
        const uint64_t before = experts.info().hits;
        SUCCEEDS(experts.use({0, 1}));
        kept += experts.info().hits - before;
        SUCCEEDS(experts.use({2 + k % 10}));
    }
    EXPECT_GE(kept, 390u);
}

TEST(Sets, a_call_that_is_larger_than_the_pool_is_told_what_would_do) {
    TestDevice device(room_for(4));
    Experts experts(device);
    EXPECT_REFUSED(experts.acquire({0, 1, 2, 3, 4, 0}), SH_ERROR_BUDGET,
                   "needs 5 members of block \"experts\" at once, but its pool has 4 slots");
    EXPECT_NE(why().find("more"), std::string::npos) << why();
    SUCCEEDS(experts.use({0, 1, 2, 3}));  // nothing is held
    SUCCEEDS(experts.use({4, 0}));
}

TEST(Sets, a_set_may_have_fewer_slots_than_there_is_memory_for) {
    TestDevice device(room_for(6));
    Experts experts(device, {.slots = 4});
    SUCCEEDS(experts.use({0, 1, 2, 3}));
    EXPECT_EQ(experts.info().slots, 4u);
    EXPECT_REFUSED(experts.acquire({0, 1, 2, 3, 4}), SH_ERROR_BUDGET, "create the set with more slots");
}

TEST(Sets, other_views_may_hold_the_slots) {
    TestDevice device(room_for(3));
    Experts experts(device);
    SUCCEEDS(experts.acquire({0, 1}));
    EXPECT_REFUSED(experts.acquire({2, 3}), SH_ERROR_HELD, "all 3 slots of block \"experts\"");
    SUCCEEDS(experts.acquire({0, 2}));
    EXPECT_REFUSED(experts.release({0, 0, 0}), SH_ERROR_INVALID_STATE, "All stay held");
    SUCCEEDS(experts.release({0, 1}));
    SUCCEEDS(experts.release({0, 2}));
    EXPECT_EQ(experts.release({2}), SH_ERROR_INVALID_STATE);
    SUCCEEDS(experts.use({3, 4, 5}));
}

TEST(Sets, members_are_blocks) {
    TestDevice device(room_for(3));
    Experts experts(device);
    auto view = sh_sized<sh_view>();
    SUCCEEDS(sh_acquire(experts.get(), experts.blocks[7], SH_STREAM_HOST, 0, &view));
    EXPECT_EQ(view.bytes, kMember);
    EXPECT_EQ(view.flags & SH_VIEW_FIXED_ADDRESS, 0u);
    EXPECT_EQ(device.bytes().read(view.address, kMember), experts.truth[7]);
    SUCCEEDS(experts.acquire({7}));
    EXPECT_EQ(experts.at(experts.slots[0]), view.address);
    SUCCEEDS(sh_verify_block(experts.get(), experts.blocks[7], SH_STREAM_HOST));
    SUCCEEDS(experts.release({7}));
    SUCCEEDS(sh_release(experts.get(), experts.blocks[7], SH_STREAM_HOST));

    auto state = sh_sized<sh_block_state>();
    SUCCEEDS(sh_block_get_state(experts.get(), experts.blocks[7], &state));
    EXPECT_EQ(state.state, SH_BLOCK_READY);
    SUCCEEDS(sh_block_get_state(experts.get(), experts.blocks[8], &state));
    EXPECT_EQ(state.state, SH_BLOCK_UNLOADED);
    EXPECT_EQ(state.address, nullptr);

    // A source that changes.
    SUCCEEDS(sh_source_update_begin(experts.get(), &experts.blocks[7], 1));
    EXPECT_EQ(experts.use({7}), SH_ERROR_INVALID_STATE);
    experts.truth[7] = contents_of(7, 1, kMember);
    experts.source(7).write(experts.truth[7]);
    SUCCEEDS(sh_source_update_end(experts.get(), &experts.blocks[7], 1));
    SUCCEEDS(experts.use({7}));

    // A protected member stays.
    sh_scope* scope = nullptr;
    SUCCEEDS(sh_protect_blocks(experts.get(), &experts.blocks[7], 1, &scope));
    for (uint32_t i = 0; i < 7; i++) SUCCEEDS(experts.use({i}));
    const uint64_t hits = experts.info().hits;
    SUCCEEDS(experts.use({7}));
    EXPECT_EQ(experts.info().hits, hits + 1);
    SUCCEEDS(sh_scope_end(scope));

    // A member that goes.
    SUCCEEDS(sh_unregister_blocks(experts.get(), &experts.blocks[7], 1));
    EXPECT_REFUSED(experts.use({7}), SH_ERROR_INVALID_HANDLE, "member 7");
    SUCCEEDS(experts.use({6, 8}));
}

TEST(Sets, changes_are_written_back_before_a_slot_gets_another_member) {
    TestDevice device(room_for(3));
    for (const Origin origin : {Origin::pinned, Origin::pageable}) {
        Experts experts(device, {.origin = origin, .flags = SH_BLOCK_MUTABLE});
        std::mt19937 random(3);
        for (uint64_t k = 1; k < 40; k++) {
            const uint32_t member = random() % 12;
            SUCCEEDS(experts.acquire({member}));
            SUCCEEDS(experts.compare({member}, SH_STREAM_HOST));
            experts.truth[member] = contents_of(member, k, kMember);
            SUCCEEDS(device.bytes().write(SH_STREAM_HOST, experts.at(experts.slots[0]), experts.truth[member]));
            SUCCEEDS(sh_mark_dirty(experts.get(), experts.blocks[member]));
            SUCCEEDS(experts.release({member}));
        }
        SUCCEEDS(sh_write_back(experts.get(), nullptr, 0));
        for (size_t i = 0; i < 12; i++) EXPECT_EQ(experts.source(i).read(), experts.truth[i]) << i;
    }
}

TEST(Sets, the_pool_follows_the_budget) {
    TestDevice device(room_for(10));
    Experts experts(device);
    std::mt19937 random(4);
    SUCCEEDS(experts.use({0}));
    EXPECT_EQ(experts.info().slots, 10u);
    for (const uint64_t slots : {4u, 12u, 2u, 7u}) {
        SUCCEEDS(sh_device_set_budget(device.get(), pages_for(slots) * kPage));
        for (int k = 0; k < 30; k++) {
            SUCCEEDS(sh_step_begin(experts.get(), nullptr));
            SUCCEEDS(experts.use(some(random, 2, 12)));
            SUCCEEDS(sh_step_end(experts.get()));
        }
        EXPECT_GE(experts.info().slots, slots);
        EXPECT_LE(experts.info().slots, slots + 1);  // rounding to pages
    }
    EXPECT_REFUSED(sh_device_set_budget(device.get(), kPage), SH_ERROR_BUDGET, "");
}

// Blocks in the order stay whole if they fit, and the set has the rest: at least what a call needs.
TEST(Sets, dense_blocks_come_first) {
    for (const size_t count : {5, 12}) {
        TestDevice device({.budget_bytes = (count == 5 ? 20 + pages_for(5) : 40) * kPage});
        Experts experts(device);
        const std::vector<uint8_t> bytes = contents_of(99, 0, 4 * kPage);
        Source source(device.get(), Origin::pinned, bytes);
        std::vector<sh_block> dense;
        while (dense.size() < count) dense.push_back(register_block(experts.get(), source.segment()));
        std::mt19937 random(5);
        for (int step = 0; step < 6; step++) {
            SUCCEEDS(sh_step_begin(experts.get(), nullptr));
            for (const sh_block block : dense) {
                EXPECT_EQ(device.bytes().read(held_view(experts.get(), block).address, bytes.size()), bytes);
                SUCCEEDS(experts.use(some(random, 2, 12)));
                let_go(experts.get(), block);
            }
            SUCCEEDS(sh_step_end(experts.get()));
        }
        auto stats = sh_sized<sh_runtime_stats>();
        SUCCEEDS(sh_runtime_get_stats(experts.get(), &stats));
        EXPECT_EQ(stats.ring_bytes == 0 && stats.resident_bytes == 20 * kPage, count == 5);
        EXPECT_EQ(experts.info().slots, count == 5 ? 5u : 2u);
        for (const sh_block block : dense) SUCCEEDS(sh_unregister_blocks(experts.get(), &block, 1));
    }
}

TEST(Sets, two_sets_divide_the_memory) {
    TestDevice device(room_for(12));
    Experts experts(device, {.call_members = 2});
    const sh_set first = experts.set;
    const std::vector<sh_block> blocks = experts.blocks;
    SUCCEEDS(experts.create());  // of the same sources
    std::mt19937 random(6);
    for (int k = 0; k < 40; k++) {
        SUCCEEDS(experts.use(some(random, 2, 12)));
        auto pool = sh_sized<sh_view>();
        const auto members = some(random, 2, 12);
        uint32_t slots[2];
        SUCCEEDS(sh_acquire_members(experts.get(), first, members.data(), 2, SH_STREAM_HOST, 0, &pool, slots));
        for (int i = 0; i < 2; i++)
            EXPECT_EQ(device.bytes().read(static_cast<uint8_t*>(pool.address) + slots[i] * kStride, kMember),
                      experts.truth[members[i]]);
        SUCCEEDS(sh_release_members(experts.get(), first, members.data(), 2, SH_STREAM_HOST));
    }
    EXPECT_GE(experts.info().slots, 5u);  // rounding to pages
    EXPECT_LE(experts.info().slots, 6u);
    SUCCEEDS(sh_set_destroy(experts.get(), first));
    EXPECT_EQ(sh_set_destroy(experts.get(), first), SH_ERROR_INVALID_HANDLE);
    EXPECT_EQ(sh_unregister_blocks(experts.get(), blocks.data(), 1), SH_ERROR_INVALID_HANDLE);
    SUCCEEDS(experts.use({3, 4}));
}

TEST(Sets, a_set_leaves_nothing_behind) {
    TestDevice device(room_for(5));
    Experts experts(device);
    for (int k = 0; k < 5; k++) {
        SUCCEEDS(experts.use({0, 1, 2}));
        SUCCEEDS(experts.acquire({1}));
        EXPECT_EQ(sh_set_destroy(experts.get(), experts.set), SH_ERROR_INVALID_STATE);
        SUCCEEDS(experts.release({1}));
        SUCCEEDS(sh_set_destroy(experts.get(), experts.set));
        EXPECT_EQ(experts.use({1}), SH_ERROR_INVALID_HANDLE);
        auto stats = sh_sized<sh_runtime_stats>();
        SUCCEEDS(sh_runtime_get_stats(experts.get(), &stats));
        EXPECT_EQ(stats.held_bytes, 0u);
        SUCCEEDS(experts.create());
    }
}

TEST(Sets, members_that_are_guessed_are_there) {
    TestDevice device(room_for(4));
    Experts experts(device);
    SUCCEEDS(experts.use({0}));
    const uint32_t guessed[] = {1, 2};
    const float chances[] = {0.9f, 0.5f};
    SUCCEEDS(sh_prefetch_members(experts.get(), experts.set, guessed, chances, 2));
    SUCCEEDS(experts.use({1, 2}));
    EXPECT_EQ(experts.info().hits, 2u);
}

TEST(Sets, a_pause_takes_the_pool_and_brings_it_back) {
    if (devices_without_pages()) GTEST_SKIP() << "memory without pages cannot be paused";
    TestDevice device(room_for(4));
    Experts experts(device);
    for (int k = 0; k < 3; k++) {
        SUCCEEDS(experts.use({1, 2}));
        const void* const before = experts.pool.address;
        sh_pause_options pause = SH_PAUSE_OPTIONS_INIT;
        SUCCEEDS(sh_pause(device.get(), &pause, nullptr));
        EXPECT_EQ(device.memory().used_bytes, 0u);
        EXPECT_EQ(experts.use({1}), SH_ERROR_INVALID_STATE);
        sh_resume_options resume = SH_RESUME_OPTIONS_INIT;
        SUCCEEDS(sh_resume(device.get(), &resume, nullptr));
        SUCCEEDS(experts.use({2, 3}));
        EXPECT_EQ(experts.pool.address, before);
    }
}

TEST(Sets, without_pages_the_pool_is_one_allocation) {
    DeviceSettings settings = room_for(5);
    settings.map_pages = false;
    TestDevice device(settings);
    Experts experts(device);
    std::mt19937 random(7);
    for (int k = 0; k < 60; k++) SUCCEEDS(experts.use(some(random, 2, 12)));
    SUCCEEDS(sh_device_set_budget(device.get(), pages_for(3) * kPage));
    for (int k = 0; k < 60; k++) {
        SUCCEEDS(sh_step_begin(experts.get(), nullptr));
        SUCCEEDS(experts.use(some(random, 2, 12)));
        SUCCEEDS(sh_step_end(experts.get()));
    }
}

// Threads that use, change and unregister members of one set.
TEST(Sets, threads_share_a_set) {
    TestDevice device(room_for(7));
    Experts experts(device, {.members = 40});
    std::atomic<uint64_t> refused{0};
    const auto work = [&](uint32_t seed) {
        std::mt19937 random(seed);
        auto pool = sh_sized<sh_view>();
        uint32_t slots[2];
        for (int k = 0; k < 300; k++) {
            const auto members = some(random, 2, 40);
            const sh_status status =
                sh_acquire_members(experts.get(), experts.set, members.data(), 2, SH_STREAM_HOST, 0, &pool, slots);
            if (status == SH_ERROR_HELD) {
                refused++;
                continue;
            }
            if (status != SH_OK) {
                ADD_FAILURE() << why();
                return;
            }
            for (int i = 0; i < 2; i++)
                experts.wrong += device.bytes().read(static_cast<uint8_t*>(pool.address) + slots[i] * kStride,
                                                     kMember) != experts.truth[members[i]];
            EXPECT_SUCCEEDS(sh_release_members(experts.get(), experts.set, members.data(), 2, SH_STREAM_HOST));
            if (k % 8 == 0) {
                const auto guess = some(random, 3, 40);
                ignore(sh_prefetch_members(experts.get(), experts.set, guess.data(), nullptr, 3));
            }
        }
    };
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < 3; i++) threads.emplace_back(work, i);
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(refused, 0u);  // three threads want six slots at once
}

}  // namespace
}  // namespace stagehand::test
