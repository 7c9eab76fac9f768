// The snapshot of a process through a control without a device: its lifetime, who may ask, and that its figures are
// those of the other calls.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>

#include "../core/engine.h"
#include "../core/socket_client.h"
#include "http_client.h"

namespace stagehand::test {
namespace {

// A control without a device, in a folder of its own.
class ProcessSnapshot : public testing::Test {
protected:
    void TearDown() override { stop(); }
    sh_status start_at(const std::string& path) {
        sh_control_options options = SH_CONTROL_OPTIONS_INIT;
        options.address = path.c_str();
        return sh_control_start(nullptr, &options, nullptr, &control_);
    }
    void start() { SUCCEEDS(start_at(path())); }
    void stop() { SUCCEEDS(sh_scope_end(std::exchange(control_, nullptr))); }
    std::string path() const { return folder_.at("s"); }
    nlohmann::json asked() const { return ask(path()); }

    Folder folder_;
    sh_scope* control_ = nullptr;
};

TEST_F(ProcessSnapshot, StartsAndStops) {
    for (int i = 0; i < 3; i++) {
        start();
        EXPECT_EQ(mode_of(path()), 0600u);
        EXPECT_EQ(asked()["pid"], getpid());
        EXPECT_EQ(asked()["devices"], nlohmann::json::array());
        EXPECT_EQ(http(path(), "GET", "/memory").json()["error"], "no_device");
        stop();
        EXPECT_FALSE(exists(path()));
    }
}

TEST_F(ProcessSnapshot, HasADefaultPath) {
    const char* const before = std::getenv("XDG_RUNTIME_DIR");
    const std::string kept = before ? before : "";
    setenv("XDG_RUNTIME_DIR", folder_.path().c_str(), 1);
    const sh_status started = sh_control_start(nullptr, nullptr, nullptr, &control_);
    before ? setenv("XDG_RUNTIME_DIR", kept.c_str(), 1) : unsetenv("XDG_RUNTIME_DIR");
    ASSERT_EQ(started, SH_OK) << why();
    EXPECT_EQ(mode_of(folder_.at("stagehand")), 0700u);
    EXPECT_EQ(ask(folder_.at("stagehand/" + std::to_string(getpid()) + ".sock"))["pid"], getpid());
}

TEST_F(ProcessSnapshot, TellsWhatTheOtherCallsTell) {
    start();
    TestDevice device;
    Model model(device, equal_blocks(8, 8 * kPage), {.name = "the \"model\""}), other(device, equal_blocks(3, kPage));
    for (int i = 0; i < 3; i++) SUCCEEDS(model.step(forward(8)));
    SUCCEEDS(sh_reserve(model.runtime(), 20 * kPage, SH_PRIORITY_PRIMARY, nullptr));
    SUCCEEDS(model.step(forward(8)));

    const auto document = asked();
    EXPECT_EQ(document["busy"], 0);
    ASSERT_EQ(document["devices"].size(), 1u) << document;
    const auto& told = document["devices"][0];
    const sh_memory_info memory = device.memory();
    EXPECT_EQ(told["name"], "host:0");
    EXPECT_EQ(told["link_bytes_per_second"], 4'000'000'000u);
    EXPECT_EQ(told["runtime_count"], 2);
    EXPECT_EQ(told["budget_bytes"], memory.budget_bytes);
    EXPECT_EQ(told["used_bytes"], memory.used_bytes);
    EXPECT_EQ(told["peak_bytes"], memory.peak_bytes);
    EXPECT_EQ(told["total_bytes"], memory.total_bytes);
    EXPECT_EQ(told["page_bytes"], kPage);
    EXPECT_EQ(told["reserved_bytes"], memory.reserved_bytes);
    EXPECT_GE(memory.reserved_bytes, 20 * kPage);
    EXPECT_EQ(told["headroom_bytes"], memory.headroom_bytes);
    ASSERT_EQ(told["runtimes"].size(), 2u);

    const auto& runtime = told["runtimes"][0];
    const sh_runtime_stats stats = model.stats();
    EXPECT_EQ(runtime["name"], "the \"model\"");
    EXPECT_EQ(runtime["lost"], false);
    EXPECT_EQ(runtime["steps"], 4);
    EXPECT_EQ(runtime["acquires"], stats.acquires);
    EXPECT_EQ(runtime["hits"], stats.hits);
    EXPECT_EQ(runtime["misses"], stats.misses);
    EXPECT_EQ(runtime["plans"], stats.plans);
    EXPECT_EQ(runtime["resident_bytes"], stats.resident_bytes);
    EXPECT_EQ(runtime["ring_bytes"], stats.ring_bytes);
    EXPECT_EQ(runtime["held_bytes"], stats.held_bytes);
    EXPECT_EQ(runtime["share_bytes"], stats.share_bytes);
    EXPECT_EQ(runtime["reserved_bytes"], stats.reserved_bytes);
    EXPECT_GT(stats.bytes_to_device, 0u);
    EXPECT_EQ(told["runtimes"][1]["steps"], 0);
    EXPECT_NE(runtime["id"], told["runtimes"][1]["id"]);
    EXPECT_EQ(asked()["devices"][0]["runtimes"][0]["id"], runtime["id"]);
}

// Returns what a child of this process gets as another user: 0 for an answer, 1 for a connection that is closed, 2 for
// no connection.
int asked_by_another_user(const std::string& path) {
    const pid_t child = fork();
    if (child == 0) {
        if (setgid(65534) != 0 || setuid(65534) != 0) _exit(9);
        Connection connection(path);
        if (!connection.connected()) _exit(connection.error() == EACCES ? 2 : 8);
        connection.send("GET /snapshot HTTP/1.0\r\n\r\n");
        _exit(connection.receive().empty() ? 1 : 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 7;
}

TEST_F(ProcessSnapshot, OtherUsersGetNoAnswer) {
    if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
    start();
    chmod(folder_.path().c_str(), 0755);
    EXPECT_EQ(asked_by_another_user(path()), 2);
    // This holds even if the file's rights let other users in.
    chmod(path().c_str(), 0666);
    EXPECT_EQ(asked_by_another_user(path()), 1);
    EXPECT_EQ(asked()["pid"], getpid());
}

TEST_F(ProcessSnapshot, AForkedChildLetsItGo) {
    TestDevice device;  // from the first handle on a fork is noticed
    start();
    ASSERT_EQ(link(path().c_str(), folder_.at("alias").c_str()), 0);
    int to_child[2], from_child[2];
    ASSERT_EQ(pipe(to_child), 0);
    ASSERT_EQ(pipe(from_child), 0);
    const pid_t child = fork();
    if (child == 0) {
        close(to_child[1]);
        char byte = sh_scope_end(control_) == SH_ERROR_FORKED && start_at(path()) == SH_ERROR_FORKED ? 'y' : 'n';
        if (write(from_child[1], &byte, 1) != 1) _exit(3);
        const ssize_t ended = read(to_child[0], &byte, 1);  // until the parent says so, or ends
        std::exit(ended == 1 ? 4 : 5);
    }
    char byte = 0;
    ASSERT_EQ(read(from_child[0], &byte, 1), 1);
    EXPECT_EQ(byte, 'y');
    EXPECT_EQ(asked()["pid"], getpid());
    // The child lives; had it kept the socket, somebody would seem to listen.
    stop();
    EXPECT_FALSE(Connection(folder_.at("alias")).connected());
    start();
    ASSERT_EQ(write(to_child[1], "e", 1), 1);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 4) << status;
    // The child's end does not remove the file either.
    EXPECT_EQ(asked()["pid"], getpid());
    for (const int end : {to_child[0], to_child[1], from_child[0], from_child[1]}) close(end);
}

}  // namespace
}  // namespace stagehand::test
