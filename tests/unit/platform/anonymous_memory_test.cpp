#include "platform/anonymous_memory.h"

#include <fstream>
#include <string>
#include <vector>

#include <sys/mman.h>

#include <gtest/gtest.h>

#include "platform/host_memory.h"

namespace stagehand::platform {
namespace {

bool all_present(void* memory, uint64_t bytes) {
    std::vector<unsigned char> present(bytes / page_size());
    if (mincore(memory, bytes, present.data()) != 0) return false;
    for (const unsigned char page : present)
        if (!(page & 1)) return false;
    return true;
}

TEST(AnonymousMemory, IsMappedToItsSizeInPages) {
    for (const uint64_t bytes :
         {uint64_t(1), uint64_t(4096), uint64_t(4097), uint64_t(2) << 20, (uint64_t(5) << 20) + 1}) {
        void* memory = nullptr;
        uint64_t mapped = 0;
        ASSERT_TRUE(map_anonymous(bytes, &memory, &mapped).ok());
        EXPECT_EQ(mapped, (bytes + 4095) / 4096 * 4096);
        if (mapped >= uint64_t(2) << 20) {
            EXPECT_EQ(reinterpret_cast<uint64_t>(memory) % (2 << 20), 0u);  // where huge pages fit
        }
        unmap_anonymous(memory, mapped);
    }
}

TEST(AnonymousMemory, TouchingMakesAllOfItPresent) {
    for (const uint64_t bytes : {uint64_t(12345), uint64_t(100) << 20}) {
        void* memory = nullptr;
        uint64_t mapped = 0;
        ASSERT_TRUE(map_anonymous(bytes, &memory, &mapped).ok());
        EXPECT_FALSE(all_present(memory, mapped));
        ASSERT_TRUE(touch(memory, mapped).ok());
        EXPECT_TRUE(all_present(memory, mapped));
        unmap_anonymous(memory, mapped);
    }
}

TEST(AnonymousMemory, TouchingWhatIsNotThereIsAnError) {
    void* memory = nullptr;
    uint64_t mapped = 0;
    ASSERT_TRUE(map_anonymous(1 << 20, &memory, &mapped).ok());
    unmap_anonymous(memory, mapped);
    EXPECT_EQ(touch(memory, mapped).code(), SH_ERROR_OUT_OF_HOST_MEMORY);
}

TEST(AnonymousMemory, MoreThanThereIsIsRefusedInWords) {
    void* memory = nullptr;
    uint64_t mapped = 0;
    const Status status = map_anonymous(read_host_memory().available_bytes + (uint64_t(4) << 30), &memory, &mapped);
    EXPECT_EQ(status.code(), SH_ERROR_OUT_OF_HOST_MEMORY);
    EXPECT_NE(std::string(status.text()).find("needed"), std::string::npos) << status.text();
    EXPECT_EQ(map_anonymous(UINT64_MAX, &memory, &mapped).code(), SH_ERROR_OUT_OF_HOST_MEMORY);
    EXPECT_EQ(map_anonymous(0, &memory, &mapped).code(), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(memory, nullptr);
}

TEST(RoundUp, SeesOverflow) {
    uint64_t rounded = 0;
    EXPECT_TRUE(round_up(1, 4096, &rounded));
    EXPECT_EQ(rounded, 4096u);
    EXPECT_TRUE(round_up(0, 4096, &rounded));
    EXPECT_EQ(rounded, 0u);
    EXPECT_TRUE(round_up(UINT64_MAX - 4095, 4096, &rounded));
    EXPECT_EQ(rounded, UINT64_MAX - 4095);
    EXPECT_FALSE(round_up(UINT64_MAX - 4094, 4096, &rounded));
}

}  // namespace
}  // namespace stagehand::platform
