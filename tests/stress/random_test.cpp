// Several threads make random calls with two runtimes on one device. Each used byte is compared with a plain record of
// its expected value. Each status must be allowed at that place. The budget holds at any instant.
#include <array>
#include <condition_variable>
#include <random>
#include <shared_mutex>
#include <thread>

#include "engine.h"
#include "host/host_backend.h"
#include "scale.h"

namespace stagehand::test {
namespace {

constexpr size_t kBlocks = 28;  // in the order, some small and packed
constexpr size_t kUnordered = 8;
constexpr uint64_t kMostPages = 160;

std::vector<BlockSpec> specs(uint64_t seed) {
    std::vector<BlockSpec> specs = unequal_blocks(kBlocks, Origin::pinned);
    for (size_t i = 0; i < specs.size(); i++) {
        specs[i].origin = kOrigins[(i * 7 + seed) % 5];
        const bool memory = specs[i].origin == Origin::pinned || specs[i].origin == Origin::pageable;
        if (memory && i % 3 == 0) specs[i].flags |= SH_BLOCK_MUTABLE;
        if (i % 11 == 4) specs[i].flags |= SH_BLOCK_WHOLE;
    }
    for (size_t i = 0; i < kUnordered; i++)
        specs.push_back({(1 + i % 4) * kPage - i, kOrigins[i % 5], SH_BLOCK_UNORDERED});
    return specs;
}

// A model that several threads use. The mutex of a block keeps one thread from changing its contents while another
// thread uses them. A real engine has to ensure this too.
struct Party {
    Party(TestDevice& device, uint64_t seed, uint32_t threads)
        : specs(test::specs(seed)), model(device, specs, options(threads)), own_stream(device.stream()) {}

    static sh_runtime_options options(uint32_t threads) {
        sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
        options.max_held = threads + 1;
        return options;
    }

    bool is_mutable(size_t i) const { return specs[i].flags & SH_BLOCK_MUTABLE; }

    const std::vector<BlockSpec> specs;
    Model model;
    const sh_stream own_stream;  // of mutable blocks: their uses are in one order
    std::array<std::shared_mutex, kBlocks + kUnordered> blocks;
    std::mutex stepping;
    std::atomic<uint64_t> version{1};
};

class Worker {
public:
    Worker(TestDevice& device, std::vector<Party*> parties, uint64_t seed)
        : device_(device), parties_(std::move(parties)), random_(seed) {
        EXPECT_SUCCEEDS(sh_stream_create(device_.get(), &stream_));
    }
    ~Worker() {
        // Others may be in a step in which it was used.
        for (Party* party : parties_) EXPECT_SUCCEEDS(sh_stream_forget(party->model.runtime(), stream_));
        sh_stream_destroy(device_.get(), stream_);
    }

    void operate() {
        Party& party = *parties_[pick(parties_.size())];
        switch (pick(32)) {
            case 0:
                return change(party);
            case 1:
                return invalidate(party);
            case 2:
            case 3:
                return overwrite(party);
            case 4:
                return write_back(party);
            case 5:
                return budget();
            case 6:
                return schedule(party);
            case 7:
                return plan(party);
            case 8:
            case 9:
                return come_and_go(party);
            case 10:
                return forget();
            case 11:
            case 12:
                return use_many(party);
            case 13:
                return prefetch(party);
            case 14:
                return inspect(party);
            case 15:
                return allow(sh_runtime_synchronize(party.model.runtime()), {}, "synchronize");
            case 16:
            case 17:
            case 18:
            case 19:
                return step(party);
            default:
                return use(party, pick(kBlocks + kUnordered));
        }
    }

private:
    size_t pick(size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random_); }

    void allow(sh_status status, std::initializer_list<sh_status> also, const char* what) {
        const bool known = status == SH_OK || std::find(also.begin(), also.end(), status) != also.end();
        if (!known) ADD_FAILURE() << what << ": " << sh_status_string(status) << ": " << why();
    }
    void allow_acquire(sh_status status, const char* what) {
        allow(status, {SH_NOT_READY, SH_ERROR_HELD, SH_ERROR_BUSY, SH_ERROR_INVALID_STATE, SH_ERROR_BUDGET}, what);
    }

    sh_stream stream_for(Party& party, size_t i) {
        if (party.is_mutable(i)) return party.own_stream;
        return pick(3) ? stream_ : SH_STREAM_HOST;
    }

    void use(Party& party, size_t i) {
        std::shared_lock lock(party.blocks[i]);
        allow_acquire(party.model.use(i, stream_for(party, i), pick(8) ? 0 : SH_ACQUIRE_NO_WAIT), "use");
    }

    void use_many(Party& party) {
        const bool unordered = pick(2);
        std::vector<size_t> set;
        for (size_t k = 0; k < 3; k++) set.push_back(unordered ? kBlocks + pick(kUnordered) : pick(kBlocks));
        std::sort(set.begin(), set.end());
        set.erase(std::unique(set.begin(), set.end()), set.end());
        if (std::any_of(set.begin(), set.end(), [&](size_t i) { return party.is_mutable(i); })) return;
        std::vector<std::shared_lock<std::shared_mutex>> locks;
        std::vector<sh_block> ids;
        std::vector<sh_view> views(set.size(), SH_VIEW_INIT);
        for (const size_t i : set) {
            locks.emplace_back(party.blocks[i]);
            ids.push_back(party.model.id(i));
        }
        const sh_stream stream = pick(2) ? stream_ : SH_STREAM_HOST;
        const sh_status status =
            sh_acquire_many(party.model.runtime(), ids.data(), ids.size(), stream, 0, views.data());
        allow_acquire(status, "acquire_many");
        if (status != SH_OK) return;
        for (size_t k = 0; k < set.size(); k++) allow(party.model.compare(set[k], views[k], stream), {}, "compare");
        for (const sh_block id : ids) allow(sh_release(party.model.runtime(), id, stream), {}, "release");
    }

    // Gives the source other contents.
    void change(Party& party) {
        const size_t i = pick(kBlocks + kUnordered);
        if (party.is_mutable(i)) return;
        std::unique_lock lock(party.blocks[i]);
        const sh_block id = party.model.id(i);
        const sh_status begun = sh_source_update_begin(party.model.runtime(), &id, 1);
        allow(begun, {}, "source_update_begin");
        if (begun != SH_OK) return;
        EXPECT_EQ(sh_source_update_begin(party.model.runtime(), &id, 1), SH_ERROR_INVALID_STATE);
        sh_view view = SH_VIEW_INIT;
        EXPECT_EQ(sh_acquire(party.model.runtime(), id, SH_STREAM_HOST, 0, &view), SH_ERROR_INVALID_STATE);
        party.model.change(i, party.version++);
        allow(sh_source_update_end(party.model.runtime(), &id, 1), {}, "source_update_end");
    }

    void invalidate(Party& party) {
        const size_t i = pick(kBlocks + kUnordered);
        if (party.is_mutable(i)) return;  // the engine's changes would be lost
        const sh_block id = party.model.id(i);
        allow(sh_invalidate_blocks(party.model.runtime(), &id, 1), {}, "invalidate");
    }

    // The engine changes a mutable block in its stream.
    void overwrite(Party& party) {
        const size_t i = pick(kBlocks);
        if (!party.is_mutable(i)) return;
        std::unique_lock lock(party.blocks[i]);
        sh_view view = SH_VIEW_INIT;
        const sh_status status = sh_acquire(party.model.runtime(), party.model.id(i), party.own_stream, 0, &view);
        allow_acquire(status, "acquire to change");
        if (status != SH_OK) return;
        allow(party.model.compare(i, view, party.own_stream), {}, "compare");
        allow(sh_mark_dirty(party.model.runtime(), view.block), {}, "mark_dirty");
        party.model.set_truth(i, contents_of(i, party.version++, view.bytes));
        allow(device_.bytes().write(party.own_stream, view.address, *party.model.truth(i)), {}, "write");
        allow(sh_release(party.model.runtime(), view.block, party.own_stream), {}, "release");
    }

    void write_back(Party& party) {
        const size_t i = pick(kBlocks);
        const sh_block id = party.model.id(i);
        const bool all = pick(2);
        allow(sh_write_back(party.model.runtime(), all ? nullptr : &id, all ? 0 : 1), {SH_ERROR_INVALID_STATE},
              "write_back");
    }

    void budget() {
        const uint64_t pages = 90 + pick(kMostPages - 89);
        allow(sh_device_set_budget(device_.get(), pages * kPage), {SH_ERROR_BUDGET}, "set_budget");
    }

    std::vector<size_t> order() {
        std::vector<size_t> order = pick(2) ? forward(kBlocks) : forward_backward(kBlocks);
        if (pick(3) == 0) std::shuffle(order.begin(), order.end(), random_);
        if (pick(4) == 0) order.resize(order.size() / 2 + pick(order.size() / 2));
        return order;
    }

    void schedule(Party& party) {
        allow(party.model.schedule(pick(5) ? order() : std::vector<size_t>{}, pick(3) * 500), {}, "set_schedule");
    }

    void plan(Party& party) {
        sh_plan_options options = SH_PLAN_OPTIONS_INIT;
        options.flags = pick(2) ? SH_PLAN_DRY_RUN : 0;
        if (options.flags) options.budget_bytes = pick(kMostPages) * kPage;
        sh_plan_info info = SH_PLAN_INFO_INIT;
        allow(sh_plan(party.model.runtime(), &options, &info), {SH_ERROR_BUDGET, SH_ERROR_BUSY, SH_ERROR_INVALID_STATE},
              "plan");
    }

    // Registers blocks that only this thread uses, and unregisters them.
    void come_and_go(Party& party) {
        std::vector<std::vector<uint8_t>> sources;
        std::vector<sh_segment> segments(3, SH_SEGMENT_INIT);
        std::vector<sh_block_desc> descs(3, SH_BLOCK_DESC_INIT);
        std::vector<sh_block> ids(3);
        for (size_t k = 0; k < 3; k++) {
            sources.push_back(contents_of(1000 + k, party.version++, 1 + pick(3 * kPage)));
            segments[k].kind = SH_SOURCE_POINTER;
            segments[k].pointer = sources[k].data();
            segments[k].bytes = descs[k].bytes = sources[k].size();
            descs[k].segments = &segments[k];
            descs[k].segment_count = 1;
            descs[k].flags = pick(2) ? SH_BLOCK_UNORDERED : 0;
        }
        const sh_status registered = sh_register_blocks(party.model.runtime(), descs.data(), 3, ids.data());
        allow(registered, {}, "register");
        if (registered != SH_OK) return;
        for (size_t k = 0; k < 3; k++) {
            sh_view view = SH_VIEW_INIT;
            const sh_status status = sh_acquire(party.model.runtime(), ids[k], SH_STREAM_HOST, 0, &view);
            allow_acquire(status, "acquire of a guest");
            if (status != SH_OK) continue;
            EXPECT_EQ(device_.bytes().read(view.address, sources[k].size()), sources[k]);
            if (pick(3) == 0) {
                EXPECT_EQ(sh_unregister_blocks(party.model.runtime(), ids.data(), 3), SH_ERROR_INVALID_STATE);
            }
            allow(sh_release(party.model.runtime(), ids[k], SH_STREAM_HOST), {}, "release of a guest");
        }
        allow(sh_unregister_blocks(party.model.runtime(), ids.data(), 3), {}, "unregister");
        sh_view view = SH_VIEW_INIT;
        EXPECT_EQ(sh_acquire(party.model.runtime(), ids[0], SH_STREAM_HOST, 0, &view), SH_ERROR_INVALID_HANDLE);
    }

    void forget() {
        for (Party* party : parties_) allow(sh_stream_forget(party->model.runtime(), stream_), {}, "forget");
        sh_stream_destroy(device_.get(), stream_);
        EXPECT_SUCCEEDS(sh_stream_create(device_.get(), &stream_));
    }

    void prefetch(Party& party) {
        const sh_block ids[] = {party.model.id(kBlocks + pick(kUnordered)), party.model.id(pick(kBlocks)),
                                party.model.id(kBlocks + pick(kUnordered))};
        allow(sh_prefetch(party.model.runtime(), ids, 3), {}, "prefetch");
    }

    void inspect(Party& party) {
        const sh_block_state state = party.model.state(pick(kBlocks + kUnordered));
        EXPECT_LE(state.present_bytes, state.bytes);
        EXPECT_LE(state.resident_bytes + state.streamed_bytes, state.bytes);
        EXPECT_LE(state.state, uint32_t(SH_BLOCK_DRAINING));
        EXPECT_EQ(party.model.stats().lost, 0u);
    }

    void step(Party& party) {
        std::unique_lock stepping(party.stepping, std::try_to_lock);
        if (!stepping) return;
        const sh_status begun = sh_step_begin(party.model.runtime(), nullptr);
        allow(begun, {SH_ERROR_BUDGET, SH_ERROR_BUSY}, "step_begin");
        if (begun != SH_OK) return;
        const bool shuffled = pick(4) == 0;
        for (size_t n = 0; n < kBlocks; n++) use(party, shuffled ? pick(kBlocks) : n);
        for (size_t n = 0; n < 3; n++) use(party, kBlocks + pick(kUnordered));
        allow(sh_step_end(party.model.runtime()), {}, "step_end");
    }

    TestDevice& device_;
    const std::vector<Party*> parties_;
    std::mt19937_64 random_;
    sh_stream stream_ = 0;
};

class Random : public testing::TestWithParam<std::tuple<int, const char*>> {};

TEST_P(Random, operations) {
    const auto& [first_seed, options] = GetParam();
    const auto seed = static_cast<uint64_t>(first_seed);
    if (*options && !on_host_backend()) GTEST_SKIP() << "only the host backend can be slow";
    constexpr uint32_t kThreads = 3;
    DeviceSettings settings{.budget_bytes = kMostPages * kPage};
    settings.options += options;
    {
        TestDevice device(settings);
        Party first(device, seed, kThreads), second(device, seed + 1, kThreads);
        SUCCEEDS(first.model.schedule(forward(kBlocks)));
        std::atomic<bool> done{false};
        std::thread watcher([&] {
            while (!done) {
                const sh_memory_info memory = device.memory();
                EXPECT_LE(memory.used_bytes, kMostPages * kPage);
                EXPECT_LE(memory.peak_bytes, kMostPages * kPage);
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
        });
        std::vector<std::thread> threads;
        for (uint32_t t = 0; t < kThreads; t++) {
            threads.emplace_back([&, t] {
                Worker worker(device, {&first, &second}, seed * 100 + t);
                for (uint64_t k = 0; k < scaled(200) && !HasFailure(); k++) worker.operate();
            });
        }
        for (std::thread& thread : threads) thread.join();
        done = true;
        watcher.join();
        for (Party* party : {&first, &second}) {
            EXPECT_SUCCEEDS(sh_write_back(party->model.runtime(), nullptr, 0));
            EXPECT_SUCCEEDS(sh_runtime_synchronize(party->model.runtime()));
            device.synchronize();
            EXPECT_EQ(party->model.wrong_uses(), 0u) << party->model.first_wrong();
            EXPECT_GT(party->model.compared(), 0u);
            for (size_t i = 0; i < kBlocks; i++) {
                EXPECT_EQ(party->model.state(i).held, 0u);
                if (party->is_mutable(i)) {
                    EXPECT_EQ(party->model.source(i).read(), *party->model.truth(i)) << "block " << i;
                }
            }
        }
        for (const host::MemoryStatistics& host : host::all_memory_statistics())
            EXPECT_LE(host.peak_bytes, kMostPages * kPage);
        first.model.destroy();
        second.model.destroy();
        EXPECT_EQ(device.memory().used_bytes, 0u);
    }
    EXPECT_TRUE(host::all_memory_statistics().empty());
}

INSTANTIATE_TEST_SUITE_P(Seeds, Random,
                         testing::Combine(testing::Values(1, 2, 3, 4),
                                          testing::Values("", ";jitter_us=300;jitter_seed=5",
                                                          ";bandwidth=300MB/s;latency=30us")));

}  // namespace
}  // namespace stagehand::test
