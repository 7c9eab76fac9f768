// Host memory for copies comes from the NUMA node that is closest to the device.
#include <climits>
#include <cstring>

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "fake_backend.h"
#include "platform/anonymous_memory.h"
#include "platform/numa.h"
#include "transfer/host/gradual_memory.h"
#include "transfer/host/pinned_memory.h"

namespace stagehand::transfer {
namespace {

using test::FakeBackend;

constexpr uint64_t kBytes = 3 << 20;

struct NodePolicy {
    int mode = -1;
    unsigned long nodes[platform::kMostNodes / (sizeof(unsigned long) * CHAR_BIT)] = {};
    bool prefers_first() const { return mode == MPOL_PREFERRED && nodes[0] == 1; }
};

bool find_policy(void* memory, NodePolicy* out) {
    return syscall(SYS_get_mempolicy, &out->mode, out->nodes, platform::kMostNodes + 1UL, memory, MPOL_F_ADDR) == 0;
}

class HostNode : public testing::Test {
protected:
    void SetUp() override {
        void* memory = nullptr;
        uint64_t mapped = 0;
        ASSERT_TRUE(platform::map_anonymous(kBytes, &memory, &mapped).ok());
        NodePolicy policy;
        unsigned long first = 1;
        const bool can =
            find_policy(memory, &policy) && syscall(SYS_mbind, memory, mapped, MPOL_PREFERRED, &first, 65UL, 0) == 0;
        platform::unmap_anonymous(memory, mapped);
        if (!can || policy.mode != MPOL_DEFAULT)
            GTEST_SKIP() << "this system does not let programs choose nodes, or has chosen one";
    }

    FakeBackend fake_;
};

TEST_F(HostNode, IsPreferredForAllHostMemory) {
    for (const uint64_t known : {0, 1}) {
        fake_.host_node = known;
        const auto device = fake_.open();
        PinnedMemory pinned;
        GradualMemory gradual;
        ASSERT_TRUE(PinnedMemory::allocate(*device, kBytes, &pinned).ok());
        ASSERT_TRUE(GradualMemory::reserve(*device, kBytes, &gradual).ok());
        for (void* const memory : {pinned.data(), gradual.data()}) {
            NodePolicy begin, end;
            ASSERT_TRUE(find_policy(memory, &begin));
            ASSERT_TRUE(find_policy(static_cast<char*>(memory) + kBytes - 1, &end));
            EXPECT_EQ(begin.prefers_first(), known == 1);
            EXPECT_EQ(end.prefers_first(), known == 1);
        }
    }
}

// A node that the machine lacks is no reason to fail.
TEST_F(HostNode, ThatIsNotThereIsIgnored) {
    for (const uint64_t missing : {uint64_t{platform::kMostNodes}, uint64_t{platform::kMostNodes} + 1, UINT64_MAX}) {
        fake_.host_node = missing;
        const auto device = fake_.open();
        PinnedMemory pinned;
        ASSERT_TRUE(PinnedMemory::allocate(*device, kBytes, &pinned).ok());
        std::memset(pinned.data(), 1, kBytes);
    }
}

}  // namespace
}  // namespace stagehand::transfer
