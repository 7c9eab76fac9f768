// Processes that end with an open host device, and a process that forks. The threads of the device must not delay the
// end.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "host/host_backend.h"

namespace stagehand::host {
namespace {

void wait_for_ever(void*) {
    while (true) pause();
}

// Opens a device with four streams: an idle stream, a running stream, a sleeping stream and a stream that waits for an
// event.
sh_backend_device* open_busy_device() {
    const sh_backend& backend = *host_backend();
    sh_backend_device* device = nullptr;
    sh_backend_device_info info = {};
    if (backend.device_open(0, "capacity=1MiB;bandwidth=1e9", &device, &info) < 0) return nullptr;
    sh_stream streams[4] = {};
    for (sh_stream& stream : streams) backend.stream_create(device, &stream);
    sh_backend_event event = 0;
    backend.event_create(device, 0, &event);
    backend.stream_launch(device, streams[1], wait_for_ever, nullptr, -1);
    backend.event_record(device, event, streams[1]);
    backend.stream_launch(device, streams[2], nullptr, nullptr, 1000000000000);
    backend.stream_wait_event(device, streams[3], event);
    return device;
}

TEST(HostExitDeathTest, OpenDevicesDoNotHoldUpTheProcess) {
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    EXPECT_EXIT({ std::exit(open_busy_device() ? 7 : 8); }, testing::ExitedWithCode(7), "");
}

TEST(HostExitDeathTest, NorDoTheyAfterMainReturned) {
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    EXPECT_EXIT(
        {
            open_busy_device();
            std::atexit([] { std::_Exit(9); });  // reached only if no earlier exit handler hangs
            std::exit(1);
        },
        testing::ExitedWithCode(9), "");
}

// The child has no threads of streams, but it must still be able to end.
TEST(HostExitDeathTest, AForkedChildCanExit) {
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    EXPECT_EXIT(
        {
#if defined(__SANITIZE_ADDRESS__)
            // After all that the backend does at exit: the search for leaks waits for locks that threads of the parent
            // may have held.
            std::atexit([] { std::_Exit(5); });
#endif
            open_busy_device();
            const pid_t child = fork();
            if (child == 0) std::exit(5);
            int status = 0;
            waitpid(child, &status, 0);
            std::_Exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
        },
        testing::ExitedWithCode(5), "");
}

}  // namespace
}  // namespace stagehand::host
