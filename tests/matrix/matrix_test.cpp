// Runs the fault matrix. The first run of a scenario counts its calls and its allocations. The cells of a row run in a
// process of their own, which may crash or hang. STAGEHAND_STRESS_SCALE lengthens the rows, up to every call, and
// STAGEHAND_MATRIX_CELL names the one cell that is to run.
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "../stress/scale.h"
#include "../unit/core/socket_client.h"
#include "fault/fault.h"
#include "host/host_backend.h"
#include "matrix.h"
#include "plugin.h"

// Defined if the program is built with LeakSanitizer.
extern "C" int __lsan_do_recoverable_leak_check() __attribute__((weak));

namespace stagehand::test {
namespace {

constexpr int kPatience = 60'000;  // in milliseconds, for one cell
constexpr size_t kMostReported = 5;

// A process takes ten times as long under ThreadSanitizer.
constexpr uint64_t kPart = kOneThreadOnly ? 4 : 1;

struct Row {
    const char* name;
    Fails fails;
    Lasts lasts;
    bool delayed;
    uint64_t cells;  // at most, at scale 1
};
constexpr Row kRows[] = {{"nothing_fails_delayed", Fails::nothing, Lasts::never, true, 16},
                         {"one_call_fails", Fails::device, Lasts::once, false, 240},
                         {"one_call_fails_delayed", Fails::device, Lasts::once, true, 40},
                         {"calls_in_a_row_fail", Fails::device, Lasts::in_a_row, false, 80},
                         {"calls_fail_until_given_up", Fails::device, Lasts::until_given_up, false, 80},
                         {"calls_fail_for_ever", Fails::device, Lasts::for_ever, false, 80},
                         {"one_call_of_the_helper_fails", Fails::helper, Lasts::once, false, 80},
                         {"calls_of_the_helper_fail_for_ever", Fails::helper, Lasts::for_ever, true, 80},
                         {"copies_of_the_helper_are_lost", Fails::copies_of_helper, Lasts::for_ever, false, 40},
                         {"one_allocation_fails", Fails::allocation, Lasts::once, false, 24},
                         {"a_later_allocation_fails", Fails::later_allocation, Lasts::once, false, 12},
                         {"allocations_in_a_row_fail", Fails::allocation, Lasts::in_a_row, false, 12}};

std::vector<Scenario> scenarios() {
    std::vector<Scenario> all;
    for (auto* const some : {weight_scenarios, memory_scenarios, service_scenarios})
        for (const Scenario& scenario : some())
            if ((on_host_backend() || scenario.on_gpus) && !(scenario.needs_pages && devices_without_pages()))
                all.push_back(scenario);
    return all;
}

struct Place {
    Scenario scenario;
    Row row;
};
[[maybe_unused]] void PrintTo(const Place& place, std::ostream* out) { *out << place.scenario.name; }
std::vector<Place> places() {
    std::vector<Place> all;
    for (const Scenario& scenario : scenarios())
        for (const Row& row : kRows) {
            const bool of_helper = row.fails == Fails::helper || row.fails == Fails::copies_of_helper;
            if (of_helper && !scenario.helped) continue;
            if (row.fails >= Fails::allocation && (!scenario.allocations || !on_host_backend())) continue;
            all.push_back({scenario, row});
        }
    return all;
}

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

int failures_so_far() { return testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count(); }

const char* call_name(uint64_t k) {
    const char* const name = FAULT(sh_fault_call_name)(k);
    return name ? name : "?";
}

class Matrix : public testing::TestWithParam<Place> {
protected:
    void SetUp() override {
        if (!std::getenv("STAGEHAND_BACKEND_PATH")) GTEST_SKIP() << "STAGEHAND_BACKEND_PATH names no fault backend";
        void* const shared =
            mmap(nullptr, sizeof(AllocationProgress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        ASSERT_NE(shared, MAP_FAILED);
        progress_ = new (shared) AllocationProgress;
    }
    void TearDown() override {
        if (progress_) munmap(progress_, sizeof *progress_);
    }

    // The callers of this function are not part of an allocation's site.
    __attribute__((noinline)) void run(const Scenario& scenario, const Cell& cell) {
        const size_t files = entries("/proc/self/fd"), threads = entries("/proc/self/task");
        const bool allocations = cell.fails >= Fails::allocation;
        progress_->cell = cell.k;
        progress_->failed = 0;
        if (allocations) fail_allocations(progress_, cell.allocation, __builtin_return_address(0));
        {
            test::Run run(cell, *progress_, folder_.path());
            try {
                if (run.open(scenario.settings, scenario.helped)) scenario.work(run);
                let_allocations_be();
                run.finish();
            } catch (const Ended&) {
                let_allocations_be();
                run.finish();
            }
        }
        EXPECT_TRUE(host::all_memory_statistics().empty()) << "a device is still open";
        for (int k = 0; k < 1000 && entries("/proc/self/task") > threads; k++) usleep(1000);
        EXPECT_LE(entries("/proc/self/task"), threads) << "threads are left";
        EXPECT_LE(entries("/proc/self/fd"), files + 1) << "descriptors are left, beside the process's mark";
    }

    // Runs cells in a child process. Returns the number of those that are done, and whether the last one has failed.
    std::pair<size_t, bool> in_a_process(const Scenario& scenario, const std::vector<Cell>& cells, size_t from,
                                         size_t count, const std::string& label) {
        int ends[2];
        EXPECT_EQ(pipe(ends), 0);
        std::fflush(nullptr);
        const pid_t child = fork();
        if (child == 0) {
            ::close(ends[0]);
            _exit(run_all(scenario, cells, from, count, label, ends[1]));
        }
        ::close(ends[1]);
        size_t done = 0;
        bool in_time = true;
        for (char byte = 0;;) {
            pollfd ready = {ends[0], POLLIN, 0};
            in_time = poll(&ready, 1, kPatience) > 0;
            if (!in_time || ::read(ends[0], &byte, 1) <= 0) break;
            done++;
        }
        ::close(ends[0]);
        if (!in_time) kill(child, SIGABRT);
        int status = 0;
        waitpid(child, &status, 0);
        if (!in_time)
            std::printf("%s: cell %zu waits for ever in %s\n", label.c_str(), size_t(progress_->cell.load()),
                        progress_->call.load());
        if (WIFSIGNALED(status))
            std::printf("%s: cell %zu ended by signal %d in %s\n", label.c_str(), size_t(progress_->cell.load()),
                        WTERMSIG(status), progress_->call.load());
        return {done, !in_time || !WIFEXITED(status) || WEXITSTATUS(status)};
    }

    // Writes a byte for each cell that has ended well.
    int run_all(const Scenario& scenario, const std::vector<Cell>& cells, size_t from, size_t count,
                const std::string& label, int report) {
        this_is_the_tests_thread();
        note_calls(progress_);
        std::thread([] {}).join();  // a sanitizer may make a thread of its own with the first one
        usleep(1000);
        const int before = failures_so_far();
        const uint64_t lost_before = progress_->lost;
        for (size_t i = from; i < from + count; i++) {
            SCOPED_TRACE("again with STAGEHAND_MATRIX_CELL=" + std::to_string(cells[i].k) + " --gtest_filter=" + label);
            run(scenario, cells[i]);
            if (failures_so_far() == before && cells[i].fails >= Fails::allocation && cells[i].allocation.site) {
                SCOPED_TRACE("the next run");
                run(scenario, Cell());
            }
            if (failures_so_far() > before) {
                std::printf("cell %zu, call %s\n", size_t(cells[i].k), call_name(cells[i].k));
                std::fflush(nullptr);
                return 1;
            }
            (void)!write(report, "", 1);
        }
        // What copies may use for ever, as far as anybody can tell, is never freed.
        const bool lost = progress_->lost > lost_before;
        const bool lasts = cells[from].lasts > Lasts::once && (cells[from].fails < Fails::allocation || lost);
        const bool leaks = !lasts && __lsan_do_recoverable_leak_check && __lsan_do_recoverable_leak_check();
        if (leaks)
            std::printf("%s: leaks, by cell %zu at the latest\n", label.c_str(), size_t(cells[from + count - 1].k));
        std::fflush(nullptr);
        return leaks;
    }

    std::vector<Cell> cells_of(const Row& row, uint64_t cost) {
        std::vector<Cell> cells;
        Cell cell = {row.fails, row.lasts, row.delayed, 0, {}};
        const uint64_t only = number_in("STAGEHAND_MATRIX_CELL", 0);
        uint64_t count = row.fails == Fails::nothing ? scaled(row.cells) : progress_->calls;
        const uint64_t most = std::max<uint64_t>(1, scaled(row.cells) / cost / kPart);
        std::vector<AllocationSite> sites;
        if (row.fails >= Fails::allocation) {
            for (const AllocationSite& site : progress_->sites)
                if (site.hash && (row.fails == Fails::allocation || site.times > 1)) sites.push_back(site);
            std::sort(sites.begin(), sites.end(), [](const auto& a, const auto& b) { return a.number < b.number; });
            count = sites.size();
        }
        const uint64_t wanted = std::min(count, most), seed = number_in("STAGEHAND_STRESS_SEED", 0);
        for (uint64_t j = 0; j < (only ? count : wanted); j++) {
            cell.k = only ? j + 1 : 1 + (j * count / wanted + seed) % count;
            if (only && cell.k != only) continue;
            if (!sites.empty()) {
                const AllocationSite& site = sites[cell.k - 1];
                const bool later = row.fails == Fails::later_allocation;
                cell.allocation = {site.hash, site.caller, later ? 2 + (site.hash / 2 + seed) % (site.times - 1) : 1,
                                   row.lasts == Lasts::once ? 1u : 30u};
            }
            cells.push_back(cell);
        }
        return cells;
    }

    AllocationProgress* progress_ = nullptr;
    Folder folder_;
};

TEST_P(Matrix, cells) {
    const auto& [scenario, row] = GetParam();
    const auto* const info = testing::UnitTest::GetInstance()->current_test_info();
    const std::string label = std::string(info->test_suite_name()) + "." + info->name();
    // Nothing fails in the first run, which counts.
    const Cell counting = {row.fails, Lasts::never, false, 0, {}};
    ASSERT_FALSE(in_a_process(scenario, {counting}, 0, 1, label).second);
    const std::vector<Cell> cells = cells_of(row, scenario.cost);
    EXPECT_FALSE(cells.empty());
    // Each allocation fails in a new process, because some are made only once.
    const size_t at_once = row.fails >= Fails::allocation ? 1 : cells.size();
    progress_->met_failures = progress_->lost = 0;
    size_t reported = 0;
    for (size_t i = 0; i < cells.size() && reported < kMostReported;) {
        const auto [done, failed] = in_a_process(scenario, cells, i, std::min(at_once, cells.size() - i), label);
        i += done + failed;
        reported += failed;
    }
    std::printf("%zu of %zu cells met a failure, in %zu a runtime was lost\n", size_t(progress_->met_failures),
                cells.size(), size_t(progress_->lost));
    EXPECT_EQ(reported, 0u) << "cells have failed; see above";
    EXPECT_GE(progress_->met_failures, row.fails == Fails::nothing ? 0 : cells.size() / 2);
}

class Functions : public Matrix {};

TEST_P(Functions, are_all_called_by_some_scenario) {
    if (devices_without_pages()) GTEST_SKIP() << "some functions need pages";
    std::ifstream file(STAGEHAND_MAP);
    std::set<std::string> all;
    for (std::string line; std::getline(file, line);)
        if (const size_t name = line.find("sh_"); name != std::string::npos)
            all.insert(line.substr(name, line.find(';') - name));
    for (const Scenario& scenario : scenarios())
        EXPECT_FALSE(in_a_process(scenario, {Cell()}, 0, 1, scenario.name).second) << scenario.name;
    for (const char* const name : progress_->called)
        if (name) all.erase(name);
    EXPECT_EQ(all, std::set<std::string>()) << "functions that are not called";
}

INSTANTIATE_TEST_SUITE_P(Faults, Functions, testing::Values(Place()));
INSTANTIATE_TEST_SUITE_P(Faults, Matrix, testing::ValuesIn(places()), [](const auto& info) {
    return std::string(info.param.scenario.name) + "_" + info.param.row.name;
});

}  // namespace
}  // namespace stagehand::test
