// A failure of every single allocation of the library, on all of its threads, each in a process of its own: calls say that there is no memory
// and work when they are made again, nothing waits for ever, nothing is left behind, and everything works afterwards.
#include <dirent.h>
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <functional>
#include <new>
#include <sstream>

#include "../unit/telemetry/monitor_client.h"
#include "engine.h"
#include "every_call.h"
#include "host/host_backend.h"
#include "scale.h"

// Where the program is built with LeakSanitizer.
extern "C" int __lsan_do_recoverable_leak_check() __attribute__((weak));

namespace stagehand::test {
namespace {

constexpr int kPatience = 60'000;        // in milliseconds
constexpr int kNotAgain = 30'000;        // once something has failed: the list is wanted then
constexpr uint64_t kMostReported = 40;   // failures

size_t entries(const char* folder) {
    DIR* const directory = opendir(folder);
    size_t count = 0;
    while (readdir(directory)) count++;
    closedir(directory);
    return count;
}

std::set<std::string> every_call() {
    std::ifstream file(STAGEHAND_MAP);
    std::set<std::string> names;
    for (std::string line; std::getline(file, line);)
        if (const size_t name = line.find("sh_"); name != std::string::npos) names.insert(line.substr(name, line.find(';') - name));
    return names;
}

class Allocations : public testing::Test {
protected:
    enum Ending { kWell = 0, kLost = 70, kFailed = 71, kLeaks = 72, kWaits = 1000, kKilled = 2000 };

    void SetUp() override {
        if (!std::getenv("STAGEHAND_BACKEND_PATH")) GTEST_SKIP() << "STAGEHAND_BACKEND_PATH does not lead to the capture backend";
        if (!on_host_backend()) GTEST_SKIP() << "only the host backend's device is opened anew in each process";
        void* const shared = mmap(nullptr, sizeof(AllocationProgress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        ASSERT_NE(shared, MAP_FAILED);
        progress_ = new (shared) AllocationProgress;
    }

    // Every `stride`th site fails, for the first time, or once later; and `count` allocations from there on.
    void every_site(uint64_t stride, bool later, uint64_t count) {
        ASSERT_EQ(in_a_process([&] { return run_twice({0, 1, 1}); }), kWell);
        std::vector<AllocationSite> sites;
        for (const AllocationSite& site : progress_->sites)
            if (site.hash) sites.push_back(site);
        EXPECT_GT(sites.size(), 500u) << "the run is too short to mean anything";
        uint64_t reported = 0, lost = 0, runs = 0, met = 0;
        for (size_t i = 0; i < sites.size(); i += stride) {
            if (later && sites[i].times == 1) continue;
            const AllocationFailure failure = {sites[i].hash, later ? 2 + sites[i].hash / 2 % (sites[i].times - 1) : 1, count};
            const int ending = in_a_process([&] { return run_twice(failure); }, reported ? kNotAgain : kPatience);
            runs++;
            met += progress_->failed > 0;
            lost += ending == kLost;
            if (ending == kWell || ending == kLost) continue;
            report(failure, ending);
            if (++reported == kMostReported) FAIL() << "and so on";
        }
        std::printf("%zu sites, %zu runs, %zu of them met a failure, in %zu a runtime was lost\n", sites.size(), size_t(runs), size_t(met), size_t(lost));
        EXPECT_GT(met, runs / 2);
    }

    // One run with failures, one without.
    int run_twice(const AllocationFailure& failure) {
        const size_t files_before = entries("/proc/self/fd");
        bool lost = false;
        {
            EveryCall run(*progress_, folder_.path(), 4 + 2 * static_cast<int>(failure.count));
            fail_allocations(progress_, failure);
            run.run();
            let_allocations_be();
            lost = run.lost();
            if (!failure.site) {
                EXPECT_EQ(run.called(), every_call()) << "not every function of the interface is called";
            }
        }
        EXPECT_TRUE(host::all_memory_statistics().empty()) << "the device is still open";
        EXPECT_EQ(entries("/proc/self/task"), 3u) << "threads are left";   // with . and ..
        EXPECT_LE(entries("/proc/self/fd"), files_before + 1) << "descriptors are left, beside the process's mark";
        progress_->call = "the second run";
        EveryCall again(*progress_, folder_.path(), 1);
        again.run();
        EXPECT_FALSE(again.lost());
        EXPECT_TRUE(host::all_memory_statistics().empty()) << "the device is still open";
        return lost ? kLost : kWell;
    }

    static int failures_so_far() { return testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count(); }

    // How it ended; one that does not end is killed.
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
            if (failures_so_far() > before) ending = kFailed;
            else if (__lsan_do_recoverable_leak_check && __lsan_do_recoverable_leak_check()) ending = kLeaks;
            std::fflush(nullptr);
            _exit(ending);
        }
        ::close(ends[1]);
        pollfd ended = {ends[0], POLLIN, 0};   // the other end closes with the process
        const bool in_time = poll(&ended, 1, patience) > 0;
        ::close(ends[0]);
        if (!in_time) kill(child, SIGABRT);
        int status = 0;
        waitpid(child, &status, 0);
        if (!in_time) return kWaits;
        return WIFEXITED(status) ? WEXITSTATUS(status) : kKilled + WTERMSIG(status);
    }

    // Names where there is a tool for it, else places in the files.
    std::string callers_text() const {
        std::string text;
        for (int i = 1; i < progress_->depth; i++) {
            Dl_info place = {};
            if (!dladdr(progress_->callers[i], &place)) continue;
            std::ostringstream command;
            command << "addr2line -Cfpse " << place.dli_fname << " " << std::hex << "0x"
                    << static_cast<char*>(progress_->callers[i]) - static_cast<char*>(place.dli_fbase) - 1;
            std::string name = "  " + command.str() + "\n";
            if (FILE* const tool = popen((command.str() + " 2>/dev/null").c_str(), "r")) {
                char line[512];
                if (std::fgets(line, sizeof line, tool)) name = std::string("  ") + line;
                pclose(tool);
            }
            text += name;
        }
        return text;
    }

    void report(const AllocationFailure& failure, int ending) {
        std::ostringstream text;
        if (ending == kWaits) text << "waits for ever in ";
        else if (ending > kKilled) text << "ended by signal " << ending - kKilled << " in ";
        else text << (ending == kLeaks ? "leaks" : ending == kFailed ? "failed" : "ended") << ", last in ";
        text << progress_->call.load() << "\nallocation " << failure.at << " of site " << failure.site << " failed in " << progress_->failed_in
             << " on thread \"" << progress_->failed_on << "\", called from\n";
        ADD_FAILURE() << text.str() << callers_text();
    }

    AllocationProgress* progress_ = nullptr;

private:
    Folder folder_;
};

// The library is not used in this process: the first run of each child meets all that is made once.
TEST_F(Allocations, one_fails) { every_site(std::max<uint64_t>(1, 5 / scaled(1)), false, 1); }

TEST_F(Allocations, one_fails_later) { every_site(std::max<uint64_t>(1, 17 / scaled(1)), true, 1); }

TEST_F(Allocations, many_fail_in_a_row) { every_site(std::max<uint64_t>(1, 17 / scaled(1)), false, 30); }

}  // namespace
}  // namespace stagehand::test
