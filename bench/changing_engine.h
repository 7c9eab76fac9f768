// An engine that computes for a time that can change, and the steps of a runtime that is made after such a change.
#pragma once

#include <string>
#include <utility>

#include "measure.h"

namespace bench {

constexpr uint64_t kBlock = uint64_t(84) << 20;
constexpr int kBlocks = 24;

// Equal blocks in pinned memory. They are smaller on the host backend.
struct Subject : PacedDevice {
    std::vector<uint64_t> sizes;
    uint64_t total = 0;

    explicit Subject(const char* name) : Subject(name, std::string(name) == "host" ? kBlock / 64 : kBlock) {}

private:
    Subject(const char* name, uint64_t block)
        : PacedDevice(name, kBlocks * block, 64 << 10, 2 << 20, false), sizes(kBlocks, block), total(kBlocks * block) {}
};

// A runtime whose engine computes for a time that can change, and that says nothing of it unless it gives a time.
class Engine {
public:
    // `given_ns`: the computing of a step, if the engine tells it.
    explicit Engine(const Subject& subject, uint64_t given_ns = 0)
        : model_(subject.device_name, SH_DEVICE_OPTIONS_INIT) {
        model_.add(subject.sizes, subject.memory);
        uses_ = model_.schedule(given_ns, false);
        CHECK(sh_stream_create(model_.device, &stream_));
    }
    ~Engine() {
        CHECK(sh_stream_synchronize(model_.device, stream_));
        sh_runtime_destroy(std::exchange(model_.runtime, nullptr));
        sh_stream_destroy(model_.device, stream_);
    }
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    // Returns the milliseconds of a step, in the mean of `steps`.
    double run(int steps, uint64_t compute_ns) const {
        std::vector<sh_use> uses = uses_;
        for (sh_use& use : uses) use.compute_ns = compute_ns / uses.size();
        return model_.steps_ms(uses, stream_, 0, steps, true);
    }
    // Plans anew.
    sh_plan_info plan() const {
        auto info = sh_sized<sh_plan_info>();
        CHECK(sh_plan(model_.runtime, nullptr, &info));
        return info;
    }

private:
    Model model_;
    std::vector<sh_use> uses_;
    sh_stream stream_ = SH_STREAM_HOST;
};

constexpr int kBefore = 20, kWindow = 5;
constexpr double kBudgets[] = {0.17, 0.4, 0.67, 0.85};

inline double step_made_anew(const Subject& subject, uint64_t compute_ns) {
    const Engine engine(subject);
    engine.run(kBefore, compute_ns);
    return engine.run(2 * kWindow, compute_ns);
}

// The speed of the link, in bytes per nanosecond.
inline double link_of(const Subject& subject) {
    CHECK(sh_device_set_budget(subject.device, subject.total / 4));
    return static_cast<double>(Engine(subject).plan().link_bytes_per_second) / 1e9;
}

inline void print_head() {
    std::printf("budget  before         after          anew ms   steps 2-6    11-15    31-35\n");
}

// Steps 2 to 6, 11 to 15 and 31 to 35 after the change, beside those of a runtime made anew.
inline void report(const Engine& engine, double budget, const char* before, const char* after, uint64_t compute_ns,
                   double anew_ms) {
    engine.run(1, compute_ns);
    const double at_once = engine.run(kWindow, compute_ns);
    engine.run(4, compute_ns);
    const double soon = engine.run(kWindow, compute_ns);
    engine.run(15, compute_ns);
    const double later = engine.run(kWindow, compute_ns);
    std::printf("%4.0f %%  %-14s %-14s %9.2f  %7.3f  %7.3f  %7.3f\n", budget * 100, before, after, anew_ms,
                at_once / anew_ms, soon / anew_ms, later / anew_ms);
    std::fflush(stdout);
}

}  // namespace bench
