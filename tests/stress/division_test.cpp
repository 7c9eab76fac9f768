// Compares the library's division of a budget among models that are used in turn with the best fixed division, in
// virtual time.
#include <algorithm>
#include <functional>

#include "engine.h"
#include "scale.h"

namespace stagehand::test {
namespace {

constexpr uint64_t kSimPage = 64 << 10;
constexpr double kLinkBytesPerNs = 10;

struct Kind {
    size_t blocks;
    uint64_t block_pages;
    double compute_per_copy;  // compute time of a step over the time of copying the whole model
    int steps;                // in each round

    uint64_t pages() const { return blocks * block_pages; }
};

// Models that share a device and take turns.
class Turns {
public:
    // `pages` holds the ceiling of each model. Empty means no ceilings.
    Turns(const std::vector<Kind>& kinds, uint64_t budget_pages, const std::vector<uint64_t>& pages) : kinds_(kinds) {
        DeviceSettings settings;
        settings.name = "sim";
        settings.options = "bandwidth=10GB/s;granularity=64KiB";
        settings.page_bytes = kSimPage;
        settings.budget_bytes = budget_pages * kSimPage;
        settings.link_bytes_per_second = static_cast<uint64_t>(kLinkBytesPerNs * 1e9);
        settings.staging_bytes = 0;
        device_ = std::make_unique<TestDevice>(settings);
        stream_ = device_->stream();
        for (size_t m = 0; m < kinds.size(); m++) add(kinds[m], pages.empty() ? 0 : pages[m] * kSimPage);
    }
    ~Turns() {
        for (sh_runtime* runtime : runtimes_) sh_runtime_destroy(runtime);
    }

    // Makes the steps of every model, one model after the other. Returns the time that this took.
    uint64_t round() {
        const uint64_t begin = now();
        for (size_t m = 0; m < kinds_.size(); m++)
            for (int k = 0; k < kinds_[m].steps; k++) {
                step(m);
                (void)now();
            }
        return now() - begin;
    }

    uint64_t plans() const {
        uint64_t all = 0;
        for (sh_runtime* runtime : runtimes_) {
            auto stats = sh_sized<sh_runtime_stats>();
            EXPECT_SUCCEEDS(sh_runtime_get_stats(runtime, &stats));
            all += stats.plans;
        }
        return all;
    }

    std::string shares() const {
        std::string text;
        for (sh_runtime* runtime : runtimes_) {
            auto stats = sh_sized<sh_runtime_stats>();
            EXPECT_SUCCEEDS(sh_runtime_get_stats(runtime, &stats));
            text += " " + std::to_string(stats.share_bytes / kSimPage);
        }
        return text;
    }

private:
    void add(const Kind& kind, uint64_t max_bytes) {
        sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
        options.max_bytes = max_bytes;
        sh_runtime* runtime = nullptr;
        SUCCEEDS(sh_runtime_create(device_->get(), &options, &runtime));
        runtimes_.push_back(runtime);
        sh_segment segment = SH_SEGMENT_INIT;  // never read
        segment.kind = SH_SOURCE_POINTER;
        segment.pointer = reinterpret_cast<void*>(uintptr_t(4096));
        segment.bytes = kind.block_pages * kSimPage;
        sh_block_desc desc = SH_BLOCK_DESC_INIT;
        desc.bytes = segment.bytes;
        desc.segments = &segment;
        desc.segment_count = 1;
        const auto compute =
            static_cast<uint64_t>(kind.compute_per_copy * static_cast<double>(desc.bytes) / kLinkBytesPerNs) + 1;
        std::vector<sh_use> uses(kind.blocks, SH_USE_INIT);
        for (sh_use& use : uses) {
            SUCCEEDS(sh_register_blocks(runtime, &desc, 1, &use.block));
            use.compute_ns = compute;
        }
        SUCCEEDS(sh_set_schedule(runtime, uses.data(), uses.size()));
        uses_.push_back(std::move(uses));
    }

    void step(size_t m) {
        auto view = sh_sized<sh_view>();
        SUCCEEDS(sh_step_begin(runtimes_[m], nullptr));
        for (const sh_use& use : uses_[m]) {
            view = held_view(runtimes_[m], use.block, stream_);
            SUCCEEDS(sh_stream_launch(device_->get(), stream_, nullptr, nullptr, static_cast<int64_t>(use.compute_ns)));
            let_go(runtimes_[m], use.block, stream_);
        }
        SUCCEEDS(sh_step_end(runtimes_[m]));
    }

    uint64_t now() {
        uint64_t ns = 0;
        EXPECT_SUCCEEDS(sh_stream_synchronize(device_->get(), stream_));
        EXPECT_SUCCEEDS(sh_device_get_clock(device_->get(), &ns));
        return ns;
    }

    const std::vector<Kind> kinds_;
    std::unique_ptr<TestDevice> device_;
    sh_stream stream_ = 0;
    std::vector<sh_runtime*> runtimes_;
    std::vector<std::vector<sh_use>> uses_;
};

uint64_t steady_round(Turns& turns) {
    for (int k = 0; k < 6; k++) turns.round();
    const uint64_t plans = turns.plans();
    uint64_t best = UINT64_MAX;
    for (int k = 0; k < 4; k++) best = std::min(best, turns.round());
    EXPECT_EQ(turns.plans(), plans) << "it has come to rest";
    return best;
}

// Visits all divisions of the budget into `parts` parts on a grid.
void each_division(uint64_t pages, uint64_t step, size_t parts, std::vector<uint64_t>& so_far,
                   const std::function<void()>& visit) {
    if (so_far.size() + 1 == parts) {
        so_far.push_back(pages);
        visit();
        so_far.pop_back();
        return;
    }
    for (uint64_t here = step; here + step * (parts - so_far.size() - 1) <= pages; here += step) {
        so_far.push_back(here);
        each_division(pages - here, step, parts, so_far, visit);
        so_far.pop_back();
    }
}

class Division : public testing::TestWithParam<std::vector<Kind>> {};

TEST_P(Division, takes_little_more_time_than_the_best_one_by_hand) {
    const std::vector<Kind>& kinds = GetParam();
    uint64_t all = 0;
    for (const Kind& kind : kinds) all += kind.pages();
    static uint64_t number = 0;
    for (const uint64_t percent : {30, 60, 80}) {
        if (!in_sample(number++)) continue;
        const uint64_t budget = all * percent / 100;
        uint64_t best = UINT64_MAX;
        std::vector<uint64_t> parts;
        each_division(budget, std::max<uint64_t>(16, budget / 10), kinds.size(), parts, [&] {
            Turns fixed(kinds, budget, parts);
            best = std::min(best, steady_round(fixed));
        });
        Turns free(kinds, budget, {});
        const uint64_t took = steady_round(free);
        EXPECT_LE(static_cast<double>(took), 1.05 * static_cast<double>(best))
            << percent << " %: shares" << free.shares();
    }
}

INSTANTIATE_TEST_SUITE_P(Models, Division,
                         testing::Values(std::vector<Kind>{{20, 16, 0.2, 1}, {20, 16, 0.2, 1}},  // alike
                                         std::vector<Kind>{{20, 16, 4.0, 1}, {20, 16, 0.1, 1}},  // one computes long
                                         std::vector<Kind>{{20, 16, 0.1, 1},
                                                           {20, 16, 0.1, 8}},  // one is used more often
                                         std::vector<Kind>{{30, 16, 0.5, 1}, {10, 8, 0.3, 3}, {12, 16, 2.0, 1}}));

}  // namespace
}  // namespace stagehand::test
