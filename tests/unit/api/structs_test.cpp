// Structs of callers that were built with other versions of the headers: what is read of them, and what is written.
#include "api/structs.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

namespace {

// A struct that has grown twice since its first version.
struct Sample {
    uint32_t struct_size;
    uint32_t first;
    uint64_t second;
    uint64_t third;
};
struct alignas(8) FirstSample {
    uint32_t struct_size;
    uint32_t first;
};
struct NextSample {
    Sample known;
    uint64_t unknown;
};

}  // namespace

template <>
inline constexpr size_t stagehand::api::kFirstSize<Sample> = sizeof(FirstSample);

namespace stagehand::api {
namespace {

template <class Version>
const Sample* as_sample(const Version& version) {
    return reinterpret_cast<const Sample*>(&version);
}
template <class Version>
Sample* as_sample(Version& version) {
    return reinterpret_cast<Sample*>(&version);
}

std::string text_of(const Status& status) { return status.text(); }

TEST(Structs, every_public_struct_has_a_first_size) {
    EXPECT_EQ(kFirstSize<sh_device_options>, 88u);
    EXPECT_LE(kFirstSize<sh_view>, sizeof(sh_view));
    static_assert(CallersStruct<sh_memory_info> && CallersStruct<sh_device_caps> && CallersStruct<sh_backend_info>);
    static_assert(CallersStruct<sh_runtime_options> && CallersStruct<sh_segment> && CallersStruct<sh_block_desc>);
    static_assert(CallersStruct<sh_block_state> && CallersStruct<sh_use> && CallersStruct<sh_plan_options>);
    static_assert(CallersStruct<sh_plan_info> && CallersStruct<sh_guest_options> && CallersStruct<sh_runtime_stats>);
    static_assert(!CallersStruct<NextSample>);
}

TEST(Structs, sizes) {
    Sample sample = {sizeof sample, 0, 0, 0};
    for (const uint32_t size : {8u, 16u, 24u}) {
        sample.struct_size = size;
        EXPECT_TRUE(check_struct(&sample, "sample").ok()) << size;
        EXPECT_TRUE(is_known_size<Sample>(size)) << size;
    }
    for (const uint32_t size : {0u, 4u, 7u, 12u, 20u, 70000u}) {
        sample.struct_size = size;
        EXPECT_EQ(check_struct(&sample, "sample").code(), SH_ERROR_INVALID_STRUCT) << size;
        EXPECT_FALSE(is_known_size<Sample>(size)) << size;
    }
    EXPECT_EQ(check_struct<Sample>(nullptr, "sample").code(), SH_ERROR_INVALID_ARGUMENT);
    sample.struct_size = 4;
    EXPECT_NE(text_of(check_struct(&sample, "sample")).find("sample.struct_size is 4"), std::string::npos);
}

TEST(Structs, bytes_of_a_later_version_must_be_zero) {
    NextSample next = {{sizeof next, 1, 2, 3}, 0};
    Sample taken;
    ASSERT_TRUE(take_options(as_sample(std::as_const(next)), "options", &taken).ok());
    EXPECT_EQ(taken.struct_size, sizeof taken);
    EXPECT_EQ(taken.third, 3u);
    next.unknown = uint64_t(1) << 63;
    const Status status = take_options(as_sample(std::as_const(next)), "options", &taken);
    EXPECT_EQ(status.code(), SH_ERROR_INVALID_STRUCT);
    EXPECT_NE(text_of(status).find("byte 31"), std::string::npos) << status.text();
}

// The fields that the caller's version does not have lie beyond its struct: they are not read.
TEST(Structs, options_of_the_first_version_have_defaults_for_later_fields) {
    struct {
        FirstSample options;
        uint64_t beyond[2];
    } memory = {{sizeof(FirstSample), 7}, {~0ull, ~0ull}};
    Sample taken;
    ASSERT_TRUE(take_options(as_sample(std::as_const(memory.options)), "options", &taken).ok());
    EXPECT_EQ(taken.first, 7u);
    EXPECT_EQ(taken.second, 0u);
    EXPECT_EQ(taken.third, 0u);
    ASSERT_TRUE(take_options<Sample>(nullptr, "options", &taken).ok());
    EXPECT_EQ(taken.first, 0u);
    EXPECT_EQ(taken.struct_size, sizeof taken);
}

TEST(Structs, no_byte_beyond_a_callers_struct_is_written) {
    struct {
        FirstSample sample;
        uint64_t beyond[2];
    } memory = {{sizeof(FirstSample), 0}, {1, 2}};
    const Status status = fill_struct(as_sample(memory.sample), "sample", [](Sample* sample) {
        *sample = {sizeof *sample, 10, 20, 30};
        return Status();
    });
    ASSERT_TRUE(status.ok());
    EXPECT_EQ(memory.sample.struct_size, sizeof(FirstSample));
    EXPECT_EQ(memory.sample.first, 10u);
    EXPECT_EQ(memory.beyond[0], 1u);
    EXPECT_EQ(memory.beyond[1], 2u);
}

TEST(Structs, a_failed_call_writes_nothing_to_another_version) {
    NextSample next = {{sizeof next, 1, 2, 3}, 0};
    const Status status = fill_struct(as_sample(next), "sample", [](Sample* sample) {
        sample->second = 99;
        return Status(SH_ERROR_BACKEND, "no");
    });
    EXPECT_EQ(status.code(), SH_ERROR_BACKEND);
    EXPECT_EQ(next.known.second, 2u);
}

TEST(Structs, a_later_version_is_filled_as_far_as_it_is_known) {
    NextSample next = {{sizeof next, 1, 2, 3}, 0};
    ASSERT_TRUE(fill_struct(as_sample(next), "sample", [](Sample* sample) {
                    *sample = {sizeof *sample, 10, 20, 30};
                    return Status();
                }).ok());
    EXPECT_EQ(next.known.struct_size, sizeof next);
    EXPECT_EQ(next.known.third, 30u);
    EXPECT_EQ(next.unknown, 0u);
}

// The distance of an array's elements is their own size.
TEST(Structs, arrays_of_every_version_are_read) {
    const std::array<FirstSample, 3> first = {{{8, 1}, {8, 2}, {8, 3}}};
    std::vector<Sample> taken;
    ASSERT_TRUE(take_array(as_sample(first[0]), 3, {"samples"}, &taken).ok());
    ASSERT_EQ(taken.size(), 3u);
    for (uint32_t i = 0; i < 3; i++) {
        EXPECT_EQ(taken[i].first, i + 1);
        EXPECT_EQ(taken[i].second, 0u);
    }
    const std::array<NextSample, 2> next = {{{{32, 1, 2, 3}, 0}, {{32, 4, 5, 6}, 0}}};
    ASSERT_TRUE(take_array(as_sample(next[0]), 2, {"samples"}, &taken).ok());
    EXPECT_EQ(taken[1].third, 6u);
    ASSERT_TRUE(take_array<Sample>(nullptr, 0, {"samples"}, &taken).ok());
    EXPECT_TRUE(taken.empty());
}

TEST(Structs, arrays_are_checked_element_by_element) {
    std::vector<Sample> taken;
    std::array<Sample, 2> mixed = {{{24, 1, 2, 3}, {16, 4, 5, 6}}};
    Status status = take_array(mixed.data(), 2, {"samples"}, &taken);
    EXPECT_EQ(status.code(), SH_ERROR_INVALID_STRUCT);
    EXPECT_NE(text_of(status).find("samples[1]"), std::string::npos) << status.text();
    EXPECT_EQ(take_array<Sample>(nullptr, 1, {"samples"}, &taken).code(), SH_ERROR_INVALID_ARGUMENT);
    status = take_array(mixed.data(), kMostElements + 1, {"samples", "sample_count"}, &taken);
    EXPECT_EQ(status.code(), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(text_of(status).find("sample_count"), std::string::npos) << status.text();
}

TEST(Structs, arrays_of_every_version_are_filled) {
    std::array<FirstSample, 3> first = {{{8, 0}, {8, 0}, {8, 0}}};
    {
        OutputArray<Sample> out;
        ASSERT_TRUE(out.open(as_sample(first[0]), 2, {"samples"}).ok());
        for (uint32_t i = 0; i < 2; i++) *out.get()[i] = {sizeof(Sample), i + 1, 20, 30};
        out.give(2);
    }
    EXPECT_EQ(first[0].first, 1u);
    EXPECT_EQ(first[1].first, 2u);
    EXPECT_EQ(first[1].struct_size, 8u);
    EXPECT_EQ(first[2].first, 0u) << "written beyond the array";

    std::array<NextSample, 2> next = {{{{32, 0, 0, 0}, 0}, {{32, 0, 0, 0}, 0}}};
    OutputArray<Sample> out;
    ASSERT_TRUE(out.open(as_sample(next[0]), 2, {"samples"}).ok());
    for (uint32_t i = 0; i < 2; i++) *out.get()[i] = {sizeof(Sample), i + 1, 20, 30};
    out.give(1);
    EXPECT_EQ(next[0].known.third, 30u);
    EXPECT_EQ(next[0].known.struct_size, 32u);
    EXPECT_EQ(next[1].known.third, 0u) << "only the first was to be given";
}

}  // namespace
}  // namespace stagehand::api
