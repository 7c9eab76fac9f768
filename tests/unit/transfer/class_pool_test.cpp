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

    static Status settled(const PoolBuffer&) { return Status(); }

    test::FakeBackend fake_;
    std::unique_ptr<BackendDevice> device_ = fake_.open();
    std::vector<SizeClass> classes_;
    std::unique_ptr<ClassPool> pool_;
};

TEST_F(ClassPoolTest, TakesTheSmallestClassThenALargerOneThenUnpinnedMemory) {
    create({{4096, 1}, {8192, 2}});
    ASSERT_TRUE(pool_->prepare().ok());
    EXPECT_EQ(pool_->figures().pinned_bytes, 4096u + 2 * 8192);
    auto a = take(100), b = take(4096), c = take(8192), d = take(1), e = take(8193);
    EXPECT_EQ(a->bytes, 4096u);
    EXPECT_EQ(b->bytes, 8192u);
    EXPECT_EQ(c->bytes, 8192u);
    EXPECT_TRUE(c->pinned);
    EXPECT_FALSE(d->pinned);
    EXPECT_FALSE(e->pinned);
    EXPECT_EQ(pool_->figures().hits, 3u);
    EXPECT_EQ(pool_->figures().misses, 2u);
    EXPECT_EQ(pool_->figures().unpinned_bytes, 1u + 8193);
    std::set<void*> data = {a->data, b->data, c->data, d->data, e->data};
    EXPECT_EQ(data.size(), 5u);
    void* const home = b->data;
    for (auto* buffer : {&a, &b, &c, &d, &e}) pool_->give(std::move(*buffer));
    EXPECT_EQ(pool_->figures().unpinned_bytes, 0u);
    auto again = take(8000), other = take(8000);
    EXPECT_TRUE(again->data == home || other->data == home) << "a buffer returns to its own class";
    for (auto* buffer : {&again, &other}) pool_->give(std::move(*buffer));
}

TEST_F(ClassPoolTest, GrowsByWhatWasMissing) {
    create({});
    std::vector<std::unique_ptr<PoolBuffer>> buffers;
    for (int i = 0; i < 5; i++) buffers.push_back(take(100'000));
    buffers.push_back(take(5000));
    for (auto& buffer : buffers) pool_->give(std::move(buffer));
    buffers.clear();
    pool_->grow();
    pool_->wait_for_growth();
    const ClassPoolFigures grown = pool_->figures();
    EXPECT_EQ(grown.misses, 6u);
    EXPECT_EQ(grown.pinned_bytes, 5u * 102'400 + 5120) << "a sixteenth of waste at most";
    for (int i = 0; i < 5; i++) buffers.push_back(take(100'000));
    buffers.push_back(take(5000));
    EXPECT_EQ(pool_->figures().misses, 6u);
    for (const auto& buffer : buffers) EXPECT_TRUE(buffer->pinned);
    pool_->grow();
    pool_->wait_for_growth();
    EXPECT_EQ(pool_->figures().pinned_bytes, grown.pinned_bytes) << "nothing was missing";
    uint64_t freed = 0;
    pool_->give(std::move(buffers.back()));
    buffers.pop_back();
    ASSERT_TRUE(pool_->trim(settled, &freed).ok());
    EXPECT_EQ(freed, 5120u) << "the other memory is in use";
    for (auto& buffer : buffers) pool_->give(std::move(buffer));
    ASSERT_TRUE(pool_->trim(settled, &freed).ok());
    EXPECT_EQ(pool_->figures().pinned_bytes, 0u);
}

// A copy still writes the buffer, and the driver does not tell when it ends.
TEST_F(ClassPoolTest, KeepsMemoryThatCopiesMayUse) {
    create({{4096, 1}});
    ASSERT_TRUE(pool_->prepare().ok());
    auto buffer = take(4096);
    buffer->filled = 7;
    pool_->give(std::move(buffer));
    uint64_t freed = 1;
    const auto refuse = [](const PoolBuffer& used) {
        EXPECT_EQ(used.filled, 7u);
        return Status(SH_ERROR_BACKEND);
    };
    EXPECT_EQ(pool_->trim(refuse, &freed).code(), SH_ERROR_BACKEND);
    EXPECT_EQ(freed, 0u);
    EXPECT_EQ(pool_->figures().pinned_bytes, 4096u);
    EXPECT_TRUE(pool_->trim(settled, &freed).ok());
    EXPECT_EQ(freed, 4096u);
}

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
