// The calls of occupancy.h.
#include <cstring>

#include <gtest/gtest.h>

#include "engine.h"
#include "every_call.h"

namespace stagehand::test {
namespace {

int32_t count_pause(const char* const*, uint64_t tag_count, char*, uint64_t, void* sum) {
    *static_cast<uint64_t*>(sum) += tag_count;
    return 0;
}

}  // namespace

// Allocates memory of two kinds, and pauses and resumes it where the device can.
bool EveryCall::pause_and_resume() {
    const uint64_t kSizes[] = {kPage + 100, 300};
    uint64_t addresses[2] = {}, count = 0, paused_tags = 0, callbacks = 0;
    std::vector<uint8_t> truth[2];
    for (size_t i = 0; i < 2; i++) {
        sh_alloc_options options = SH_ALLOC_OPTIONS_INIT;
        options.tag = i ? "a tag whose name takes memory, too" : nullptr;
        options.flags = i ? SH_ALLOC_CONST : 0;
        options.format = i ? 0 : SH_FORMAT_BF16;
        if (!ATTEMPT(sh_alloc, device_, kSizes[i], &options, &addresses[i])) return false;
        truth[i] = contents_of(200 + i, 0, kSizes[i]);
        std::memcpy(reinterpret_cast<void*>(addresses[i]), truth[i].data(), kSizes[i]);
    }
    sh_pause_options pause = SH_PAUSE_OPTIONS_INIT;
    sh_resume_options resume = SH_RESUME_OPTIONS_INIT;
    pause.flags = resume.flags = SH_OCCUPANCY_REPEAT;
    const auto pause_all = [&] {
        const sh_status status = sh_pause(device_, &pause, nullptr);
        return devices_without_pages() && status == SH_ERROR_UNSUPPORTED ? SH_OK + 0 : status;
    };
    const auto prepare = [&] {
        const sh_status status = sh_occupancy_prepare(device_, &pause);
        return devices_without_pages() && status == SH_ERROR_UNSUPPORTED ? SH_OK + 0 : status;
    };
    // A pause that failed, or is not supported, has left contents on the device.
    const auto read = [&] {
        uint8_t byte = truth[1][0];
        const sh_status status = sh_occupancy_read(device_, addresses[1], 1, &byte);
        EXPECT_EQ(byte, truth[1][0]);
        return status == SH_ERROR_INVALID_STATE ? SH_OK + 0 : status;
    };
    if (!attempt("sh_occupancy_prepare", prepare)) return false;
    if (!ATTEMPT(sh_occupancy_add_callbacks, device_, count_pause, nullptr, &paused_tags, &callbacks)) return false;
    // The third cycle names a range, which is of no allocation.
    const sh_memory_range unused = {1, 4096};
    for (int cycle = 0; cycle < 3; cycle++) {
        pause.unused = &unused;
        pause.unused_count = static_cast<uint64_t>(cycle / 2);
        if (!attempt("sh_pause", pause_all)) return false;
        if (!attempt("sh_occupancy_read", read)) return false;
        if (!ATTEMPT(sh_resume, device_, &resume, nullptr)) return false;
        for (size_t i = 0; i < 2; i++)
            EXPECT_EQ(std::memcmp(reinterpret_cast<const void*>(addresses[i]), truth[i].data(), kSizes[i]), 0);
    }
    EXPECT_TRUE(devices_without_pages() || paused_tags >= 6) << paused_tags;
    if (!ATTEMPT(sh_occupancy_remove_callbacks, device_, callbacks)) return false;
    sh_occupancy_info info = SH_OCCUPANCY_INFO_INIT;
    if (!ATTEMPT(sh_occupancy_get_info, device_, nullptr, &info)) return false;
    EXPECT_GE(info.allocations, 2u) << "beside the blocks of runtimes";
    if (!ATTEMPT(sh_occupancy_list, device_, &info, 1, &count)) return false;
    EXPECT_GE(count, 2u);
    if (!ATTEMPT(sh_occupancy_trim, device_, nullptr)) return false;
    for (const uint64_t address : addresses)
        if (!ATTEMPT(sh_free, device_, address)) return false;
    return true;
}

}  // namespace stagehand::test
