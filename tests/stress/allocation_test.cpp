// Every single allocation of the library fails once, on all of its threads, each in a process of its own. Calls then
// say that there is no memory, and work when they are made again. No call waits for ever, nothing is left behind, and
// everything works afterwards.
#include <dirent.h>
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <new>
#include <sstream>

#include "../unit/telemetry/monitor_client.h"
#include "engine.h"
#include "every_call.h"
#include "host/host_backend.h"
#include "scale.h"

// Defined if the program is built with LeakSanitizer.
extern "C" int __lsan_do_recoverable_leak_check() __attribute__((weak));

namespace stagehand::test {
namespace {

constexpr int kPatience = 60'000;       // in milliseconds
constexpr int kNotAgain = 30'000;       // once something has failed: the list is wanted then
constexpr uint64_t kMostReported = 40;  // failures

// Number of runs of each kind, spread over all sites. Each run of the program begins with another site, so that all
// sites have their turn. A STAGEHAND_STRESS_SCALE of 100 tests all sites at once, and the same STAGEHAND_STRESS_SEED
// tests the same sites again.
#if defined(__SANITIZE_THREAD__)
constexpr uint64_t kRuns = 32;  // a process takes ten times as long
#else
constexpr uint64_t kRuns = 100;
#endif

uint64_t number_in(const char* variable, uint64_t otherwise) {
    const char* const text = std::getenv(variable);
    return text && *text ? std::strtoull(text, nullptr, 10) : otherwise;
}

size_t entries(const char* folder) {
    DIR* const directory = opendir(folder);
    size_t count = 0;
    while (readdir(directory)) count++;
    closedir(directory);
    return count;
}

// Counts the threads before the test, because a sanitizer may have threads of its own from the start of the process.
size_t threads_before() {
    std::thread([] {}).join();
    usleep(1000);
    return entries("/proc/self/task");
}

size_t threads_left(size_t before) {
    for (int k = 0; k < 1000 && entries("/proc/self/task") > before; k++) usleep(1000);
    return entries("/proc/self/task") - before;
}

std::set<std::string> every_call() {
    std::ifstream file(STAGEHAND_MAP);
    std::set<std::string> names;
    for (std::string line; std::getline(file, line);)
        if (const size_t name = line.find("sh_"); name != std::string::npos)
            names.insert(line.substr(name, line.find(';') - name));
    return names;
}

class Allocations : public testing::Test {
protected:
    enum Ending { kWell = 0, kLost = 70, kFailed = 71, kLeaks = 72, kWaits = 1000, kKilled = 2000 };

    void SetUp() override {
        if (!std::getenv("STAGEHAND_BACKEND_PATH"))
            GTEST_SKIP() << "STAGEHAND_BACKEND_PATH does not lead to the capture backend";
        if (!on_host_backend()) GTEST_SKIP() << "only the host backend's device is opened anew in each process";
        void* const shared =
            mmap(nullptr, sizeof(AllocationProgress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        ASSERT_NE(shared, MAP_FAILED);
        progress_ = new (shared) AllocationProgress;
    }

    // Sites fail at their first allocation, or once later. The failure lasts for `count` allocations.
    void spread_over_sites(bool later, uint64_t count) {
        ASSERT_EQ(in_a_process([&] { return run_twice({}); }), kWell);
        std::vector<AllocationSite> sites;
        for (const AllocationSite& site : progress_->sites)
            if (site.hash && (!later || site.times > 1)) sites.push_back(site);
        EXPECT_GT(progress_->met, 500u) << "the run is too short to mean anything";
        std::sort(sites.begin(), sites.end(), [](const auto& a, const auto& b) { return a.number < b.number; });
        const uint64_t seed = number_in("STAGEHAND_STRESS_SEED", static_cast<uint64_t>(time(nullptr))),
                       only = number_in("STAGEHAND_STRESS_SITE", 0);
        const uint64_t stride = only ? 1 : std::max<uint64_t>(1, sites.size() / scaled(kRuns)), first = seed % stride;
        uint64_t reported = 0, lost = 0, runs = 0, met = 0;
        for (size_t i = first; i < sites.size(); i += stride) {
            if (only && sites[i].hash != only) continue;
            const uint64_t at = later ? 2 + (sites[i].hash / 2 + seed / stride) % (sites[i].times - 1) : 1;
            const AllocationFailure failure = {sites[i].hash, sites[i].caller, at, count};
            const int ending = in_a_process([&] { return run_twice(failure); }, reported ? kNotAgain : kPatience);
            runs++;
            met += progress_->failed > 0;
            lost += ending == kLost;
            if (ending == kWell || ending == kLost) continue;
            report(sites[i].number, failure, ending);
            if (++reported == kMostReported) FAIL() << "and so on";
        }
        std::printf(
            "%zu sites, every %zu-th from %zu on, %zu runs, %zu of them met a failure, in %zu a runtime was lost\n",
            sites.size(), size_t(stride), size_t(first), size_t(runs), size_t(met), size_t(lost));
        EXPECT_GT(met, runs / 2) << "the sites are not met again, or there is none of that name";
    }

    // Makes one run with failures and one run without. The callers of this function are not part of a site.
    __attribute__((noinline)) int run_twice(const AllocationFailure& failure) {
        const size_t files_before = entries("/proc/self/fd"), before = threads_before();
        bool lost = false;
        {
            EveryCall run(*progress_, folder_.path(), 4 + 2 * static_cast<int>(failure.count));
            fail_allocations(progress_, failure, __builtin_return_address(0));
            run.run();
            let_allocations_be();
            lost = run.lost();
            if (!failure.site) {
                EXPECT_EQ(run.called(), every_call()) << "not every function of the interface is called";
            }
        }
        EXPECT_TRUE(host::all_memory_statistics().empty()) << "the device is still open";
        EXPECT_EQ(threads_left(before), 0u) << "threads are left";
        EXPECT_LE(entries("/proc/self/fd"), files_before + 1) << "descriptors are left, beside the process's mark";
        progress_->call = "the second run";
        EveryCall again(*progress_, folder_.path(), 1);
        again.run();
        EXPECT_FALSE(again.lost());
        EXPECT_TRUE(host::all_memory_statistics().empty()) << "the device is still open";
        return lost ? kLost : kWell;
    }

    static int failures_so_far() {
        return testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count();
    }

    // Returns how the child process ended. The process is killed if it does not end by itself.
    int in_a_process(const std::function<int()>& work, int patience = kPatience) {
        int ends[2];
        if (pipe(ends) != 0) return kFailed;
        std::fflush(nullptr);
        const pid_t child = fork();
        if (child == 0) {
            ::close(ends[0]);
            this_is_the_tests_thread();
            const int before = failures_so_far();
            int ending = work();
            if (failures_so_far() > before)
                ending = kFailed;
            else if (__lsan_do_recoverable_leak_check && __lsan_do_recoverable_leak_check())
                ending = kLeaks;
            std::fflush(nullptr);
            _exit(ending);
        }
        ::close(ends[1]);
        pollfd ended = {ends[0], POLLIN, 0};  // the other end closes with the process
        const bool in_time = poll(&ended, 1, patience) > 0;
        ::close(ends[0]);
        if (!in_time) kill(child, SIGABRT);
        int status = 0;
        waitpid(child, &status, 0);
        if (!in_time) return kWaits;
        return WIFEXITED(status) ? WEXITSTATUS(status) : kKilled + WTERMSIG(status);
    }

    // Returns function names if there is a tool for them, else positions in the files.
    std::string callers_text() const {
        std::string text;
        for (int i = 1; i < progress_->depth;) {
            Dl_info place = {};
            if (!dladdr(progress_->callers[i], &place)) {
                i++;
                continue;
            }
            std::ostringstream command;
            command << "addr2line -Cfpse " << place.dli_fname << std::hex;
            for (Dl_info same = place;
                 i < progress_->depth && dladdr(progress_->callers[i], &same) && same.dli_fbase == place.dli_fbase; i++)
                command << " 0x" << static_cast<char*>(progress_->callers[i]) - static_cast<char*>(place.dli_fbase) - 1;
            std::string names;
            if (FILE* const tool = popen((command.str() + " 2>/dev/null").c_str(), "r")) {
                char line[512];
                while (std::fgets(line, sizeof line, tool)) names += std::string("  ") + line;
                pclose(tool);
            }
            text += names.empty() ? "  " + command.str() + "\n" : names;
        }
        return text;
    }

    void report(uint64_t number, const AllocationFailure& failure, int ending) {
        std::ostringstream text;
        if (ending == kWaits)
            text << "waits for ever in ";
        else if (ending > kKilled)
            text << "ended by signal " << ending - kKilled << " in ";
        else
            text << (ending == kLeaks ? "leaks" : ending == kFailed ? "failed" : "ended") << ", last in ";
        text << progress_->call.load() << "\nn = " << number << ": " << failure.count << " from allocation "
             << failure.at << " of that site on failed, in " << progress_->failed_in << " on thread \""
             << progress_->failed_on << "\"\nagain with STAGEHAND_STRESS_SITE=" << failure.site
             << " and --gtest_filter=Allocations." << testing::UnitTest::GetInstance()->current_test_info()->name()
             << "; called from\n";
        ADD_FAILURE() << text.str() << callers_text();
    }

    AllocationProgress* progress_ = nullptr;

private:
    Folder folder_;
};

// This process does not use the library. So the first run of each child meets every allocation that is made only once.
TEST_F(Allocations, one_fails) { spread_over_sites(false, 1); }

TEST_F(Allocations, one_fails_later) { spread_over_sites(true, 1); }

TEST_F(Allocations, many_fail_in_a_row) { spread_over_sites(false, 30); }

}  // namespace
}  // namespace stagehand::test
