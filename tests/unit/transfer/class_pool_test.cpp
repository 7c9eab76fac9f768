#include "transfer/host/class_pool.h"

#include <memory>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "fake_backend.h"

namespace stagehand::transfer {
namespace {

class ClassPoolTest : public testing::Test {
protected:
    void create(std::vector<SizeClass> classes, uint64_t limit = 64 << 20) {
        classes_ = std::move(classes);
        pool_ = std::make_unique<ClassPool>(*device_, ClassPoolOptions{classes_, limit});
    }
    std::unique_ptr<PoolBuffer> take(uint64_t bytes) {
        std::unique_ptr<PoolBuffer> buffer;
        EXPECT_TRUE(pool_->take(bytes, &buffer).ok());
        return buffer;
    }

    test::FakeBackend fake_;
    std::unique_ptr<BackendDevice> device_ = fake_.open();
    std::vector<SizeClass> classes_;
    std::unique_ptr<ClassPool> pool_;
};

TEST_F(ClassPoolTest, StopsAtItsLimit) {
    create({}, 3 * 4096);
    std::vector<std::unique_ptr<PoolBuffer>> buffers;
    for (int i = 0; i < 5; i++) buffers.push_back(take(4096));
    pool_->grow();
    pool_->wait_for_growth();
    EXPECT_EQ(pool_->figures().pinned_bytes, 3u * 4096);
    for (auto& buffer : buffers) pool_->give(std::move(buffer));
}

TEST_F(ClassPoolTest, AFailedGrowthLeavesWhatWasThere) {
    create({{4096, 1}});
    ASSERT_TRUE(pool_->prepare().ok());
    auto a = take(1), b = take(1);
    fake_.fail_call(1, true, "host_register");
    pool_->grow();
    pool_->wait_for_growth();
    EXPECT_EQ(pool_->figures().pinned_bytes, 4096u);
    pool_->give(std::move(a));
    pool_->give(std::move(b));
    auto c = take(1);
    EXPECT_TRUE(c->pinned);
    pool_->give(std::move(c));
}

TEST_F(ClassPoolTest, IsDestroyedWhileItGrows) {
    create({});
    auto buffer = take(4096);
    pool_->grow();
    pool_->give(std::move(buffer));
    pool_.reset();
    EXPECT_EQ(fake_.pinned_bytes(), 0u);
    EXPECT_EQ(fake_.events(), 0u);
}

}  // namespace
}  // namespace stagehand::transfer
