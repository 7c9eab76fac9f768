// A process that closes every descriptor, as daemons do, also closes those of the library. Their numbers become those
// of its next files. The library then neither waits for what cannot come any more, nor takes those files for its own.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "../core/engine.h"
#include "../core/socket_client.h"

namespace stagehand::test {
namespace {

constexpr uint64_t kBytes = 4 << 20;
constexpr int kOthers = 40;
constexpr char kWeights = 'w', kOther = 'o';

int file_of(char letter, int file = memfd_create("test", MFD_CLOEXEC)) {
    const std::string bytes(kBytes, letter);
    return write(file, bytes.data(), bytes.size()) == ssize_t(kBytes) ? file : -1;
}

// The files of the engine that get the numbers of the library.
class OtherFiles {
public:
    OtherFiles() {
        for (int i = 0; i < kOthers; i++) {
            files_.push_back(file_of(kOther));
            before_.push_back(status_of(i));
        }
    }
    bool are_untouched() const {
        for (int i = 0; i < kOthers; i++) {
            const struct stat now = status_of(i);
            if (now.st_ino != before_[size_t(i)].st_ino || now.st_size != before_[size_t(i)].st_size) return false;
            if (now.st_mtim.tv_nsec != before_[size_t(i)].st_mtim.tv_nsec) return false;
        }
        return true;
    }

private:
    struct stat status_of(int i) const {
        struct stat status = {};
        fstat(files_[size_t(i)], &status);
        return status;
    }

    std::vector<int> files_;
    std::vector<struct stat> before_;
};

// Returns the number of the part that failed, or 0.
int watches_on(const Folder& folder) {
    sh_device* device = nullptr;
    sh_runtime* runtime = nullptr;
    sh_spiller* spiller = nullptr;
    if (sh_device_open("host", nullptr, &device) != SH_OK || sh_runtime_create(device, nullptr, &runtime) != SH_OK ||
        sh_spiller_create(device, nullptr, &spiller) != SH_OK)
        return 1;
    sh_scope *trace = nullptr, *steps = nullptr;
    if (sh_trace_start(folder.at("trace").c_str(), &trace) != SH_OK ||
        sh_telemetry_start(runtime, nullptr, folder.at("steps").c_str(), &steps) != SH_OK ||
        sh_telemetry_start(nullptr, spiller, folder.at("spills").c_str(), nullptr) != SH_OK)
        return 2;
    if (sh_step_begin(runtime, nullptr) != SH_OK || sh_step_end(runtime) != SH_OK) return 2;
    if (close_range(3, ~0U, 0) != 0) return 4;
    const OtherFiles others;
    for (int i = 0; i < 3; i++)
        if (sh_step_begin(runtime, nullptr) != SH_OK || sh_step_end(runtime) != SH_ERROR_IO) return 5;
    if (sh_scope_end(steps) != SH_ERROR_IO) return 6;
    if (sh_scope_end(trace) != SH_ERROR_IO) return 7;
    sh_spiller_destroy(spiller);
    sh_runtime_destroy(runtime);
    sh_device_close(device);
    return others.are_untouched() ? 0 : 9;
}

// A file on a disk, which is read past the page cache.
int file_on_disk(const Folder& folder) {
    const int file = file_of(kWeights, open(folder.at("weights").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    fsync(file);
    return file;
}

// Blocks of a file that stream. Returns the number of the part that failed, or 0.
int streams_on(int file, bool mapped) {
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    options.budget_bytes = kBytes / 2;
    sh_device* device = nullptr;
    sh_runtime* runtime = nullptr;
    if (sh_device_open("host", &options, &device) != SH_OK || sh_runtime_create(device, nullptr, &runtime) != SH_OK)
        return 1;
    sh_segment segment = SH_SEGMENT_INIT;
    segment.kind = mapped ? SH_SOURCE_MAPPED : SH_SOURCE_FILE;
    segment.file = file;
    if (mapped) segment.pointer = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, file, 0);
    segment.bytes = kBytes / 8;
    sh_block blocks[8];
    for (uint64_t i = 0; i < 8; i++) {
        sh_block_desc block = SH_BLOCK_DESC_INIT;
        segment.file_offset = mapped ? 0 : i * kBytes / 8;
        block.bytes = segment.bytes;
        block.segments = &segment;
        block.segment_count = 1;
        if (sh_register_blocks(runtime, &block, 1, &blocks[i]) != SH_OK) return 2;
    }
    bool is_closed = false;
    std::vector<OtherFiles> others;
    for (int step = 0; step < 6; step++) {
        if (!is_closed) posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
        // A plan may want more of the device's memory, which is also a file.
        if (sh_step_begin(runtime, nullptr) != SH_OK) {
            if (!is_closed) return 3;
            continue;
        }
        for (const sh_block block : blocks) {
            auto view = sh_sized<sh_view>();
            const sh_status acquired = sh_acquire(runtime, block, SH_STREAM_HOST, 0, &view);
            if (acquired < 0 && !is_closed) return 4;
            if (acquired < 0) continue;
            const auto* const bytes = static_cast<const char*>(view.address);
            if (std::count(bytes, bytes + kBytes / 8, kWeights) != ptrdiff_t(kBytes / 8)) return 5;
            if (sh_release(runtime, block, SH_STREAM_HOST) != SH_OK && !is_closed) return 6;
        }
        if (sh_step_end(runtime) != SH_OK && !is_closed) return 7;
        if (step == 2) {
            posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
            is_closed = close_range(3, ~0U, 0) == 0;
            others.emplace_back();
        }
    }
    sh_runtime_destroy(runtime);
    sh_device_close(device);
    return others.front().are_untouched() ? 0 : 8;
}

template <class Run>
[[noreturn]] void run_and_exit(Run&& run) {
    alarm(60);  // ends what waits for ever
    _exit(run());
}

class LostDescriptors : public testing::Test {
protected:
    void SetUp() override {
        if (!on_host_backend()) GTEST_SKIP() << "drivers have descriptors of their own";
        GTEST_FLAG_SET(death_test_style, "threadsafe");
    }
    const Folder folder_;
};

TEST_F(LostDescriptors, TelemetryAndTraceEnd) {
    EXPECT_EXIT(run_and_exit([this] { return watches_on(folder_); }), testing::ExitedWithCode(0), "");
}

TEST_F(LostDescriptors, SourcesGiveTheirBytesOrAnError) {
    EXPECT_EXIT(run_and_exit([] { return streams_on(file_of(kWeights), false); }), testing::ExitedWithCode(0), "");
    EXPECT_EXIT(run_and_exit([] { return streams_on(file_of(kWeights), true); }), testing::ExitedWithCode(0), "");
    EXPECT_EXIT(run_and_exit([this] { return streams_on(file_on_disk(folder_), false); }), testing::ExitedWithCode(0),
                "");
}

}  // namespace
}  // namespace stagehand::test
