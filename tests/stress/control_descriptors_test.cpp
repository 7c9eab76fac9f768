// The control of a process that has closed 0, 1 and 2: none of its sockets, and of what its loop opens, is there.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vector>

#include <gtest/gtest.h>

#include <stagehand/stagehand.h>

#include "../core/socket_client.h"
#include "http_client.h"

namespace stagehand::test {
namespace {

bool has_standard_descriptor() {
    for (const int number : {0, 1, 2})
        if (fcntl(number, F_GETFD) >= 0) return true;
    return false;
}

// Returns the number of the part that failed, or 0.
int serves_as_a_daemon(const Folder& folder) {
    for (const int number : {0, 1, 2}) close(number);
    const std::string path = folder.at("control");
    for (const bool tcp : {false, true}) {
        sh_device* device = nullptr;
        if (sh_device_open("host", nullptr, &device) != SH_OK) return 1;
        sh_control_options options = SH_CONTROL_OPTIONS_INIT;
        options.address = tcp ? "127.0.0.1:0" : path.c_str();
        options.token = tcp ? "token-0123456789" : nullptr;
        sh_scope* control = nullptr;
        auto info = sh_sized<sh_control_info>();
        if (sh_control_start(device, &options, &info, &control) != SH_OK) return 2;
        if (has_standard_descriptor()) return 3;
        HttpClient client(info.address);  // which has a standard descriptor itself
        client.send(request_text("GET", "/memory", "", tcp ? "token-0123456789" : ""));
        if (client.receive().status != 200) return 5;
        if (fcntl(1, F_GETFD) >= 0 || fcntl(2, F_GETFD) >= 0) return 6;
        if (sh_scope_end(control) != SH_OK) return 7;
        sh_device_close(device);
    }
    return 0;
}

TEST(ControlDescriptors, AreNoneOfTheStandardOnes) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EXIT(
        {
            const Folder folder;
            _exit(serves_as_a_daemon(folder));
        },
        testing::ExitedWithCode(0), "");
}

// A process that closes every descriptor, and gets the numbers for its next files.
int stops_without_descriptors(const Folder& folder, bool tcp) {
    alarm(60);  // ends what waits for ever
    sh_device* device = nullptr;
    if (sh_device_open("host", nullptr, &device) != SH_OK) return 1;
    const std::string path = folder.at("control");
    sh_control_options options = SH_CONTROL_OPTIONS_INIT;
    options.address = tcp ? "127.0.0.1:0" : path.c_str();
    options.token = tcp ? "token-0123456789" : nullptr;
    sh_scope* control = nullptr;
    auto info = sh_sized<sh_control_info>();
    if (sh_control_start(device, &options, &info, &control) != SH_OK) return 2;
    HttpClient waiting(info.address), client(info.address);
    waiting.send("GET /mem");
    client.send(request_text("GET", "/memory", "", tcp ? "token-0123456789" : ""));
    if (client.receive().status != 200) return 4;
    if (close_range(3, ~0U, 0) != 0) return 5;
    std::vector<int> files;
    for (int i = 0; i < 60; i++) files.push_back(memfd_create("test", MFD_CLOEXEC));
    if (sh_scope_end(control) != SH_OK) return 6;
    sh_device_close(device);
    for (const int file : files) {
        struct stat status = {};
        if (fstat(file, &status) != 0 || status.st_size != 0) return 7;
    }
    return 0;
}

TEST(ControlDescriptors, MayBeClosedByTheProcess) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    for (const bool tcp : {false, true})
        EXPECT_EXIT(
            {
                const Folder folder;
                _exit(stops_without_descriptors(folder, tcp));
            },
            testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace stagehand::test
