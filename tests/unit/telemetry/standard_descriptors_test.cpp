// A process that has closed 0, 1 and 2, as daemons do, may write to them by mistake, and the log does. So the library
// has none of its files, sockets and memory there.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "../core/engine.h"
#include "../core/socket_client.h"
#include "platform/descriptor.h"

namespace stagehand::test {
namespace {

void close_standard_descriptors() {
    for (const int number : {0, 1, 2}) close(number);
}

bool has_standard_descriptor() {
    for (const int number : {0, 1, 2})
        if (fcntl(number, F_GETFD) >= 0) return true;
    return false;
}

// What a process does that has closed them. Returns the number of the first part that failed, or after which a standard
// descriptor was open.
class Daemon {
public:
    Daemon(const Folder& folder, int file) : folder_(folder), file_(file) {
        setenv("STAGEHAND_LOG", "debug", 1);
        close_standard_descriptors();
    }
    int run() {
        const auto parts = {&Daemon::opens, &Daemon::pauses, &Daemon::streams, &Daemon::watches, &Daemon::spills};
        for (const auto part : parts) {
            part_++;
            if (!(this->*part)() || has_standard_descriptor()) return part_;
        }
        return 0;
    }

private:
    bool opens() {
        sh_device_options options = SH_DEVICE_OPTIONS_INIT;
        options.budget_bytes = 16 << 20;
        return sh_device_open("host", &options, &device_) == SH_OK &&
               sh_runtime_create(device_, nullptr, &runtime_) == SH_OK;
    }
    bool pauses() {
        sh_alloc_options options = SH_ALLOC_OPTIONS_INIT;
        options.contents = SH_CONTENTS_FILE;
        uint64_t address = 0;
        if (sh_alloc(device_, kBytes, &options, &address) != SH_OK) return false;
        auto* const bytes = reinterpret_cast<unsigned char*>(address);
        std::fill_n(bytes, kBytes, 7);
        sh_pause_options to_file = SH_PAUSE_OPTIONS_INIT;
        to_file.folder = folder_.path().c_str();
        if (sh_pause(device_, &to_file, nullptr) != SH_OK || has_standard_descriptor()) return false;
        return sh_resume(device_, nullptr, nullptr) == SH_OK && std::count(bytes, bytes + kBytes, 7) == int64_t(kBytes);
    }
    bool streams() {
        sh_segment segment = SH_SEGMENT_INIT;
        segment.kind = SH_SOURCE_FILE;
        segment.file = file_;
        segment.bytes = kBytes;
        sh_block_desc block = SH_BLOCK_DESC_INIT;
        block.bytes = kBytes;
        block.segments = &segment;
        block.segment_count = 1;
        sh_block id = 0;
        auto view = sh_sized<sh_view>();
        return sh_register_blocks(runtime_, &block, 1, &id) == SH_OK &&
               sh_acquire(runtime_, id, SH_STREAM_HOST, 0, &view) == SH_OK &&
               sh_release(runtime_, id, SH_STREAM_HOST) == SH_OK;
    }
    bool watches() {
        sh_scope* trace = nullptr;
        return sh_trace_start(folder_.at("trace").c_str(), &trace) == SH_OK &&
               sh_telemetry_start(runtime_, nullptr, folder_.at("telemetry").c_str(), nullptr) == SH_OK &&
               sh_step_begin(runtime_, nullptr) == SH_OK && sh_step_end(runtime_) == SH_OK;
    }
    bool spills() {
        sh_spiller* spiller = nullptr;
        return sh_spiller_create(device_, nullptr, &spiller) == SH_OK &&
               sh_telemetry_start(nullptr, spiller, folder_.at("spills").c_str(), nullptr) == SH_OK;
    }

    static constexpr uint64_t kBytes = 8 << 20;
    const Folder& folder_;
    const int file_;
    int part_ = 0;
    sh_device* device_ = nullptr;
    sh_runtime* runtime_ = nullptr;
};

TEST(StandardDescriptors, AreNeverThoseOfTheLibrary) {
    if (!on_host_backend() || devices_without_pages()) GTEST_SKIP() << "it needs memory of the host, in pages";
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EXIT(
        {
            const Folder folder;
            const int file = open(folder.at("weights").c_str(), O_RDWR | O_CREAT, 0600);
            if (ftruncate(file, 8 << 20) != 0) _exit(99);
            _exit(Daemon(folder, file).run());
        },
        testing::ExitedWithCode(0), "");
}

TEST(StandardDescriptors, ADescriptorMovesAboveThem) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EXIT(
        {
            close_standard_descriptors();
            platform::Descriptor moved(open("/dev/null", O_RDONLY | O_CLOEXEC));
            const int flags = fcntl(moved.number(), F_GETFD);
            _exit(moved.number() > 2 && flags == FD_CLOEXEC && !has_standard_descriptor() ? 0 : 1);
        },
        testing::ExitedWithCode(0), "");
}

TEST(StandardDescriptors, OthersDoNotGetThemWhileTheyAreHeld) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EXIT(
        {
            close(0);
            close(2);
            int other = -1;
            {
                const platform::StandardNumbersHeld held;
                other = open("/dev/null", O_RDONLY);
                dup2(other, 2);  // the engine takes this one back
            }
            _exit(other > 2 && fcntl(0, F_GETFD) < 0 && fcntl(2, F_GETFD) >= 0 ? 0 : 1);
        },
        testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace stagehand::test
