// The CUDA plugin's hashes of contents, made on the GPU, against their definition in backends/support/content_hash.h.
#include <memory>
#include <random>

#include "gpu_test.h"
#include "plugins/backends.h"
#include "support/content_hash.h"

namespace stagehand::test {
namespace {

class ContentHash : public testing::Test {
protected:
    void SetUp() override {
        const Status found = plugins::find_backend("cuda", nullptr, &backend_, nullptr);
        if (!found.ok()) GTEST_SKIP() << found.text();
        sh_backend_device_info info = {};
        info.struct_size = sizeof info;
        if (backend_->device_open(0, "map_pages=0", &device_, &info) != SH_OK) GTEST_SKIP() << backend_->last_error();
        ASSERT_EQ(backend_->stream_create(device_, &stream_), SH_OK) << backend_->last_error();
    }
    void TearDown() override {
        if (!device_) return;
        if (memory_) {
            EXPECT_EQ(backend_->range_free(device_, memory_, bytes_), SH_OK);
        }
        if (stream_) {
            EXPECT_EQ(backend_->stream_destroy(device_, stream_), SH_OK);
        }
        backend_->device_close(device_);
    }
    void write(const std::vector<uint64_t>& words) {
        bytes_ = words.size() * 8;
        ASSERT_EQ(backend_->range_reserve(device_, bytes_, 256, &memory_), SH_OK) << backend_->last_error();
        ASSERT_EQ(backend_->copy_to_device(device_, stream_, memory_, words.data(), bytes_), SH_OK);
        ASSERT_EQ(backend_->stream_synchronize(device_, stream_), SH_OK) << backend_->last_error();
    }
    void expect_hashes(const std::vector<uint64_t>& words, const std::vector<sh_backend_range>& ranges) {
        std::vector<sh_backend_digest> digests(ranges.size());
        ASSERT_EQ(backend_->contents_hash(device_, stream_, ranges.size(), ranges.data(), digests.data()), SH_OK)
            << backend_->last_error();
        for (size_t i = 0; i < ranges.size() && !HasFailure(); i++) {
            const char* const at = reinterpret_cast<const char*>(words.data()) + (ranges[i].address - memory_);
            const sh_backend_digest wanted = support::content_hash(at, ranges[i].bytes);
            EXPECT_EQ(digests[i].words[0], wanted.words[0]) << "range " << i << " of " << ranges[i].bytes;
            EXPECT_EQ(digests[i].words[1], wanted.words[1]) << "range " << i << " of " << ranges[i].bytes;
        }
    }

    const sh_backend* backend_ = nullptr;
    sh_backend_device* device_ = nullptr;
    sh_stream stream_ = 0;
    uint64_t memory_ = 0, bytes_ = 0;
};

// Ranges of all sizes that the loop treats apart, at every alignment that is allowed.
TEST_F(ContentHash, is_that_of_the_definition) {
    std::mt19937_64 random(3);
    std::vector<uint64_t> words((8 << 20) / 8);
    for (uint64_t& word : words) word = random();
    write(words);
    std::vector<sh_backend_range> ranges;
    for (uint64_t rows = 1; rows < 40; rows++) ranges.push_back({memory_ + 16 * rows, 4096 * rows});
    for (uint64_t i = 0; i < 4; i++) ranges.push_back({memory_ + i * (2 << 20), 2 << 20});
    expect_hashes(words, ranges);
}

// More ranges than one launch takes.
TEST_F(ContentHash, takes_any_number_of_ranges) {
    std::mt19937_64 random(4);
    std::vector<uint64_t> words((1 << 20) / 8);
    for (uint64_t& word : words) word = random();
    write(words);
    std::vector<sh_backend_range> ranges;
    for (uint64_t i = 0; i < 20'000; i++) ranges.push_back({memory_ + i % 255 * 4096 + i % 256 * 16, 4096});
    expect_hashes(words, ranges);
    expect_hashes(words, {});
}

}  // namespace
}  // namespace stagehand::test
