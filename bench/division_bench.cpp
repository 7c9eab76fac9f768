// Steps of a mixture in virtual time, under divisions of the memory between its layers and its experts. It has the
// shapes of Qwen3-30B-A3B: the dense weights of a layer are a block of the order, and all experts are one set.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "../tests/unit/policy/member_traces.h"
#include "measure.h"

namespace {

using namespace stagehand::policy::test;

constexpr MixtureShape kShape{48, 128, 8};
constexpr uint64_t kPage = 2 << 20, kExpert = 9'437'184;
constexpr uint32_t kSteps = 400, kFirstSteps = 200, kDivisions = 16;

uint64_t whole_pages(double bytes) { return static_cast<uint64_t>(bytes) / kPage * kPage; }

struct Setting {
    uint64_t layer = 0;       // bytes
    uint64_t budget = 0;      // bytes for all
    uint64_t for_set = 0;     // unordered_bytes
    uint64_t compute_ns = 0;  // of a step
};

struct Figures {
    double step_ms = 0;
    uint64_t slots = 0;
};

class Mixture {
public:
    explicit Mixture(const Setting& setting) : setting_(setting) {
        sh_host_options host = SH_HOST_OPTIONS_INIT;
        host.staging_bytes = 0;
        sh_device_options options = SH_DEVICE_OPTIONS_INIT;
        options.page_bytes = kPage;
        options.budget_bytes = setting.budget;
        options.link_bytes_per_second = 55'000'000'000;
        options.backend_options = "bandwidth=55GB/s;granularity=2MiB;capacity=200GiB";
        options.host = &host;
        CHECK(sh_device_open("sim", &options, &device_));
        sh_runtime_options of_runtime = SH_RUNTIME_OPTIONS_INIT;
        of_runtime.unordered_bytes = setting.for_set;
        CHECK(sh_runtime_create(device_, &of_runtime, &runtime_));
        CHECK(sh_stream_create(device_, &stream_));
        layers_.resize(kShape.groups);
        describe(setting.layer, layers_.size());
        CHECK(sh_register_blocks(runtime_, descs_.data(), descs_.size(), layers_.data()));
        std::vector<sh_block> experts(kShape.members());
        describe(kExpert, experts.size());
        sh_set_options of_set = SH_SET_OPTIONS_INIT;
        of_set.call_members = kShape.used;
        of_set.group_members = kShape.width;
        CHECK(sh_set_create(runtime_, &of_set, descs_.data(), descs_.size(), experts.data(), &set_));
    }
    ~Mixture() {
        sh_runtime_destroy(runtime_);
        sh_stream_destroy(device_, stream_);
        sh_device_close(device_);
    }
    Mixture(const Mixture&) = delete;
    Mixture& operator=(const Mixture&) = delete;

    Figures run(const Calls& calls) {
        uint64_t began = 0;
        for (uint32_t step = 0; step < kSteps; step++) {
            if (step == kFirstSteps) began = now();
            CHECK(sh_step_begin(runtime_, nullptr));
            for (uint32_t i = 0; i < kShape.groups; i++) use_layer(i, calls.used[step * kShape.groups + i]);
            CHECK(sh_step_end(runtime_));
        }
        const double ms = static_cast<double>(now() - began) / (kSteps - kFirstSteps) / 1e6;
        auto info = sh_sized<sh_set_info>();
        CHECK(sh_set_get_info(runtime_, set_, &info));
        return {ms, info.slots};
    }

private:
    void describe(uint64_t bytes, size_t count) {
        segment_.kind = SH_SOURCE_POINTER;
        segment_.pointer = reinterpret_cast<void*>(uint64_t(4096));  // never read
        segment_.bytes = bytes;
        sh_block_desc desc = SH_BLOCK_DESC_INIT;
        desc.bytes = bytes;
        desc.segments = &segment_;
        desc.segment_count = 1;
        descs_.assign(count, desc);
    }
    // The engine waits for the router, to know the experts.
    void use_layer(uint32_t layer, const std::vector<uint32_t>& members) {
        const auto part_ns = static_cast<int64_t>(setting_.compute_ns / kShape.groups / 2);
        auto view = sh_sized<sh_view>(), pool = sh_sized<sh_view>();
        CHECK(sh_acquire(runtime_, layers_[layer], stream_, 0, &view));
        CHECK(sh_stream_launch(device_, stream_, nullptr, nullptr, part_ns));
        CHECK(sh_release(runtime_, layers_[layer], stream_));
        CHECK(sh_stream_synchronize(device_, stream_));
        std::vector<uint32_t> slots(members.size());
        CHECK(sh_acquire_members(runtime_, set_, members.data(), members.size(), stream_, 0, &pool, slots.data()));
        CHECK(sh_stream_launch(device_, stream_, nullptr, nullptr, part_ns));
        CHECK(sh_release_members(runtime_, set_, members.data(), members.size(), stream_));
    }
    uint64_t now() const {
        CHECK(sh_stream_synchronize(device_, stream_));
        uint64_t now = 0;
        CHECK(sh_device_get_clock(device_, &now));
        return now;
    }

    const Setting setting_;
    sh_device* device_ = nullptr;
    sh_runtime* runtime_ = nullptr;
    sh_stream stream_ = SH_STREAM_HOST;
    sh_segment segment_ = SH_SEGMENT_INIT;
    std::vector<sh_block_desc> descs_;
    std::vector<sh_block> layers_;
    sh_set set_ = 0;
};

void row(const Calls& calls, Routing routing, double part, Setting setting) {
    const Figures own = Mixture(setting).run(calls);
    // Two layers have to have room, and the experts of a call.
    const uint64_t least_layers = 2 * setting.layer, least_set = kExpert * kShape.used / kPage * kPage + kPage;
    const uint64_t most_layers = std::min(setting.budget - least_set, setting.layer * kShape.groups);
    Figures at, experts_first, best = own;
    for (uint32_t k = 0; k <= kDivisions; k++) {
        const double more = static_cast<double>(most_layers - least_layers) * k / kDivisions;
        setting.for_set = setting.budget - least_layers - whole_pages(more);
        at = Mixture(setting).run(calls);
        if (k == 0) experts_first = at;
        if (at.step_ms < best.step_ms) best = at;
    }
    const auto count = [](const Figures& of) { return static_cast<unsigned long long>(of.slots); };
    std::printf("| %s | %.0f %% | %.0f | %.2f (%llu) | %.2f (%llu) | %.2f (%llu) | %.2f (%llu) | %.3f |\n",
                name(routing), 100 * part, static_cast<double>(setting.compute_ns) / 1e6, own.step_ms, count(own),
                at.step_ms, count(at), experts_first.step_ms, count(experts_first), best.step_ms, count(best),
                own.step_ms / best.step_ms);
    std::fflush(stdout);
}

}  // namespace

// The MiB of a layer without its experts, and budgets in percent of all bytes.
int main(int argc, char** argv) {
    Setting setting;
    setting.layer = (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 30) << 20;
    std::vector<double> budgets;
    for (int i = 2; i < argc; i++) budgets.push_back(std::strtod(argv[i], nullptr) / 100);
    if (budgets.empty()) budgets = {0.25, 0.5, 0.75};
    const auto all = static_cast<double>(setting.layer * kShape.groups + kExpert * kShape.members());
    std::printf(
        "Milliseconds of a step (slots for experts). Best: of %u divisions and the library's own.\n\n| routing | "
        "budget | compute ms | library | layers first | experts first | best | library ÷ best |\n"
        "|---|--:|--:|--:|--:|--:|--:|--:|\n",
        kDivisions + 1);
    for (const Routing routing : kRoutings) {
        if (routing == Routing::prompts) continue;
        const Calls calls = Router(routing, kShape, 7).calls(kSteps);
        for (const double part : budgets) {
            setting.budget = whole_pages(part * all);
            for (const uint64_t compute_ms : {2, 6, 27}) {
                setting.compute_ns = compute_ms * 1'000'000;
                row(calls, routing, part, setting);
            }
        }
    }
    return 0;
}
