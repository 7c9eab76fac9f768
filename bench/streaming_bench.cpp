// Compares steps on the host backend, with a given bandwidth and compute time, with the plan's own recurrence. Then
// measures plans and planning time in the simulation. With a device's name, it measures steps on that device.
#include <random>
#include <string>
#include <utility>

#include "measure.h"

namespace {

constexpr uint64_t kHostPage = 64 << 10;
constexpr uint64_t kGpuPage = 8 << 20;

struct Shape {
    const char* name;
    std::vector<uint64_t> sizes;
};

std::vector<Shape> shapes(double scale) {
    const auto mib = [&](double n) { return static_cast<uint64_t>(n * scale * (1 << 20)); };
    Shape model{"8B shapes", {}}, equal{"24 equal", {}}, unequal{"400 unequal", {}};
    model.sizes.push_back(mib(1002));
    model.sizes.insert(model.sizes.end(), 32, mib(416));
    model.sizes.push_back(mib(1002));
    equal.sizes.assign(24, mib(416));
    std::mt19937 random(7);
    for (int i = 0; i < 400; i++) unequal.sizes.push_back(mib(1 + static_cast<double>(random() % 60)));
    return {model, equal, unequal};
}

uint64_t sum(const std::vector<uint64_t>& sizes) {
    uint64_t total = 0;
    for (const uint64_t size : sizes) total += size;
    return total;
}

// Runs one shape at one budget, and compares the mean step with the recurrence and the bound.
void run(const bench::PacedDevice& subject, const Shape& shape, double budget, double ratio, bool backward) {
    const uint64_t total = sum(shape.sizes);
    CHECK(sh_device_set_budget(subject.device, static_cast<uint64_t>(static_cast<double>(total) * budget)));
    bench::Model model(subject.device_name, SH_DEVICE_OPTIONS_INIT);
    model.add(shape.sizes, subject.memory);
    model.schedule(1, backward);
    sh_plan_info plan = SH_PLAN_INFO_INIT;
    CHECK(sh_plan(model.runtime, nullptr, &plan));  // reports the speed of the link
    const double copy_ns =
        static_cast<double>(total) * (1 - budget) / static_cast<double>(plan.link_bytes_per_second) * 1e9;
    const std::vector<sh_use> uses = model.schedule(static_cast<uint64_t>(copy_ns * ratio), backward);
    CHECK(sh_plan(model.runtime, nullptr, &plan));
    sh_stream stream = 0;
    CHECK(sh_stream_create(model.device, &stream));
    const double step_ms = model.steps_ms(uses, stream, 2, 5);
    sh_memory_info memory_info = SH_MEMORY_INFO_INIT;
    CHECK(sh_device_get_memory(model.device, &memory_info));
    std::printf("%-12s %-8s %4.0f %%  %5.2f  %9.2f  %9.2f  %6.3f  %6.3f  %6.3f  %s\n", shape.name,
                backward ? "fwd-bwd" : "forward", budget * 100, ratio, step_ms, static_cast<double>(plan.step_ns) / 1e6,
                step_ms * 1e6 / static_cast<double>(plan.step_ns),
                static_cast<double>(plan.step_ns) / static_cast<double>(plan.bound_ns),
                static_cast<double>(plan.bytes_per_step) / static_cast<double>(plan.bound_bytes_per_step),
                memory_info.used_bytes <= memory_info.budget_bytes ? "" : "USED ABOVE BUDGET");
    std::fflush(stdout);
    sh_runtime_destroy(std::exchange(model.runtime, nullptr));
    sh_stream_destroy(model.device, stream);
}

// Measures the time to plan many blocks.
void plan_many(size_t count) {
    std::mt19937 random(3);
    std::vector<uint64_t> sizes;
    for (size_t i = 0; i < count; i++) sizes.push_back((16 + random() % 64) << 20);
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    options.page_bytes = 8 << 20;
    options.budget_bytes = sum(sizes) / 2;
    const std::string backend = "bandwidth=55500000000;capacity=" + std::to_string(sum(sizes));
    options.backend_options = backend.c_str();
    bench::Model model("sim", options);
    const double registering = bench::seconds([&] { model.add(sizes, nullptr); });
    model.schedule(static_cast<uint64_t>(static_cast<double>(sum(sizes)) / 55.5 / 2), false);
    sh_plan_options dry = SH_PLAN_OPTIONS_INIT;
    dry.flags = SH_PLAN_DRY_RUN;
    sh_plan_info plan = SH_PLAN_INFO_INIT;
    const double planning = bench::seconds([&] { CHECK(sh_plan(model.runtime, &dry, &plan)); });
    const double applying = bench::seconds([&] { CHECK(sh_plan(model.runtime, nullptr, nullptr)); });
    std::printf(
        "%zu blocks: registered in %.2f s, planned in %.2f s (step %.4f x the bound), planned and mapped in %.2f s\n",
        count, registering, planning, static_cast<double>(plan.step_ns) / static_cast<double>(plan.bound_ns), applying);
}

// On a GPU, runs one model at its real sizes. On the paced host backend, runs all shapes scaled down.
void stream(const char* device, bool all_shapes, double scale) {
    std::printf("shape        order    budget compute/copy  step ms   plan ms  step/plan plan/bound bytes/bound\n");
    for (const Shape& shape : shapes(scale)) {
        const bench::PacedDevice subject(device, sum(shape.sizes), kHostPage, kGpuPage, true);
        for (const bool backward : {false, true})
            for (const double budget : {0.25, 0.5, 0.75, 0.9})
                for (const double ratio : {0.25, 1.0, 4.0}) run(subject, shape, budget, ratio, backward);
        if (!all_shapes) return;
    }
}

}  // namespace

// With a device's name ("cuda:0"), streams on that device. Without a name, streams on the paced host backend and plans
// in the simulation.
int main(int count, char** arguments) {
    if (count > 1) {
        stream(arguments[1], false, 1);
        return 0;
    }
    std::printf("host backend, %.1f GB/s each way, pages of %llu KiB\n",
                static_cast<double>(bench::PacedDevice::kHostBandwidth) / 1e9,
                static_cast<unsigned long long>(kHostPage >> 10));
    stream("host", true, 1.0 / 64);
    plan_many(100'000);
}
