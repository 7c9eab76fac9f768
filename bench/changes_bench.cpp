// Counts the plans of an engine that changes nothing. Then compares steps after a change of the computing with steps of
// a runtime that is made after the change. The engines give no times.
#include <cstring>

#include "changing_engine.h"

namespace {

using namespace bench;

int plans = 0;  // of all runtimes, as the log tells them

void count_plan(int32_t, const char* text, void*) { plans += std::strstr(text, "a new plan") != nullptr; }

void change_compute(const Subject& subject, double link) {
    constexpr double kRatios[] = {0.1, 1, 3};
    for (const double budget : kBudgets) {
        CHECK(sh_device_set_budget(subject.device, static_cast<uint64_t>(static_cast<double>(subject.total) * budget)));
        const double copy_ns = static_cast<double>(subject.total) * (1 - budget) / link;
        const auto compute = [&](double ratio) { return static_cast<uint64_t>(copy_ns * ratio); };
        for (const double after : kRatios) {
            const double anew_ms = step_made_anew(subject, compute(after));
            for (const double before : kRatios) {
                if (before == after) continue;
                const Engine engine(subject);
                engine.run(kBefore, compute(before));
                char from[32], to[32];
                std::snprintf(from, sizeof from, "compute %.1f", before);
                std::snprintf(to, sizeof to, "compute %.1f", after);
                report(engine, budget, from, to, compute(after), anew_ms);
            }
        }
    }
}

// An engine that changes nothing, beside one that gives its times, so that nothing is measured.
void change_nothing(const Subject& subject, double link) {
    std::printf("budget  compute    measured ms  with given times  ratio  plans\n");
    for (const double budget : kBudgets) {
        CHECK(sh_device_set_budget(subject.device, static_cast<uint64_t>(static_cast<double>(subject.total) * budget)));
        for (const double ratio : {0.1, 1.0, 3.0}) {
            const double copy_ns = static_cast<double>(subject.total) * (1 - budget) / link;
            const auto compute_ns = static_cast<uint64_t>(copy_ns * ratio);
            double given_ms = 0, measured_ms = 0;
            {
                const Engine engine(subject, compute_ns);
                engine.run(kBefore, compute_ns);
                given_ms = engine.run(50, compute_ns);
            }
            const Engine engine(subject);
            engine.run(kBefore, compute_ns);
            plans = 0;
            measured_ms = engine.run(100, compute_ns);
            std::printf("%4.0f %%  %7.1f  %13.2f  %16.2f  %5.3f  %5d\n", budget * 100, ratio, measured_ms, given_ms,
                        measured_ms / given_ms, plans);
            std::fflush(stdout);
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    const Subject subject(argc > 1 ? argv[1] : "host");
    const double link = link_of(subject);
    std::printf("%.1f GB/s\n", link);
    CHECK(sh_set_log(SH_LOG_INFO, count_plan, nullptr));
    change_nothing(subject, link);
    print_head();
    change_compute(subject, link);
}
