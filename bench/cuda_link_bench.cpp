// Compares steps after another user of the link has come or gone with steps of a runtime that is made after it, on
// cuda:0. The engine gives no times.
#include <atomic>
#include <thread>

#include "../tests/gpu/cuda_driver.h"
#include "changing_engine.h"

namespace {

using namespace bench;

// Copies to the device, past the library, as long as it is switched on.
class Neighbour {
public:
    explicit Neighbour(const Subject& subject) : from_(subject.memory), thread_([this] { work(); }) {}
    ~Neighbour() {
        ended_ = true;
        thread_.join();
    }
    Neighbour(const Neighbour&) = delete;
    Neighbour& operator=(const Neighbour&) = delete;

    void set(bool on) { on_ = on; }

private:
    static constexpr size_t kBytes = size_t(16) << 20;

    void work() {
        const stagehand::test::Cuda cuda;
        CUstream stream = nullptr;
        CUdeviceptr to = 0;
        if (cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING) || cuda.allocate(&to, kBytes)) std::exit(1);
        while (!ended_) {
            if (!on_) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
                continue;
            }
            for (int i = 0; i < 2; i++)
                if (cuda.copy_to_device(to, from_, kBytes, stream)) std::exit(1);
            if (cuda.synchronize(stream)) std::exit(1);
        }
        cuda.deallocate(to);
        cuda.stream_destroy(stream);
    }

    const char* from_;
    std::atomic<bool> on_{false}, ended_{false};
    std::thread thread_;
};

void change_link(const Subject& subject, double link, Neighbour& neighbour) {
    for (const double budget : kBudgets) {
        CHECK(sh_device_set_budget(subject.device, static_cast<uint64_t>(static_cast<double>(subject.total) * budget)));
        const double copy_ns = static_cast<double>(subject.total) * (1 - budget) / link;
        for (const double ratio : {0.3, 1.0, 3.0}) {
            const auto compute_ns = static_cast<uint64_t>(copy_ns * ratio);
            const double alone_ms = step_made_anew(subject, compute_ns);
            neighbour.set(true);
            const double shared_ms = step_made_anew(subject, compute_ns);
            neighbour.set(false);
            const Engine engine(subject);  // has the whole budget, so it comes after the others are gone
            engine.run(kBefore, compute_ns);
            char name[32];
            std::snprintf(name, sizeof name, "%.1f, alone", ratio);
            neighbour.set(true);
            report(engine, budget, name, "shared link", compute_ns, shared_ms);
            neighbour.set(false);
            report(engine, budget, "shared link", name, compute_ns, alone_ms);
        }
    }
}

}  // namespace

int main() try {
    const stagehand::test::Cuda cuda;
    const Subject subject("cuda:0");
    Neighbour neighbour(subject);
    const double link = link_of(subject);
    std::printf("%.1f GB/s\n", link);
    print_head();
    change_link(subject, link, neighbour);
} catch (const std::exception& problem) {
    std::printf("skipped: %s\n", problem.what());
}
