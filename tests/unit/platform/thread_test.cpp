#include "platform/thread.h"

#include <csignal>
#include <string>

#include <pthread.h>

#include <gtest/gtest.h>

namespace stagehand::platform {
namespace {

TEST(StartThread, RunsDeafToSignalsAndLeavesTheMakersMask) {
    sigset_t before, after;
    pthread_sigmask(SIG_SETMASK, nullptr, &before);
    sigset_t inside;
    sigemptyset(&inside);
    std::thread thread;
    ASSERT_TRUE(start_thread(
                    "sh-test", [&] { pthread_sigmask(SIG_SETMASK, nullptr, &inside); }, &thread)
                    .ok());
    thread.join();
    pthread_sigmask(SIG_SETMASK, nullptr, &after);
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGPIPE}) {
        EXPECT_EQ(sigismember(&inside, signal), 1);
        EXPECT_EQ(sigismember(&after, signal), sigismember(&before, signal));
    }
}

}  // namespace
}  // namespace stagehand::platform
