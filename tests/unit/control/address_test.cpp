#include "control/address.h"

#include <gtest/gtest.h>

namespace stagehand::control {
namespace {

TEST(ControlAddress, UnixSockets) {
    for (const char* text : {"/run/x.sock", "unix:/run/x.sock"}) {
        Address address;
        ASSERT_TRUE(read_address(text, &address).ok()) << text;
        EXPECT_FALSE(address.is_tcp());
        EXPECT_EQ(address.text(), "/run/x.sock");
    }
    Address relative;
    ASSERT_TRUE(read_address("unix:x.sock", &relative).ok());
    EXPECT_EQ(relative.text(), "x.sock");
}

TEST(ControlAddress, PortsOfTheLoopbackInterface) {
    const std::pair<const char*, const char*> cases[] = {{"127.0.0.1:8431", "127.0.0.1:8431"},
                                                         {"localhost:1", "127.0.0.1:1"},
                                                         {"127.9.8.7:0", "127.9.8.7:0"},
                                                         {"[::1]:65535", "[::1]:65535"}};
    for (const auto& [given, text] : cases) {
        Address address;
        ASSERT_TRUE(read_address(given, &address).ok()) << given;
        EXPECT_TRUE(address.is_tcp());
        EXPECT_EQ(address.text(), text);
    }
}

TEST(ControlAddress, EverythingElseIsRefusedByName) {
    for (const char* text : {"0.0.0.0:80", "10.0.0.1:80", "[::]:80", "[fe80::1]:80", "example.org:80", ":80",
                             "127.0.0.1.example.org:80", "[127.0.0.1]:80", "::1:80", "[]:80"}) {
        Address address;
        const Status status = read_address(text, &address);
        EXPECT_EQ(status.code(), SH_ERROR_INVALID_ARGUMENT) << text;
        EXPECT_NE(std::string(status.text()).find(std::string("\"") + text + "\""), std::string::npos) << status.text();
        EXPECT_NE(std::string(status.text()).find("loopback"), std::string::npos) << status.text();
    }
    for (const char* text : {"", "unix:", "x.sock", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1",
                             "127.0.0.1:80x", "127.0.0.1: 80"}) {
        Address address;
        EXPECT_EQ(read_address(text, &address).code(), SH_ERROR_INVALID_ARGUMENT) << text;
    }
}

TEST(ControlAddress, TheFileHasTheDevicesName) {
    EXPECT_EQ(default_file(4711, "cuda:0"), "4711.cuda:0.control");
    EXPECT_EQ(default_file(1, "a/b c"), "1.a-b-c.control");
}

}  // namespace
}  // namespace stagehand::control
