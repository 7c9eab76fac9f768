// The library checks a plugin's description of its device before it uses the description. It reports each impossible
// field with the plugin's name, and closes the device again.
#include <gtest/gtest.h>

#include <stagehand/backend.h>
#include <stagehand/base.h>
#include <stagehand/device.h>

#include "probe_runner.h"

namespace plugins_test {
namespace {

ProbeResult open_with(const Folder& folder, const std::string& name, const std::string& options) {
    return run_probe({.arguments = {"--open", name, Folder::put_plugin(folder.path(), name), options}});
}

struct Untrue {
    const char* option;  // of the plugin: what it says
    const char* field;   // that the text names
    int closed = 1;
};
void PrintTo(const Untrue& untrue, std::ostream* out) { *out << untrue.option; }

class UntrueDevice : public testing::TestWithParam<Untrue> {};

TEST_P(UntrueDevice, IsRefusedByName) {
    Folder folder;
    const ProbeResult result = open_with(folder, "telling", GetParam().option);
    EXPECT_EQ(result.exit_code, 1) << result.output;
    EXPECT_EQ(result.status, SH_ERROR_BACKEND) << result.output;
    for (const char* word : {"telling", GetParam().field})
        EXPECT_NE(result.text.find(word), std::string::npos) << result.text;
    EXPECT_EQ(result.rest, "closed=" + std::to_string(GetParam().closed));
}

INSTANTIATE_TEST_SUITE_P(Plugins, UntrueDevice,
                         testing::Values(Untrue{"struct_size=0", "struct_size"},
                                         Untrue{"struct_size=100", "struct_size"},
                                         Untrue{"struct_size=65536", "struct_size"}, Untrue{"flags=65", "flags"},
                                         Untrue{"flags=0x80000001", "flags"}, Untrue{"description=", "description"},
                                         Untrue{"total_bytes=0", "total_bytes"},
                                         Untrue{"granularity_bytes=0", "granularity_bytes"},
                                         Untrue{"granularity_bytes=4095", "granularity_bytes"},
                                         Untrue{"granularity_bytes=12288", "granularity_bytes"},
                                         Untrue{"granularity_bytes=0x80000000", "granularity_bytes"},
                                         Untrue{"granularity_bytes=0x8000000000000000", "granularity_bytes"},
                                         Untrue{"largest_page_bytes=0", "largest_page_bytes"},
                                         Untrue{"largest_page_bytes=2048", "largest_page_bytes"},
                                         Untrue{"largest_page_bytes=12288", "largest_page_bytes"},
                                         Untrue{"link_bytes_per_second=1", "link_bytes_per_second"},
                                         Untrue{"link_bytes_per_second=0xffffffffffffffff", "link_bytes_per_second"},
                                         Untrue{"copy_latency_ns=0xffffffffffffffff", "copy_latency_ns"},
                                         Untrue{"host_node=1025", "host_node"},
                                         Untrue{"free=0x40000001", "memory_info"}, Untrue{"device=", "no device", 0}));

TEST(Plugins, DevicesThatCanBeAreOpened) {
    for (const char* options : {"largest_page_bytes=4096", "link_bytes_per_second=0", "flags=31", "total_bytes=1",
                                "largest_page_bytes=0x8000000000000000", "link_bytes_per_second=1000000",
                                "copy_latency_ns=1000000000", "host_node=1024"}) {
        Folder folder;
        const ProbeResult result = open_with(folder, "telling", options);
        EXPECT_EQ(result.status, SH_OK) << options << ": " << result.output;
        EXPECT_EQ(result.rest, "closed=0");
    }
}

// A caller learns each of the backend's flags by a flag of its own, and those alone.
TEST(Plugins, FlagsOfTheDeviceAreThoseOfTheBackend) {
    struct Pair {
        unsigned backend, device;
    };
    for (const Pair flag : {Pair{SH_BACKEND_FIXED_ADDRESSES, SH_DEVICE_FIXED_ADDRESSES},
                            Pair{SH_BACKEND_HOST_ADDRESSABLE, SH_DEVICE_HOST_ADDRESSABLE},
                            Pair{SH_BACKEND_VIRTUAL_TIME, SH_DEVICE_VIRTUAL_TIME},
                            Pair{SH_BACKEND_IS_GPU, SH_DEVICE_IS_GPU}, Pair{SH_BACKEND_CONTENTLESS, 0}, Pair{0, 0}}) {
        Folder folder;
        const ProbeResult result = open_with(folder, "telling", "flags=" + std::to_string(flag.backend));
        EXPECT_EQ(result.status, SH_OK) << flag.backend << ": " << result.output;
        EXPECT_NE(result.output.find("\nflags=" + std::to_string(flag.device) + "\n"), std::string::npos)
            << flag.backend << ": " << result.output;
    }
}

TEST(Plugins, FailuresWithoutATextAreTold) {
    Folder folder;
    const ProbeResult result = open_with(folder, "mute", "");
    EXPECT_EQ(result.status, SH_ERROR_BACKEND_UNAVAILABLE) << result.output;
    EXPECT_NE(result.text.find("mute"), std::string::npos) << result.text;
    const ProbeResult list =
        run_probe({.arguments = {"--list"}, .environment = {"STAGEHAND_BACKEND_PATH=" + folder.path()}});
    EXPECT_NE(list.output.find("\nmute|-402|0|0|"), std::string::npos) << list.output;
}

}  // namespace
}  // namespace plugins_test
