// A build without helpers.
#include "engine.h"

namespace stagehand::test {
namespace {

TEST(NoHelpers, AnOptionThatNamesThemIsRefused) {
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    sh_helper_options helpers = SH_HELPER_OPTIONS_INIT;
    options.helpers = &helpers;
    sh_device* device = nullptr;
    for (const char* const names : {"host:1", "auto", "nonsense"}) {
        helpers.devices = names;
        EXPECT_EQ(sh_device_open("host", &options, &device), SH_ERROR_UNSUPPORTED);
        EXPECT_EQ(why(), "options.helpers.devices is \"" + std::string(names) + "\": this build has no helpers");
    }
    const TestDevice open;
    EXPECT_EQ(sh_device_open(device_under_test().c_str(), &options, &device), SH_ERROR_UNSUPPORTED) << "of an open one";
    EXPECT_EQ(device, nullptr);
}

}  // namespace
}  // namespace stagehand::test
