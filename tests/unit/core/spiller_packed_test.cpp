// Saved tensors that cross the link packed.
#include <cstring>

#include "../codec/weights.h"
#include "codec/tile.h"
#include "spiller_fixture.h"

namespace stagehand::test {
namespace {

using codec::FloatFormat;

constexpr uint64_t kElements = 300'000;  // the last tile is not whole

class PackedSpiller : public SpillerTest {
protected:
    static sh_spiller_options packing(uint32_t flags = 0) {
        sh_spiller_options options = SH_SPILLER_OPTIONS_INIT;
        options.flags = SH_SPILLER_PACK | flags;
        return options;
    }
    static std::vector<uint8_t> numbers(FloatFormat format, uint32_t seed) {
        return codec::test::weights(format, kElements, seed);
    }
    static uint32_t bytes_of(FloatFormat format) { return codec::fields_of(format).bytes(); }

    using SpillerTest::save;
    sh_status save(FloatFormat format, uint64_t address, sh_ticket* ticket, uint64_t elements = kElements) {
        return save_on(stream_, format, address, ticket, elements);
    }
    sh_status save_on(sh_stream stream, FloatFormat format, uint64_t address, sh_ticket* ticket,
                      uint64_t elements = kElements) {
        const auto size = static_cast<int64_t>(elements);
        sh_saved_tensor tensor = SH_SAVED_TENSOR_INIT;
        tensor.element_bytes = bytes_of(format);
        tensor.address = address;
        tensor.dimensions = 1;
        tensor.sizes = &size;
        tensor.format = static_cast<uint32_t>(format);
        return sh_spill(spiller_, &tensor, stream, SH_SPILL_NOW, ticket);
    }
    // Saves it, gives its memory back and restores it.
    std::vector<uint8_t> there_and_back(FloatFormat format, const std::vector<uint8_t>& contents) {
        EngineMemory memory(contents.size());
        memory.bytes() = contents;
        sh_ticket ticket = 0;
        EXPECT_SUCCEEDS(save(format, memory.address(), &ticket, contents.size() / bytes_of(format)));
        EXPECT_EQ(collect(SH_COLLECT_ALL), std::vector<sh_ticket>{ticket});
        give_back(memory);
        const std::vector<uint8_t> found = restore(ticket, contents.size());
        EXPECT_SUCCEEDS(sh_ticket_release(spiller_, ticket));
        return found;
    }
    // The pool pins what a step lacked.
    void warm(FloatFormat format) {
        SUCCEEDS(sh_spiller_begin_step(spiller_, 0));
        EXPECT_EQ(there_and_back(format, numbers(format, 1)), numbers(format, 1));
        SUCCEEDS(sh_spiller_end_step(spiller_));
        wait_for_the_pool(kElements * bytes_of(format));
    }
};

TEST_F(PackedSpiller, every_format_comes_back_with_its_bytes) {
    for (const FloatFormat format : codec::test::kFormats) {
        create(packing());
        warm(format);
        const sh_spiller_stats before = stats();
        for (uint32_t seed = 2; seed < 6; seed++) {
            const std::vector<uint8_t> contents =
                seed % 2 ? numbers(format, seed) : codec::test::any_bits(format, kElements, seed);
            EXPECT_EQ(there_and_back(format, contents), contents);
        }
        const uint64_t left = stats().spill_bytes - before.spill_bytes;
        EXPECT_EQ(left, 4 * kElements * bytes_of(format));
        EXPECT_EQ(stats().packed_bytes - before.packed_bytes, left);
        PackedSpiller::TearDown();
        device_ = nullptr;
        spiller_ = nullptr;
    }
}

TEST_F(PackedSpiller, others_leave_as_they_are) {
    create(packing());
    warm(FloatFormat::bf16);
    const uint64_t before = stats().packed_bytes;
    // A tensor without a format.
    Saved plain = save(7, SH_SPILL_NOW, 2 * kElements);
    EXPECT_EQ(collect(SH_COLLECT_ALL).size(), 1u);
    give_back(plain);
    EXPECT_EQ(restore(plain.ticket, 2 * kElements), contents(7, 2 * kElements));
    SUCCEEDS(sh_ticket_release(spiller_, plain.ticket));
    // One of few bytes, and one at an odd address.
    const std::vector<uint8_t> few = codec::test::weights(FloatFormat::bf16, 100'000, 3);
    EXPECT_EQ(there_and_back(FloatFormat::bf16, few), few);
    EngineMemory memory(2 * kElements + 16);
    const std::vector<uint8_t> contents = numbers(FloatFormat::bf16, 4);
    std::ranges::copy(contents, memory.bytes().begin() + 2);
    sh_ticket ticket = 0;
    SUCCEEDS(save(FloatFormat::bf16, memory.address() + 2, &ticket));
    EXPECT_EQ(collect(SH_COLLECT_ALL).size(), 1u);
    give_back(memory);
    EXPECT_EQ(restore(ticket, 2 * kElements), contents);
    SUCCEEDS(sh_ticket_release(spiller_, ticket));
    EXPECT_EQ(stats().packed_bytes, before);
}

TEST_F(PackedSpiller, an_address_that_is_not_aligned_is_refused) {
    create(packing());
    warm(FloatFormat::bf16);
    const std::vector<uint8_t> contents = numbers(FloatFormat::bf16, 2);
    EngineMemory memory(contents.size()), target(contents.size() + 16, 0xdd);
    memory.bytes() = contents;
    sh_ticket ticket = 0;
    SUCCEEDS(save(FloatFormat::bf16, memory.address(), &ticket));
    EXPECT_EQ(collect(SH_COLLECT_ALL).size(), 1u);
    const uint64_t odd = target.address() + 8;
    EXPECT_EQ(sh_restore(spiller_, ticket, odd, stream_), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(why()).find("multiple of 16"), std::string::npos) << why();
    EXPECT_EQ(sh_prefetch_spilled(spiller_, &ticket, &odd, 1, stream_), SH_ERROR_INVALID_ARGUMENT);
    const uint64_t even = target.address();
    SUCCEEDS(sh_prefetch_spilled(spiller_, &ticket, &even, 1, stream_));
    SUCCEEDS(sh_restore(spiller_, ticket, even, stream_));
    SUCCEEDS(sh_stream_synchronize(device_, stream_));
    EXPECT_EQ(std::memcmp(target.bytes().data(), contents.data(), contents.size()), 0);
}

TEST_F(PackedSpiller, a_format_that_is_impossible_is_refused) {
    create(packing());
    EngineMemory memory(64);
    const int64_t size = 8;
    sh_saved_tensor tensor = SH_SAVED_TENSOR_INIT;
    tensor.element_bytes = 2;
    tensor.address = memory.address();
    tensor.dimensions = 1;
    tensor.sizes = &size;
    sh_ticket ticket = 0;
    const auto refused = [&](const char* field) {
        EXPECT_EQ(sh_spill(spiller_, &tensor, stream_, 0, &ticket), SH_ERROR_INVALID_ARGUMENT);
        EXPECT_NE(std::string(why()).find(field), std::string::npos) << why();
    };
    tensor.format = 6;
    refused("tensor.format");
    tensor.format = SH_FORMAT_F32;
    refused("tensor.element_bytes");
    tensor.format = 0;
    tensor.reserved = 1;
    refused("tensor.reserved");
}

TEST_F(PackedSpiller, checksums_are_those_of_the_tensor) {
    create(packing(SH_SPILLER_CHECKSUMS));
    warm(FloatFormat::bf16);
    const std::vector<uint8_t> contents = numbers(FloatFormat::bf16, 2);
    EXPECT_EQ(there_and_back(FloatFormat::bf16, contents), contents);
    EXPECT_EQ(stats().packed_bytes, 2 * kElements);  // the first one found no pinned buffer
}

}  // namespace
}  // namespace stagehand::test
