// Files and pipes that the library writes to raise no signal: a reader that has gone and a file that is too large are
// errors of the calls.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <functional>

#include <gtest/gtest.h>

#include "../core/engine.h"
#include "../core/socket_client.h"
#include "base/no_signals.h"

namespace stagehand::test {
namespace {

std::atomic<int> raised{0};

class Signals : public testing::Test {
protected:
    void SetUp() override {
        raised = 0;
        struct sigaction counts = {};
        counts.sa_handler = [](int) { raised++; };
        for (size_t i = 0; i < 2; i++) sigaction(kSignals[i], &counts, &before_[i]);
    }
    void TearDown() override {
        for (size_t i = 0; i < 2; i++) sigaction(kSignals[i], &before_[i], nullptr);
        EXPECT_EQ(raised, 0);
    }
    // Opens a pipe by its name, and runs `work` when its reader has gone.
    void without_reader(const std::function<void(const char* path)>& open, const std::function<void()>& work) {
        const std::string path = folder_.at("pipe");
        ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
        const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
        ASSERT_GE(reader, 0);
        open(path.c_str());
        close(reader);
        work();
    }
    // Files may have no more than these bytes while `work` runs.
    static void with_limit(rlim_t bytes, const std::function<void()>& work) {
        rlimit before = {};
        ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
        const rlimit small = {bytes, before.rlim_max};
        ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
        work();
        ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    }
    sh_status step(Model& model) {
        EXPECT_SUCCEEDS(sh_step_begin(model.runtime(), nullptr));
        return sh_step_end(model.runtime());
    }

    static constexpr int kSignals[] = {SIGPIPE, SIGXFSZ};
    struct sigaction before_[2] = {};
    Folder folder_;
};

TEST_F(Signals, TelemetryWhoseReaderHasGoneIsAnError) {
    SoloModel model({}, equal_blocks(2, kPage));
    sh_scope* lines_of_steps = nullptr;
    without_reader(
        [&](const char* path) { SUCCEEDS(sh_telemetry_start(model.runtime(), nullptr, path, &lines_of_steps)); },
        [&] {
            EXPECT_REFUSED(step(model), SH_ERROR_IO, "Broken pipe");
            EXPECT_EQ(sh_scope_end(lines_of_steps), SH_ERROR_IO);
            EXPECT_EQ(step(model), SH_OK) << "the steps go on";
        });
}

TEST_F(Signals, TelemetryOfASpillerWhoseReaderHasGoneIsAnError) {
    TestDevice device;
    sh_spiller* spiller = nullptr;
    SUCCEEDS(sh_spiller_create(device.get(), nullptr, &spiller));
    without_reader([&](const char* path) { SUCCEEDS(sh_telemetry_start(nullptr, spiller, path, nullptr)); },
                   [&] {
                       SUCCEEDS(sh_spiller_begin_step(spiller, 1));
                       EXPECT_EQ(sh_spiller_end_step(spiller), SH_ERROR_IO);
                   });
    sh_spiller_destroy(spiller);
}

TEST_F(Signals, ATraceWhoseReaderHasGoneIsAnError) {
    SoloModel model({}, equal_blocks(2, kPage));
    sh_scope* trace = nullptr;
    without_reader([&](const char* path) { SUCCEEDS(sh_trace_start(path, &trace)); },
                   [&] {
                       for (int i = 0; i < 500; i++) EXPECT_EQ(step(model), SH_OK);
                       EXPECT_EQ(sh_scope_end(trace), SH_ERROR_IO);
                   });
}

TEST_F(Signals, FilesThatMayNotGrowAreAnError) {
    SoloModel model({}, equal_blocks(2, kPage));
    SUCCEEDS(sh_telemetry_start(model.runtime(), nullptr, folder_.at("telemetry").c_str(), nullptr));
    sh_scope* trace = nullptr;
    SUCCEEDS(sh_trace_start(folder_.at("trace").c_str(), &trace));
    EXPECT_EQ(step(model), SH_OK);
    with_limit(2000, [&] {
        sh_status status = SH_OK;
        for (int i = 0; i < 500; i++)
            if (const sh_status now = step(model); now != SH_OK) status = now;
        EXPECT_EQ(status, SH_ERROR_IO);
        EXPECT_EQ(sh_scope_end(trace), SH_ERROR_IO);
    });
}

// Lines that find no room are left out whole, and the file goes on when there is room again.
TEST_F(Signals, ALineIsWholeAlsoAfterAnError) {
    SoloModel model({}, equal_blocks(2, kPage));
    const std::string path = folder_.at("telemetry");
    sh_scope* lines_of_steps = nullptr;
    SUCCEEDS(sh_telemetry_start(model.runtime(), nullptr, path.c_str(), &lines_of_steps));
    with_limit(50, [&] { EXPECT_EQ(step(model), SH_ERROR_IO); });
    EXPECT_EQ(step(model), SH_OK);
    SUCCEEDS(sh_scope_end(lines_of_steps));
    std::ifstream file(path);
    int lines = 0;
    for (std::string line; std::getline(file, line); lines++) EXPECT_TRUE(nlohmann::json::accept(line)) << line;
    EXPECT_GE(lines, 2);
}

TEST_F(Signals, ContentsThatDoNotFitIntoAFileAreAnError) {
    TestDevice device;
    if (devices_without_pages()) GTEST_SKIP() << "memory without pages cannot be paused";
    sh_alloc_options options = SH_ALLOC_OPTIONS_INIT;
    options.contents = SH_CONTENTS_FILE;
    uint64_t address = 0;
    SUCCEEDS(sh_alloc(device.get(), 8 * kPage, &options, &address));
    sh_pause_options to_file = SH_PAUSE_OPTIONS_INIT;
    to_file.folder = folder_.path().c_str();
    with_limit(kPage, [&] { EXPECT_EQ(sh_pause(device.get(), &to_file, nullptr), SH_ERROR_IO) << why(); });
    SUCCEEDS(sh_pause(device.get(), &to_file, nullptr));
    SUCCEEDS(sh_resume(device.get(), nullptr, nullptr));
    SUCCEEDS(sh_free(device.get(), address));
}

// What another has sent the thread, and it has not taken yet, is none of the library's business.
TEST_F(Signals, OneThatIsPendingStays) {
    sigset_t pipe, before, pending;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &pipe, &before), 0);
    ASSERT_EQ(pthread_kill(pthread_self(), SIGPIPE), 0);
    {
        const NoSignals quiet;
        int ends[2];
        ASSERT_EQ(::pipe(ends), 0);
        close(ends[0]);
        EXPECT_EQ(write(ends[1], "x", 1), -1);
        close(ends[1]);
    }
    sigpending(&pending);
    EXPECT_TRUE(sigismember(&pending, SIGPIPE));
    const timespec no_time = {};
    EXPECT_EQ(sigtimedwait(&pipe, nullptr, &no_time), SIGPIPE);
    ASSERT_EQ(pthread_sigmask(SIG_SETMASK, &before, nullptr), 0);
}

}  // namespace
}  // namespace stagehand::test
