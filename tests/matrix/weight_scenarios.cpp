// Weights that are streamed, changed, shared, packed and captured.
#include <unistd.h>

#include <cstring>

#include "../graphs/capture.h"
#include "plugin.h"
#include "transfer/carrier/carrier.h"
#include "weights.h"

namespace stagehand::test {
namespace {

constexpr size_t kOrdered = 10;

DeviceSettings small_device(uint64_t pages = 16, const std::string& wrapped = device_under_test()) {
    DeviceSettings settings;
    settings.options = "wrap=" + wrapped;
    if (on_host_backend()) settings.options += ";capacity=64MiB;staging_piece=8KiB;poison=1";
    settings.budget_bytes = pages * kPage;
    settings.staging_bytes = 16 * kPage;
    settings.link_bytes_per_second = 0;  // measured, so that this may fail too
    return settings;
}

// Every kind of source and of block. Those that no order knows come last.
std::vector<BlockSpec> all_kinds() {
    std::vector<BlockSpec> specs = unequal_blocks(8, Origin::pinned);
    specs[1].origin = specs[4].origin = Origin::pageable;
    specs[2].flags = SH_BLOCK_WHOLE;
    specs[3].origin = Origin::fill;
    specs[5].origin = Origin::file;
    specs[7] = {3 * kPage, Origin::pageable, SH_BLOCK_MUTABLE};
    specs.push_back({3 * kPage, Origin::pinned, SH_BLOCK_MUTABLE});
    specs.push_back({2 * kPage, Origin::mapped, 0});
    specs.push_back({2 * kPage, Origin::pinned, SH_BLOCK_UNORDERED});
    specs.push_back({3 * kPage, Origin::pageable, SH_BLOCK_UNORDERED | SH_BLOCK_PIN});
    return specs;
}

void stream(Run& run) {
    const sh_stream stream = run.stream(), other = run.stream();
    Weights weights(run, all_kinds());
    weights.step(stream);  // the order is learned
    weights.schedule(kOrdered);
    weights.step();
    TRY(run, sh_prefetch, weights.get(), weights.ids() + kOrdered, 2);
    weights.step(other, "even");
    weights.step(stream, "odd");
    TRY(run, sh_stream_forget, weights.get(), other);
    TRY(run, sh_runtime_synchronize, weights.get());
    weights.write_back();
    TRY_OR(run, SH_ERROR_INVALID_HANDLE, sh_unregister_blocks, weights.get(), weights.ids(), 1);
    TRY_OR(run, SH_ERROR_INVALID_HANDLE, sh_unregister_blocks, weights.get(), weights.ids() + 1, 8);
}

// Two views at once, and what is asked of them.
void ask(Run& run) {
    const sh_stream stream = run.stream();
    Weights weights(run, all_kinds());
    weights.schedule(kOrdered);
    sh_plan_options dry = SH_PLAN_OPTIONS_INIT;
    dry.flags = SH_PLAN_DRY_RUN;
    dry.budget_bytes = 12 * kPage;
    auto plan = sh_sized<sh_plan_info>();
    TRY(run, sh_plan, weights.get(), &dry, &plan);
    TRY(run, sh_plan, weights.get(), nullptr, nullptr);
    weights.step(stream);
    sh_view views[2] = {sh_sized<sh_view>(), sh_sized<sh_view>()};
    TRY(run, sh_acquire_many, weights.get(), weights.ids() + 5, 2, stream, 0, views);
    for (const size_t i : {0, 1}) {
        weights.compare(5 + i, views[i], stream);
        TRY(run, sh_verify_block, weights.get(), weights.ids()[5 + i], stream);
    }
    static uint8_t bytes[64];  // a failed call leaves them to the driver
    TRY(run, sh_read_block, weights.get(), weights.ids()[5], stream, 0, bytes, sizeof bytes);
    for (const size_t i : {5, 6}) weights.release(i, stream);
    auto state = sh_sized<sh_block_state>();
    TRY(run, sh_block_get_state, weights.get(), weights.ids()[0], &state);
    auto stats = sh_sized<sh_runtime_stats>();
    sh_kind_info kinds[2] = {sh_sized<sh_kind_info>(), sh_sized<sh_kind_info>()};
    uint64_t count = 0;
    TRY(run, sh_runtime_get_stats, weights.get(), &stats);
    TRY(run, sh_kind_list, weights.get(), kinds, 2, &count);
}

void change(Run& run) {
    const sh_stream stream = run.stream();
    Weights weights(run, all_kinds());
    weights.schedule(kOrdered);
    weights.step(stream);
    weights.replace(1);
    weights.replace(7);
    weights.step(stream);
    TRY(run, sh_invalidate_blocks, weights.get(), weights.ids(), 3);
    weights.use(7);
    weights.write_back(7);
    weights.step();
    weights.write_back();
}

// A call finds out whether a load has ended while others hold a view of the block. The load waits for a slow stream.
void hold(Run& run) {
    Weights weights(run, blocks_of({6 * kPage, 6 * kPage}, Origin::pinned, SH_BLOCK_MUTABLE));
    const sh_stream stream = run.stream(), slow = run.stream();
    weights.schedule(2);
    TRY(run, sh_plan, weights.get(), nullptr, nullptr);
    auto other = sh_sized<sh_view>(), view = sh_sized<sh_view>(), third = sh_sized<sh_view>();
    TRY(run, sh_acquire, weights.get(), weights.ids()[1], slow, 0, &other);
    run.attempt("a look", [&] {
        return run.test_device().bytes().look(slow, other.address, 1, [](const uint8_t*) { usleep(3000); });
    });
    weights.release(1, slow);
    TRY(run, sh_acquire, weights.get(), weights.ids()[0], stream, 0, &view);
    const sh_status again = CALL(sh_acquire, weights.get(), weights.ids()[0], SH_STREAM_HOST, 0, &third);
    if (run.once("sh_acquire", again)) weights.release(0, SH_STREAM_HOST);
    EXPECT_NE(CALL(sh_acquire, weights.get(), weights.ids()[1], SH_STREAM_HOST, 0, &third), SH_OK)
        << "pages that a view holds were given away";
    weights.compare(0, view, stream);
    weights.release(0, stream);
    weights.use(1);
    weights.use(0);
    weights.write_back();
}

// Members of a set take turns in a few slots. Some are changed, guessed, and asked for alone.
void take_turns(Run& run) {
    sh_set_options set = SH_SET_OPTIONS_INIT;
    set.call_members = 2;
    set.group_members = 4;
    std::vector<BlockSpec> specs = equal_blocks(8, 2 * kPage + 40, Origin::pinned);
    specs[1].origin = Origin::pageable;
    specs[2].flags = SH_BLOCK_MUTABLE;
    specs[5].origin = Origin::file;
    specs[6] = {2 * kPage + 40, Origin::pageable, SH_BLOCK_MUTABLE};
    Weights weights(run, specs, SH_RUNTIME_OPTIONS_INIT, &set);
    const sh_stream stream = run.stream(), other = run.stream();
    for (int round = 0; round < 2; round++) {
        TRY(run, sh_step_begin, weights.get(), nullptr);
        weights.use_members({0, 3}, stream);
        weights.use_members({1, 5}, other);
        weights.use(2);
        const uint32_t guesses[] = {4, 7};
        const float chances[] = {0.9f, 0.4f};
        TRY(run, sh_prefetch_members, weights.get(), weights.set(), guesses, chances, 2);
        weights.use_members({4, 5}, stream);
        weights.use(6);
        weights.use_members({7, 4}, stream);
        weights.use_members({2, 6}, SH_STREAM_HOST);  // those that the engine changes, as it does itself
        TRY_OR(run, SH_ERROR_INVALID_STATE, sh_step_end, weights.get());
    }
    weights.write_back();
    TRY_OR(run, SH_ERROR_INVALID_HANDLE, sh_set_destroy, weights.get(), weights.set());
}

// Several runtimes, of which one stays, one reserves, and one is a guest.
void share(Run& run) {
    Weights one(run, equal_blocks(6, 4 * kPage)), other(run, equal_blocks(8, 3 * kPage, Origin::pageable));
    const sh_stream stream = run.stream();
    one.schedule(one.size());
    other.schedule(other.size());
    TRY(
        run, sh_set_pressure, one.get(), [](sh_runtime*, uint64_t, void*) {}, nullptr);
    one.step(stream);
    other.step();
    TRY(run, sh_device_set_budget, run.device(), 36 * kPage);
    sh_scope *protection = nullptr, *kept = nullptr, *reservation = nullptr, *visit = nullptr;
    TRY(run, sh_protect_blocks, one.get(), one.ids() + 3, 2, &protection);
    TRY(run, sh_keep_resident, one.get(), &kept);
    one.step();
    TRY_OR(run, SH_ERROR_INVALID_HANDLE, sh_scope_end, kept);
    TRY_OR(run, SH_ERROR_INVALID_HANDLE, sh_scope_end, protection);
    TRY(run, sh_reserve, one.get(), 20 * kPage, SH_PRIORITY_SECONDARY, &reservation);
    other.step(stream);
    TRY_OR(run, SH_ERROR_INVALID_HANDLE, sh_scope_end, reservation);
    sh_guest_options options = SH_GUEST_OPTIONS_INIT;
    options.flags = SH_GUEST_SHRINK;
    options.bytes = 4 * kPage;
    TRY(run, sh_guest_begin, other.get(), &options, &visit);
    other.step();
    TRY_OR(run, SH_ERROR_INVALID_HANDLE, sh_scope_end, visit);
    uint64_t holds = 0;
    TRY(run, sh_trim, one.get(), 0, &holds);
    EXPECT_EQ(holds, 0u);
    one.step(stream);
}

// The device unpacks some weights, and keeps others packed.
void unpack(Run& run) {
    constexpr uint64_t kBytes = (2 << 20) + 18;
    std::vector<BlockSpec> specs = equal_blocks(10, kBytes);
    for (const size_t i : {0, 1, 3, 8}) specs[i] = {kBytes, Origin::pageable, SH_BLOCK_PACK};
    specs[1].flags |= SH_BLOCK_MUTABLE;
    specs[3].flags |= SH_BLOCK_PIN;
    Weights weights(run, specs);
    const sh_stream stream = run.stream();
    weights.schedule(weights.size());
    weights.step(stream);
    weights.replace(0);
    weights.replace(1);
    weights.step();
    weights.write_back();
    EXPECT_TRUE(run.failures() || run.calls("unpack") > 5) << "the device has not unpacked";
}

// A graph, and the capture that makes it, which an engine ends whatever happens.
struct Graph {
    explicit Graph(sh_stream stream) : stream(stream) {}
    ~Graph() { let_go(); }
    void begin() {
        EXPECT_EQ(DRIVER(sh_test_capture_begin)(stream), SH_OK);
        capturing = true;
    }
    bool end() {
        capturing = false;
        return DRIVER(sh_test_capture_end)(stream, &native) == SH_OK;
    }
    void let_go() {
        if (capturing) end();
        CALL(sh_graph_destroy, std::exchange(graph, nullptr));
        if (native) DRIVER(sh_test_graph_destroy)(std::exchange(native, nullptr));
    }

    const sh_stream stream;
    sh_graph* graph = nullptr;
    sh_test_graph* native = nullptr;
    bool capturing = false;
};

// A step as a graph. A capture that has failed is begun anew.
void capture(Run& run) {
    const sh_stream stream = run.stream();
    Weights weights(run, equal_blocks(4, 3 * kPage));
    weights.schedule(weights.size());
    struct Look {
        const uint8_t* at = nullptr;
        std::vector<uint8_t> truth;
        std::atomic<uint64_t> right{0}, wrong{0};
    };
    std::vector<Look> looks(weights.size());  // of every launch
    Graph graph(stream);
    const auto look = [](void* data) {
        Look& there = *static_cast<Look*>(data);
        ++(std::memcmp(there.at, there.truth.data(), there.truth.size()) == 0 ? there.right : there.wrong);
    };
    const auto captured = [&] {
        for (size_t i = 0; i < weights.size(); i++) {
            auto view = sh_sized<sh_view>();
            if (!run.once("sh_acquire", CALL(sh_acquire, weights.get(), weights.ids()[i], stream, 0, &view)))
                return false;
            looks[i].at = static_cast<const uint8_t*>(view.address);
            looks[i].truth = weights.truth(i);
            TRY(run, sh_stream_launch, run.device(), stream, look, &looks[i], 0);
            if (!run.once("sh_release", CALL(sh_release, weights.get(), weights.ids()[i], stream))) return false;
        }
        return true;
    };
    run.try_until("a capture", [&] {
        TRY(run, sh_plan, weights.get(), nullptr, nullptr);
        graph.begin();
        const bool begun = run.once("sh_capture_begin", CALL(sh_capture_begin, weights.get(), stream));
        if (begun && captured()) run.once("sh_capture_end", CALL(sh_capture_end, weights.get(), stream, &graph.graph));
        if (begun && !graph.graph) ignore(CALL(sh_capture_end, weights.get(), stream, nullptr));
        const bool ended = graph.end();
        EXPECT_TRUE(ended || !graph.graph) << DRIVER(sh_test_capture_error)();
        if (!graph.graph) graph.let_go();
        return graph.graph != nullptr;
    });
    for (int k = 0; k < 3; k++) {
        TRY(run, sh_graph_enter, graph.graph, stream);
        EXPECT_EQ(DRIVER(sh_test_graph_launch)(graph.native, stream), SH_OK);
        TRY_OR(run, SH_ERROR_INVALID_STATE, sh_graph_leave, graph.graph, stream);
    }
    weights.step(stream);
    run.settle();
    for (const Look& seen : looks) {
        EXPECT_EQ(seen.wrong, 0u);
        EXPECT_GE(seen.right, 3u);
    }
}

// A helper brings a part. Steps whose weights were wrong are told of, once, and the next ones are right.
void load_with_a_helper(Run& run) {
    transfer::Carrier::set_least_bytes(32 << 10);  // pieces that workers have read are helped, too
    hurry_helpers();
    std::vector<BlockSpec> specs = equal_blocks(4, 5 << 20);
    specs[1].origin = Origin::pageable;
    Weights weights(run, specs);
    const sh_stream stream = run.stream();
    weights.schedule(weights.size());
    int told = 0;
    for (int k = 0; k < 3 + told; k++) {
        weights.step(stream);
        run.settle();
        TRY(run, sh_runtime_synchronize, weights.get());
        if (!run.told_of_helper()) continue;
        ASSERT_EQ(++told, 1) << "a helper that is left out has failed again";
        weights.forget_wrong();
    }
    auto stats = sh_sized<sh_runtime_stats>();
    TRY(run, sh_runtime_get_stats, weights.get(), &stats);
    EXPECT_TRUE(run.failures() || stats.helped_bytes) << "the helper has brought nothing";
    TRY(run, sh_trim, weights.get(), 0, nullptr);
    weights.use(0, stream);
    run.settle();
    TRY(run, sh_runtime_synchronize, weights.get());
    if (run.told_of_helper()) weights.forget_wrong();
}

DeviceSettings large_device(uint64_t budget) {
    DeviceSettings settings = small_device();
    settings.options = "wrap=host;capacity=256MiB;poison=1";
    settings.budget_bytes = budget;
    settings.page_bytes = 64 << 10;
    settings.staging_bytes = 8 << 20;
    return settings;
}

DeviceSettings for_packed() {
    DeviceSettings settings = large_device(17 << 20);
    settings.link_bytes_per_second = 1'000'000;  // slower than any device unpacks, in plans
    return settings;
}

DeviceSettings for_helpers() {
    DeviceSettings settings = large_device(14 << 20);
    settings.link_bytes_per_second = 4'000'000'000;
    return settings;
}

}  // namespace

std::vector<Scenario> weight_scenarios() {
    std::vector<Scenario> all = {
        {.name = "stream", .work = stream, .settings = small_device(), .on_gpus = true},
        {.name = "ask", .work = ask, .settings = small_device(), .on_gpus = true},
        {.name = "change", .work = change, .settings = small_device(), .on_gpus = true},
        {.name = "hold", .work = hold, .settings = small_device(9), .on_gpus = true},
        {.name = "take_turns", .work = take_turns, .settings = small_device(8), .on_gpus = true},
        {.name = "share", .work = share, .settings = small_device(40), .on_gpus = true},
        {.name = "unpack", .work = unpack, .settings = for_packed(), .allocations = false, .cost = 10},
        {.name = "capture", .work = capture, .settings = small_device(16, "capture")}};
    if (has_helpers())
        all.push_back({.name = "load_with_a_helper",
                       .work = load_with_a_helper,
                       .settings = for_helpers(),
                       .helped = true,
                       .allocations = false,
                       .cost = 5});
    return all;
}

}  // namespace stagehand::test
