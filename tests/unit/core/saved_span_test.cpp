// span_of: which bytes a saved tensor spans, and the descriptions that are refused.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/spill/saved_span.h"

namespace stagehand::core {
namespace {

constexpr uint64_t kAt = uint64_t(1) << 32;

struct Tensor {
    std::vector<int64_t> sizes, strides;
    uint32_t element_bytes = 4;
    uint64_t address = kAt, storage_address = 0, storage_bytes = 0;

    Status span(SavedSpan* out) const {
        sh_saved_tensor tensor = SH_SAVED_TENSOR_INIT;
        tensor.element_bytes = element_bytes;
        tensor.address = address;
        tensor.dimensions = sizes.size();
        tensor.sizes = sizes.data();
        tensor.strides = strides.empty() ? nullptr : strides.data();
        tensor.storage_address = storage_address;
        tensor.storage_bytes = storage_bytes;
        return span_of(tensor, out);
    }
    SavedSpan expect_span() const {
        SavedSpan out;
        const Status status = span(&out);
        EXPECT_TRUE(status.ok()) << status.text();
        return out;
    }
    std::string refused() const {
        SavedSpan out;
        const Status status = span(&out);
        EXPECT_EQ(status.code(), SH_ERROR_INVALID_ARGUMENT);
        return status.text();
    }
};

void expect(const SavedSpan& span, uint64_t address, uint64_t bytes, uint64_t offset) {
    EXPECT_EQ(span.address, address);
    EXPECT_EQ(span.bytes, bytes);
    EXPECT_EQ(span.offset, offset);
}

TEST(SavedSpan, is_the_whole_storage_if_more_than_half_of_it_is_used) {
    expect(Tensor{{10}, {}, 4, kAt, kAt, 80}.expect_span(), kAt, 40, 0);
    expect(Tensor{{10}, {}, 4, kAt, kAt, 79}.expect_span(), kAt, 79, 0);
    expect(Tensor{{10}, {}, 4, kAt + 8, kAt, 79}.expect_span(), kAt, 79, 8);
    expect(Tensor{{10}, {}, 4, kAt, 0, 79}.expect_span(), kAt, 79, 0);
}

TEST(SavedSpan, is_refused_where_the_description_is_impossible) {
    EXPECT_NE((Tensor{{1}, {}, 0}.refused()).find("element_bytes is 0"), std::string::npos);
    EXPECT_NE((Tensor{{1}, {}, 65537}.refused()).find("element_bytes is 65537"), std::string::npos);
    EXPECT_NE((Tensor{{1, -3}, {}}.refused()).find("sizes[1] is -3"), std::string::npos);
    EXPECT_NE((Tensor{std::vector<int64_t>(65, 1), {}}.refused()).find("dimensions is 65"), std::string::npos);
    EXPECT_NE((Tensor{{1}, {}, 4, 0}.refused()).find("address is 0"), std::string::npos);
    EXPECT_NE((Tensor{{9}, {-1}, 4, 32}.refused()).find("leave the address space"), std::string::npos);
    EXPECT_NE((Tensor{{9}, {}, 4, UINT64_MAX - 3}.refused()).find("leave the address space"), std::string::npos);
    EXPECT_NE((Tensor{{9}, {}, 4, kAt, kAt + 4, 36}.refused()).find("storage_bytes"), std::string::npos);
    EXPECT_NE((Tensor{{9}, {}, 4, kAt, kAt, 35}.refused()).find("storage_bytes"), std::string::npos);
    EXPECT_NE((Tensor{{int64_t(1) << 47}, {}}.refused()).find("2^48"), std::string::npos);
    sh_saved_tensor tensor = SH_SAVED_TENSOR_INIT;
    tensor.element_bytes = 4;
    tensor.address = kAt;
    tensor.dimensions = 1;
    SavedSpan out;
    EXPECT_NE(std::string(span_of(tensor, &out).text()).find("sizes is NULL"), std::string::npos);
}

}  // namespace
}  // namespace stagehand::core
